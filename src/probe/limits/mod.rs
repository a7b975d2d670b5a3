//! Limits that end a system call or a process: of processes and threads, of a rank's resources, and of a sandbox.

pub mod processes;
pub mod rank_limits;
pub mod refusal;
