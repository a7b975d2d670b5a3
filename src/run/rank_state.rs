//! The process of one rank, as the launcher knows it.

use crate::model::Exit;
use crate::probe::limits::rank_limits::RankLimits;
use crate::report::cause::uncaught::{RankNotes, UncaughtException};
use crate::sys::process::pidfd::ResourceUsage;
use std::time::Duration;

/// The present process of one rank.
#[derive(Clone, Debug, Default)]
pub struct RankState {
    /// Its process id; `None` if it has not run.
    pub pid: Option<i32>,
    /// Its start time in clock ticks since boot.
    pub started: u64,
    /// The attempt that it belongs to.
    pub attempt: u32,
    /// Offset in its log at which its output starts. While its log is rotated: the offset before anything was removed
    /// from the log's beginning.
    pub log_start: u64,
    /// Where its log ended when the first rank failed.
    pub log_end_at_failure: Option<u64>,
    /// The exception that nothing caught, as it was noted when the rank was asked to stop or, if it was not, when it ended.
    pub uncaught: UncaughtException,
    /// What its Python has noted beside that, read at its end.
    pub notes: RankNotes,
    /// Its limits, read at its end.
    pub limits: RankLimits,
    /// Its exit; `None` while it lives.
    pub exit: Option<Exit>,
    /// When it was reaped (`clock::now`).
    pub ended_at: Option<Duration>,
    /// Whether it was sent a signal to end before it did.
    pub signalled: bool,
    /// Why the launcher sent it SIGABRT while the others ran, if it did: a sentence.
    pub aborted: Option<String>,
    /// Since when the ranks had been silent that were aborted because of a hang in which none stood out (`clock::now`), if it is one of them.
    pub aborted_together: Option<Duration>,
    /// What it has used, including children that it waited for; `None` while it lives, or if it is not known.
    pub usage: Option<ResourceUsage>,
}

impl RankState {
    /// Whether this exit is by a signal that the launcher sent it while the others ran. A handler of SIGABRT may have made it
    /// another exit.
    pub fn was_ended_by_launcher(&self, exit: Exit) -> bool {
        self.aborted.is_some() && matches!(exit, Exit::Signal(libc::SIGABRT | libc::SIGKILL))
    }

    /// The exit that its error was about to make of it, if it was sent SIGTERM while its interpreter ended. `has_failed`: it is known to
    /// have failed; otherwise its Python has to have noted an exception.
    pub fn exit_of_error(&self, has_failed: bool) -> Option<Exit> {
        let is_stopped = self.signalled && self.exit == Some(Exit::Signal(libc::SIGTERM));
        let has_raised = match &self.uncaught {
            UncaughtException::Raised(noted) => noted.fault.what != "KeyboardInterrupt",
            UncaughtException::Unknown | UncaughtException::None => false,
        };
        (is_stopped && (has_failed || has_raised)).then_some(Exit::Code(1))
    }

    /// The exit by which its error is looked for: after an exception or `sys.exit`, SIGABRT was the
    /// launcher's answer to a rank that did not exit.
    pub fn own_exit(&self, exit: Exit) -> Exit {
        let left_with =
            self.notes.exit_call.as_ref().filter(|_| self.notes.has_left).map(|(status, _)| Exit::Code(*status));
        match (&self.aborted, &self.uncaught, left_with) {
            (None, ..) => exit,
            (Some(_), UncaughtException::Raised(_), _) => Exit::Code(1),
            (Some(_), _, left_with) => left_with.unwrap_or(exit),
        }
    }
}
