//! What the launcher says in a line of its own on stderr, and how it ends when nothing can run.

use super::record::Record;
use super::{exit_code, message};
use std::fmt::Display;

/// An end before any rank was started: what to say, and the exit status.
pub struct Refusal(pub String, pub i32);

impl Refusal {
    /// Says it to whoever there is; the exit status.
    pub fn told(self, record: &mut Record) -> i32 {
        let Self(text, status) = self;
        complain(&text);
        record.write_error(&text, status);
        status
    }
}

/// The command line or a variable cannot be used.
pub fn usage(error: impl Display) -> Refusal {
    Refusal(error.to_string(), exit_code::USAGE)
}

/// The machine is not as the job needs it.
pub fn unmet(error: impl Display) -> Refusal {
    Refusal(error.to_string(), exit_code::PREFLIGHT)
}

/// The one line that says why nothing runs.
pub fn complain(text: &str) {
    message::to_stderr(format!("rlaunch: error: {text}\n").as_bytes());
}

/// A line for people, whatever the log level.
pub fn tell(line: &str) {
    message::to_stderr(format!("rlaunch: {line}\n").as_bytes());
}
