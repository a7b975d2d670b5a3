//! What killed a rank, read from its own output.

pub mod blame;
pub mod error_file;
pub mod fault;
pub mod lost_peer;
pub mod native;
pub mod traceback;
pub mod uncaught;
pub mod verdict;
