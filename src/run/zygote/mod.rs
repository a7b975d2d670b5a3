//! The preload server (`--preload`) as the launcher sees it: a process that imports modules once, and from which all ranks
//! are forked. `python/rlaunch/_preload/server.py` is its other side; docs/preload.md describes its use.

mod error;
mod fork_request;
mod server;
mod server_end;

pub use error::{ForkedStartError, PreloadFailure};
pub use fork_request::encode;
pub use server::{ForkProgress, NAME, PreloadContext, Zygote, ZygoteEvent};
