//! What remains of a run, and who is to blame.

use crate::model::Exit;
use std::time::Duration;

/// How the job ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Every rank ended with code 0.
    Completed,
    /// A rank failed of itself; the first to do so.
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
    /// A signal from outside stopped it before anything had failed.
    Stopped {
        /// The signal.
        signal: i32,
    },
}

/// One rank's end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RankReport {
    /// How it ended; `None` if it never ran.
    pub exit: Option<Exit>,
    /// Why it could not be started.
    pub not_started: Option<String>,
    /// The launcher had signalled it before it ended.
    pub told: bool,
    /// How long it lived.
    pub lived: Option<Duration>,
}

/// The whole job's end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// The verdict.
    pub outcome: Outcome,
    /// By local rank.
    pub ranks: Vec<RankReport>,
    /// When it was over.
    pub at: Duration,
}

impl Report {
    /// Local ranks that the launcher stopped because of somebody else.
    pub fn victims(&self) -> Vec<usize> {
        let hit = |r: &RankReport| r.told && r.exit.is_some_and(|e| !e.is_success());
        (0..self.ranks.len()).filter(|&i| hit(&self.ranks[i])).collect()
    }
}
