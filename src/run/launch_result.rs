//! What remains of a launch on this node once all its ranks have ended.

use crate::model::ProcessLabel;
use crate::report::cause::verdict::Verdict;
use crate::run::multi_node::job_outcome::JobOutcome;
use crate::run::multi_node::membership::RoundStop;
use crate::run::output::console::Unshown;
use crate::run::rank_state::RankState;
use crate::run::record::journal::Journal;
use crate::run::sweep::{Leftover, SweepResult};
use crate::supervise::{NodeOutcome, NodeReport, RankReport};
use crate::sys::clock;
use std::collections::BTreeMap;
use std::time::Duration;

/// What remains of a launch.
pub struct LaunchResult {
    /// The supervisor's report.
    pub report: NodeReport,
    /// The processes of the last attempt, by local rank.
    pub processes: Vec<RankState>,
    /// The processes that each local rank left behind in all attempts, all of them killed.
    pub swept: Vec<Vec<Leftover>>,
    /// Output of the ranks that the console has not shown.
    pub unshown: Unshown,
    /// Bytes of output that are neither on the console nor in a log, by rank.
    pub lost: BTreeMap<ProcessLabel, u64>,
    /// Of how many logs the console left out a traceback of KeyboardInterrupt.
    pub interrupted: usize,
    /// Leftovers that belong to no rank in particular.
    pub rest: SweepResult,
    /// Why the other nodes stopped the round, if they did.
    pub round_stop: Option<RoundStop>,
    /// The outcome of the job with the other nodes.
    pub outcome: JobOutcome,
    /// The number of this node, where the nodes have some.
    pub node: Option<usize>,
    /// The verdict on the last attempt, if a rank failed in it.
    pub verdict: Option<Verdict>,
    /// The journal, for the last event.
    pub journal: Journal,
}

impl LaunchResult {
    /// Adds output that an earlier round has not shown.
    pub fn add_unshown(&mut self, earlier: Self) {
        self.unshown = earlier.unshown.and(self.unshown);
        for (rank, bytes) in earlier.lost {
            *self.lost.entry(rank).or_default() += bytes;
        }
    }

    /// The job failed by a rank of another node, not by one that failed here.
    pub fn disown_failure(&mut self) {
        if matches!(self.report.outcome, NodeOutcome::Failed { .. } | NodeOutcome::NotStarted { .. }) {
            self.report.outcome = NodeOutcome::Regrouped;
        }
    }

    /// When a rank ended, by the wall clock.
    pub fn ended(&self, local_rank: usize) -> Duration {
        // The supervisor's clock is monotonic; records have the wall clock.
        let RankReport { started_at, lived, .. } = &self.report.ranks[local_rank];
        let ended = started_at.unwrap_or_default() + lived.unwrap_or_default();
        clock::wall().saturating_sub(clock::now().saturating_sub(ended))
    }
}
