//! What remains of a run, and who is to blame.

use super::NoRestart;
use crate::model::Exit;
use std::time::Duration;

/// How the job ended: of several reasons the first in time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Every rank but the servers ended with code 0. Whatever came while servers were ended then changes
    /// nothing: not how they went, nor a signal, nor a lost host.
    Completed,
    /// A rank of the last attempt failed of itself; the first to do so.
    Failed {
        /// Its local rank.
        culprit: usize,
        /// How it ended.
        exit: Exit,
    },
    /// A rank could not be started.
    NotStarted {
        /// Its local rank.
        local_rank: usize,
    },
    /// The other nodes had it stopped before anything had failed here.
    Regrouped,
    /// A signal from outside stopped it before anything had failed, or while it waited for a restart.
    Stopped {
        /// The signal.
        signal: i32,
    },
    /// The process in front of this one was killed before anything had failed, or while a restart was
    /// waited for.
    HostLost,
}

/// One rank's end, in the last attempt; that of a `Part::First` in the one in which it ended well. Times
/// are on the clock that the events had.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RankReport {
    /// How it ended; `None` if it never ran, or was abandoned.
    pub exit: Option<Exit>,
    /// Why it could not be started.
    pub not_started: Option<String>,
    /// The launcher had signalled it before it ended.
    pub told: bool,
    /// The launcher had sent it SIGKILL.
    pub killed: bool,
    /// It was still there `KILL_PATIENCE` after SIGKILL, and was left behind.
    pub abandoned: bool,
    /// When it began to run.
    pub started_at: Option<Duration>,
    /// How long it lived; `None` if it never ran, or was abandoned.
    pub lived: Option<Duration>,
}

/// An attempt that failed and was followed by another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttemptReport {
    /// The local rank that failed first.
    pub culprit: usize,
    /// How that ended.
    pub exit: Exit,
    /// When its first rank was started.
    pub began: Duration,
    /// When its last rank had ended.
    pub ended: Duration,
}

/// The whole job's end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// The verdict.
    pub outcome: Outcome,
    /// By local rank, of the last attempt.
    pub ranks: Vec<RankReport>,
    /// The attempts before the last.
    pub attempts: Vec<AttemptReport>,
    /// How many restarts there were.
    pub restarts: u32,
    /// Why no restart followed the last failure; `None` if nothing had failed, or none was asked for.
    pub no_restart: Option<NoRestart>,
    /// When it was over.
    pub at: Duration,
}

impl Report {
    /// Local ranks that did not end well when the launcher stopped them.
    pub fn victims(&self) -> Vec<usize> {
        let hit = |r: &RankReport| r.told && r.exit.is_some_and(|e| !e.is_success());
        (0..self.ranks.len()).filter(|&i| hit(&self.ranks[i])).collect()
    }
}
