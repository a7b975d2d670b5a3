//! Clients of a master: a node's link to the embedded one, and a node of a job whose master is Paddle's own launcher.

mod backend;
mod connect;
mod link_state;
pub mod paddle_kv;
mod probe;

pub use backend::{MasterAddress, MasterBackend, join};
pub use probe::{ProbeResult, probe};
