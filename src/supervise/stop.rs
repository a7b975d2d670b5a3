//! Reasons to stop, in order of priority.

use crate::model::Exit;
use crate::supervise::report::FailedRank;
use std::time::Duration;

/// How long the supervisor waits for a child after SIGKILL. A process that the kernel does not release
/// (state D) is abandoned then.
pub const KILL_PATIENCE: Duration = Duration::from_secs(2);

/// The longest time before SIGKILL at which a stop signal that was held back is sent.
const LAST_CALL: Duration = Duration::from_secs(5);

/// How long before the end of a grace period processes get a stop signal that was held back: ranks after a notice of preemption, and
/// the process groups of ranks whose main process alone has it.
pub fn last_call(grace: Duration) -> Duration {
    LAST_CALL.min(grace / 4)
}

/// A reason to stop the ranks of this node.
#[derive(Clone, Copy, Debug)]
pub enum StopReason {
    /// All children but the servers have exited successfully.
    Done,
    /// A user asked for another attempt.
    Restart,
    /// This local rank failed, with this exit.
    RankFailed(usize, Exit),
    /// This local rank could not be started.
    StartFailed(usize),
    /// The nodes of the job have changed, or another node has failed.
    Regroup,
    /// This stop signal came from outside.
    Signal(i32),
    /// The launcher process was killed.
    LauncherKilled,
}

impl StopReason {
    /// Of several reasons, the one with the highest priority decides whether a restart follows.
    fn priority(self) -> u8 {
        match self {
            StopReason::Done => 0,
            StopReason::Restart => 1,
            StopReason::RankFailed(..) => 2,
            StopReason::StartFailed(_) => 3,
            StopReason::Regroup => 4,
            StopReason::Signal(_) => 5,
            StopReason::LauncherKilled => 6,
        }
    }

    /// Whether this node reports it to the other nodes at once. They learn of other reasons from the state of the job.
    pub fn is_reported_to_nodes(self) -> bool {
        matches!(self, StopReason::Restart | StopReason::RankFailed(..) | StopReason::Signal(_))
    }

    /// Whether a rank failed or could not be started.
    pub fn is_failure(self) -> bool {
        matches!(self, StopReason::RankFailed(..) | StopReason::StartFailed(_))
    }
}

/// Which rank is to blame for the end of an attempt that a rank's failure ended.
#[derive(Clone, Copy, Debug)]
pub(super) enum VerdictState {
    /// The driver has not been asked.
    None,
    /// The driver has been asked, once all children had ended.
    Awaited,
    /// This one.
    Known(FailedRank),
}

impl VerdictState {
    /// The rank to blame; as long as it is not known, the one that ended first with this exit.
    pub fn culprit(self, (local_rank, exit): (usize, Exit)) -> FailedRank {
        match self {
            Self::Known(culprit) => culprit,
            Self::None | Self::Awaited => FailedRank::ended_first(local_rank, exit),
        }
    }
}

/// The reasons of one attempt that matter.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reasons {
    /// The first in time: it determines the outcome and starts the grace period.
    pub first: StopReason,
    /// The one with the highest priority: it determines what follows.
    pub decisive: StopReason,
    /// If the first one is a rank's failure: whose it was.
    pub verdict: VerdictState,
}

impl Reasons {
    /// Adds a reason. Of two with the same priority, the older one stays.
    pub fn with(reasons: Option<Self>, reason: StopReason) -> Self {
        let alone = Self { first: reason, decisive: reason, verdict: VerdictState::None };
        let Some(before) = reasons else { return alone };
        let decisive = if reason.priority() > before.decisive.priority() { reason } else { before.decisive };
        Self { decisive, ..before }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_reason_stays_and_the_highest_priority_decides() {
        let failed = |rank| StopReason::RankFailed(rank, Exit::Code(1));
        let all = [failed(2), failed(7), StopReason::Signal(15), StopReason::Done];
        let reasons = all.into_iter().fold(None, |reasons, one| Some(Reasons::with(reasons, one)));
        let Some(Reasons { first: StopReason::RankFailed(2, _), decisive: StopReason::Signal(15), .. }) = reasons
        else {
            panic!("{reasons:?}")
        };
        let twice = Reasons::with(Some(Reasons::with(None, failed(2))), failed(7));
        assert!(matches!(twice.decisive, StopReason::RankFailed(2, _)), "{twice:?}");
    }

    #[test]
    fn other_nodes_learn_at_once_of_a_restart_a_failure_or_a_signal() {
        let failed = StopReason::RankFailed(0, Exit::Code(1));
        let of_others = [StopReason::Done, StopReason::StartFailed(0), StopReason::Regroup, StopReason::LauncherKilled];
        assert!([StopReason::Restart, failed, StopReason::Signal(15)].iter().all(|one| one.is_reported_to_nodes()));
        assert!(!of_others.iter().any(|one| one.is_reported_to_nodes()));
        assert!(failed.is_failure() && StopReason::StartFailed(0).is_failure());
        assert!(!StopReason::Signal(15).is_failure());
    }
}
