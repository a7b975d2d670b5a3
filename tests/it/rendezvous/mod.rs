//! Rendezvous backends and the torch store, over real sockets.

mod cable;
#[cfg(feature = "etcd")]
mod etcd;
mod master;
mod membership;
mod static_messages;
mod torch_store;

use rlaunch::sys::clock;
use std::io;
use std::time::Duration;

/// Time that passes, for clients that block.
fn within(time: Duration) -> impl FnMut() -> io::Result<Duration> {
    let end = clock::now() + time;
    move || Ok(end.saturating_sub(clock::now()))
}
