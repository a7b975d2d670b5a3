//! Why a job stops before all its ranks have ended well, in order of weight.

/// A reason to stop. A new one replaces the present one only if it is greater; only the kind counts.
#[derive(Clone, Copy, Debug)]
pub enum StopReason {
    /// This local rank ended badly.
    RankFailed(usize),
    /// This local rank could not be started.
    StartFailed(usize),
    /// A stop signal came from outside.
    Asked(i32),
}

impl StopReason {
    fn weight(self) -> u8 {
        match self {
            StopReason::RankFailed(_) => 0,
            StopReason::StartFailed(_) => 1,
            StopReason::Asked(_) => 2,
        }
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
