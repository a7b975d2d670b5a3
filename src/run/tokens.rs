//! Tokens of the event loop's descriptors in the engine's epoll set. Numbers below `HOST_TOKENS` are local ranks.

use super::engine::HOST_TOKENS;

/// Signals and requests (`signal_inbox.rs`).
pub const INBOX: u64 = HOST_TOKENS;
/// The end of the launcher process.
pub const LAUNCHER: u64 = HOST_TOKENS + 1;
/// The other nodes.
pub const NODES: u64 = HOST_TOKENS + 2;
/// The preload server's socket, and its end.
pub const ZYGOTE: (u64, u64) = (HOST_TOKENS + 3, HOST_TOKENS + 4);
/// Growth of logs.
pub const GROWTH: u64 = HOST_TOKENS + 5;
/// Samples of what the ranks use.
pub const SAMPLES: u64 = HOST_TOKENS + 6;
/// The first of the log followers, one token each: room on the console.
pub const FOLLOWERS: u64 = HOST_TOKENS + 7;
