//! The control socket of a running launcher: what it does, its stacks, its stop.

pub mod live_status;
pub mod message;
pub mod runtime_folder;
pub mod server;
mod service;
