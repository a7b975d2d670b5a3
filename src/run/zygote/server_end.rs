//! The end of the preload server's process.

use crate::model::Exit;
use crate::sys::clock;
use crate::sys::process::child::Child;
use crate::sys::process::pidfd;
use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

/// How long the server may take to end after it has closed its socket.
pub(super) const ENDING: Duration = Duration::from_millis(100);

/// Kills it unless it ends by itself within `ENDING`. Only while it imports: no rank runs then.
pub(super) fn end_soon(child: &Child) {
    if !await_end(child, ENDING) {
        let _ = child.signal(libc::SIGKILL);
    }
}

/// Waits until it has ended. Whether it has.
pub(super) fn await_end(child: &Child, patience: Duration) -> bool {
    let until = clock::now().saturating_add(patience);
    loop {
        let left = until.saturating_sub(clock::now());
        // A wait also returns when a signal handler of this process has run.
        if pidfd::await_any(&[child.as_fd()], left) {
            return true;
        }
        if left.is_zero() {
            return false;
        }
    }
}

/// Whether it has ended. True also if it cannot be reaped yet.
pub(super) fn has_ended(child: &Child) -> bool {
    pidfd::await_any(&[child.as_fd()], Duration::ZERO)
}

/// Reaps it if it has ended, and returns how. The status is lost if a debugger that traces it has not waited for it: this
/// process cannot reap it yet, and its pidfd would wake each wait at once.
pub(super) fn exit_of(child: &Child) -> io::Result<Option<Exit>> {
    let has_ended = has_ended(child);
    let exit = child.try_exit()?;
    if exit.is_none() && has_ended {
        // The rest of its group.
        let _ = child.signal(libc::SIGKILL);
    }
    Ok(exit.or(has_ended.then_some(Exit::Lost)))
}
