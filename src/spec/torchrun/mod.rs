//! The options of `python -m rlaunch.run`, which are torchrun's, and the request that they make.

pub mod launch;
pub mod namespace;
pub mod options;
pub mod rendezvous;
pub mod scheduler;
pub mod streams;
pub mod values;

pub use crate::spec::torchrun::launch::{
    EventLog, LogDir, Nproc, NumaBinding, OutputCapture, StoreReach, TorchScript, TorchSpec, check,
};
pub use crate::spec::torchrun::rendezvous::TorchrunBackend;
pub use crate::spec::torchrun::streams::{RankRoutes, StreamRoute, StreamRoutes};
