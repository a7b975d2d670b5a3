//! Threads that take no signals, and calls that may hang.

use crossbeam_channel::bounded;
use nix::sys::signal::{SigSet, SigmaskHow};
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;
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

/// Calls of `within` that may hang at once.
const MOST_HANGING: usize = 4;
static RUNNING: AtomicUsize = AtomicUsize::new(0);

/// What a call returns that may hang, such as one that looks at a file of a server that is gone. `None`: it has not ended in this time,
/// it has panicked, or too many hang. It goes on, on a thread of its own.
pub fn within<T: Send + 'static>(limit: Duration, call: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    struct Place;
    impl Drop for Place {
        fn drop(&mut self) {
            RUNNING.fetch_sub(1, Ordering::Relaxed);
        }
    }
    let place = Place;
    if RUNNING.fetch_add(1, Ordering::Relaxed) >= MOST_HANGING {
        return None;
    }
    let (done, result) = bounded(1);
    let run = move || {
        let returned = call();
        drop(place);
        // The caller may have given up.
        let _ = done.send(returned);
    };
    spawn("rlaunch-slow", run).ok()?;
    result.recv_timeout(limit).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crossbeam_channel::Receiver;

    #[test]
    fn calls_that_hang_are_left_and_their_number_is_limited() {
        let (go_on, hangs) = bounded::<()>(0);
        let hang = |hangs: &Receiver<()>| {
            let hangs = hangs.clone();
            within(Duration::ZERO, move || hangs.recv().is_ok())
        };
        assert_eq!((0..MOST_HANGING).filter_map(|_| hang(&hangs)).count(), 0);
        let limit = Duration::from_secs(60);
        assert_eq!(within(limit, || 7), None);
        drop(go_on);
        let mut last = None;
        while last.is_none() {
            std::thread::yield_now();
            last = within(limit, || 7);
        }
        assert_eq!(last, Some(7));
    }
}
