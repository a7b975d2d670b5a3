//! This process.

use std::panic::{AssertUnwindSafe, catch_unwind};

/// The status of a process of ours that panicked.
const PANICKED: i32 = 70;

/// Runs `body` and ends this process at once with the status it returns: for a process that was forked
/// off a Python program, whose exit handlers, buffers and unwinding are not ours to run.
pub fn end(body: impl FnOnce() -> i32) -> ! {
    let status = catch_unwind(AssertUnwindSafe(body)).unwrap_or(PANICKED);
    // SAFETY: _exit takes an integer and does not return.
    unsafe { libc::_exit(status) }
}
