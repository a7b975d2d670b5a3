//! Floor 0: the words. Plain data that every other floor speaks in; no clock, no environment, no I/O.

pub mod accelerator;
pub mod cpuset;
pub mod endpoint;
pub mod env;
pub mod exit;
pub mod role;

pub use cpuset::CpuSet;
pub use endpoint::Endpoint;
pub use env::EnvPatch;
pub use exit::Exit;
pub use role::{Role, Who};
