//! Why the system refused a call: a sandbox that denies it, or a limit of processes.

use crate::probe::limits::processes;
use crate::sys::denied_calls::{DeniedCall, denied_calls, is_denial};
use std::io;
use std::path::Path;

/// The reason for the end of an error's text, `; this sandbox denies ...`; empty: the error says all that is known.
pub fn reason(error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(libc::EAGAIN) => format!("; {}", processes::describe_limits(Path::new("/"))),
        _ => of_denial(error),
    }
}

/// The same for an error that may also mean that there is nothing to read.
pub fn of_denial(error: &io::Error) -> String {
    if error.raw_os_error().is_some_and(is_denial) { of_sandbox() } else { String::new() }
}

/// The same, if it is a sandbox that denies calls without which no job starts.
pub fn of_sandbox() -> String {
    let needed: Vec<_> = denied_calls().into_iter().filter(|call| call.is_needed).collect();
    if needed.is_empty() {
        return String::new();
    }
    format!("; this sandbox denies {}, which rlaunch needs: {WAY_OUT}", list(&needed))
}

/// What to do about denied calls.
pub const WAY_OUT: &str =
    "allow that in the seccomp profile of the container, or in SystemCallFilter= of the systemd unit";

/// `memfd_create(2) (EPERM), pidfd_open(2) (ENOSYS)`.
pub fn list<'a>(calls: impl IntoIterator<Item = &'a DeniedCall>) -> String {
    calls.into_iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}
