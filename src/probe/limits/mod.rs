//! Limits that end a system call: of processes and threads, and of a sandbox.

pub mod processes;
pub mod refusal;
