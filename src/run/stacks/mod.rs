//! Reads the stacks of ranks in a process of its own, which ends afterwards: the reader needs memory that the launcher must not
//! keep, and a file system that hangs may hold it up.

pub mod collector;
pub mod look;
