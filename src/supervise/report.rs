//! Report of this node: the outcome, the culprit, and how each rank ended.

use super::restart::NoRestart;
use crate::model::Exit;
use std::time::Duration;

/// How the ranks of this node ended. Of several reasons to stop, the first in time counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeOutcome {
    /// Every rank but the servers exited successfully. What happened while the servers were stopped changes
    /// nothing: neither their exit statuses, nor a signal, nor a killed launcher.
    Completed,
    /// A rank of the last attempt failed by itself.
    Failed(FailedRank),
    /// A rank could not be started.
    NotStarted {
        /// Its local rank.
        local_rank: usize,
    },
    /// The other nodes stopped it before anything had failed here.
    Regrouped,
    /// A signal from outside stopped it before anything had failed, or during the delay before a restart.
    Stopped {
        /// The signal.
        signal: i32,
    },
    /// The launcher process was killed before anything had failed, or during the delay before a restart.
    LauncherKilled,
}

/// The rank that is to blame for the end of an attempt (`report/cause/verdict.rs`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FailedRank {
    /// Its number on this node.
    pub local_rank: usize,
    /// How it ended.
    pub exit: Exit,
    /// The exit that decides about restarts and the exit status: its own, or that of the rank that ended first if this one was still
    /// exiting when it was stopped.
    pub decisive: Exit,
}

impl FailedRank {
    /// The rank that ended first, which failed first.
    pub fn ended_first(local_rank: usize, exit: Exit) -> Self {
        Self { local_rank, exit, decisive: exit }
    }
}

/// How one rank ended, in the last attempt; for a `Lifecycle::First`, in the attempt in which it exited successfully.
/// Times are on the clock of the events.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RankReport {
    /// How it ended; `None` if it never ran, or was abandoned.
    pub exit: Option<Exit>,
    /// Why it could not be started.
    pub start_error: Option<String>,
    /// The supervisor had signalled it before it ended.
    pub signalled: bool,
    /// The supervisor had sent it SIGKILL.
    pub killed: bool,
    /// It was alive `KILL_PATIENCE` after SIGKILL, and was abandoned.
    pub abandoned: bool,
    /// When it began to run.
    pub started_at: Option<Duration>,
    /// How long it ran; `None` if it never ran, or was abandoned.
    pub lived: Option<Duration>,
}

/// An attempt that was followed by another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttemptReport {
    /// The rank that failed first; `None`: a user asked for another attempt.
    pub failure: Option<FailedRank>,
    /// When its first rank was started.
    pub began: Duration,
    /// When its last rank had ended.
    pub ended: Duration,
}

/// Report of all attempts on this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeReport {
    /// How the ranks ended.
    pub outcome: NodeOutcome,
    /// One report a rank, by local rank, of the last attempt.
    pub ranks: Vec<RankReport>,
    /// The attempts before the last.
    pub attempts: Vec<AttemptReport>,
    /// Number of restarts.
    pub restarts: u32,
    /// Whether the last attempt was stopped because a user asked for another one.
    pub restart_requested: bool,
    /// Why no restart followed the last failure; `None` if nothing had failed or restarts are disabled.
    pub no_restart: Option<NoRestart>,
    /// When the node was finished.
    pub at: Duration,
}

impl NodeReport {
    /// Local ranks that did not exit successfully after the supervisor had signalled them.
    pub fn victims(&self) -> Vec<usize> {
        let hit = |r: &RankReport| r.signalled && r.exit.is_some_and(|e| !e.is_success());
        (0..self.ranks.len()).filter(|&i| hit(&self.ranks[i])).collect()
    }
}
