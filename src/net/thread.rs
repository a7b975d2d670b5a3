//! Threads that take no signals.

use nix::sys::signal::{SigSet, SigmaskHow};
use std::io;
use std::thread::{Builder, JoinHandle};
use tracing::Dispatch;
use tracing::dispatcher::{get_default, with_default};

/// Starts a thread with all signals blocked, so that the signal handlers run on other threads. It logs to the caller's subscriber.
pub fn spawn<T: Send + 'static>(name: &str, run: impl FnOnce() -> T + Send + 'static) -> io::Result<JoinHandle<T>> {
    let subscriber = get_default(Dispatch::clone);
    // A new thread inherits the mask of its creator (pthread_create(3)).
    let signals = SigSet::all().thread_swap_mask(SigmaskHow::SIG_SETMASK)?;
    let thread = Builder::new().name(name.to_owned()).spawn(move || with_default(&subscriber, run));
    signals.thread_set_mask()?;
    thread
}
