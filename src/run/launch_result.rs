//! What remains of a launch on this node once all its ranks have ended.

use crate::run::multi_node::job_outcome::JobOutcome;
use crate::run::multi_node::membership::RoundStop;
use crate::run::output::console::ShownMark;
use crate::run::ranks::RankState;
use crate::run::record::journal::Journal;
use crate::run::sweep::{Leftover, SweepResult};
use crate::supervise::NodeReport;

/// What remains of a launch.
pub struct LaunchResult {
    /// The supervisor's report.
    pub report: NodeReport,
    /// The processes of the last attempt, by local rank.
    pub processes: Vec<RankState>,
    /// The processes that each local rank left behind in all attempts, all of them killed.
    pub swept: Vec<Vec<Leftover>>,
    /// How much of the ranks' output the console has shown.
    pub shown: ShownMark,
    /// Leftovers that belong to no rank in particular.
    pub rest: SweepResult,
    /// Why the other nodes stopped the round, if they did.
    pub round_stop: Option<RoundStop>,
    /// The outcome of the job with the other nodes.
    pub outcome: JobOutcome,
    /// The journal, for the last event.
    pub journal: Journal,
}
