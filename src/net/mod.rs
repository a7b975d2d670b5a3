//! Network input and output with limits: a non-blocking server, and blocking clients with a deadline.

pub mod deadline;
pub mod listen;
pub mod server;
pub mod tcp;
pub mod thread;
pub mod traffic;
pub mod unix;
