//! Ends this process without running the exit handlers of a host program.

use std::panic::{AssertUnwindSafe, catch_unwind};

/// The exit status of a launcher process that panicked.
const PANICKED: i32 = 70;

/// Runs `body` and ends this process at once with the status that it returns. For a process that was forked from a Python
/// program, whose exit handlers and buffers must not run twice.
pub fn end(body: impl FnOnce() -> i32) -> ! {
    let status = catch_unwind(AssertUnwindSafe(body)).unwrap_or(PANICKED);
    // SAFETY: _exit takes an integer and does not return.
    unsafe { libc::_exit(status) }
}
