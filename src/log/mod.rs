//! Floor 4: what is seen. Bytes and facts go in, bytes and text come out: lines for a shared console,
//! the tail of a log, what killed a rank according to its own words, and the last block on stderr.
//! Nothing here opens a file or knows a terminal; what a rank wrote is never trusted.

pub mod annotation;
pub mod blame;
pub mod error_file;
pub mod escape;
pub mod failed;
pub mod fault;
pub mod gpu;
pub mod lines;
mod native;
pub mod peer;
pub mod prefix;
pub mod secret;
pub mod tail;
mod traceback;
pub mod verdict;
mod wording;

pub use annotation::github_annotation;
pub use blame::{Blame, blame};
pub use fault::{Fault, Kind, Place};
pub use lines::Splitter;
pub use peer::{LostPeer, lost_peer};
pub use prefix::Prefix;
pub use tail::{Tail, tail};
pub use verdict::{Verdict, render};
