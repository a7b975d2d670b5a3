//! Why a job stops, in order of weight, and how long it may take.

use crate::model::Exit;
use std::time::Duration;

/// How long after SIGKILL a child is waited for. A process that the kernel does not let go (state D)
/// is left behind then.
pub const KILL_PATIENCE: Duration = Duration::from_secs(2);

/// A reason to stop. Only the kind counts when two are compared.
#[derive(Clone, Copy, Debug)]
pub enum StopReason {
    /// All that is waited for has ended well.
    Done,
    /// This local rank ended badly, and how.
    RankFailed(usize, Exit),
    /// This local rank could not be started.
    StartFailed(usize),
    /// The other nodes want it.
    Regroup,
    /// A stop signal came from outside.
    Asked(i32),
    /// The process that stands in front of this one for the user was killed.
    HostLost,
}

impl StopReason {
    fn weight(self) -> u8 {
        match self {
            StopReason::Done => 0,
            StopReason::RankFailed(..) => 1,
            StopReason::StartFailed(_) => 2,
            StopReason::Regroup => 3,
            StopReason::Asked(_) => 4,
            StopReason::HostLost => 5,
        }
    }

    /// Whether it came from the ranks, not from outside.
    pub fn is_failure(self) -> bool {
        matches!(self, StopReason::RankFailed(..) | StopReason::StartFailed(_))
    }
}

impl PartialEq for StopReason {
    fn eq(&self, other: &Self) -> bool {
        self.weight() == other.weight()
    }
}

impl Eq for StopReason {}

impl PartialOrd for StopReason {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.weight().cmp(&other.weight()))
    }
}

/// All the reasons that an attempt had, in two words.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reasons {
    /// The first in time, which takes the blame and starts the grace.
    pub first: StopReason,
    /// The weightiest, which decides what follows.
    pub weightiest: StopReason,
}

impl Reasons {
    /// With one more. Of two with the same weight the older one stays.
    pub fn with(reasons: Option<Self>, reason: StopReason) -> Self {
        let Some(Self { first, weightiest }) = reasons else { return Self { first: reason, weightiest: reason } };
        Self { first, weightiest: if weightiest < reason { reason } else { weightiest } }
    }
}
