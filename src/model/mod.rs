//! Plain data types that all other modules share. No clock, no environment, no I/O.

pub mod accelerator;
pub mod cpuset;
pub mod endpoint;
pub mod env_delta;
pub mod exit;
pub mod fingerprint;
pub mod plain_text;
pub mod role;

pub use cpuset::CpuSet;
pub use endpoint::Endpoint;
pub use env_delta::EnvDelta;
pub use exit::Exit;
pub use role::{ProcessLabel, Role};
