//! What follows an attempt that is over: another one, or the report of this node.

use super::{Supervisor, SupervisorPhase};
use crate::supervise::child::{ChildState, SupervisedChild};
use crate::supervise::report::{AttemptReport, NodeOutcome, NodeReport};
use crate::supervise::restart::NoRestart;
use crate::supervise::stop::StopReason;
use std::time::Duration;

impl Supervisor {
    /// Whether the present attempt stops for a failure after which another attempt may follow.
    pub fn may_restart(&self) -> bool {
        let reason = self.reasons.map(|reasons| reasons.decisive);
        !self.restarts.is_disabled() && matches!(reason, Some(StopReason::RankFailed(..)))
    }

    /// The attempt that is over and the delay before the next one, or why none follows. `Err(None)`: nothing has failed, or
    /// restarts are disabled.
    pub(super) fn next_attempt(&mut self, now: Duration) -> Result<(AttemptReport, Duration), Option<NoRestart>> {
        let in_backoff = matches!(self.phase, SupervisorPhase::Backoff(_));
        let is_followed = |first: StopReason| first.is_failure() || matches!(first, StopReason::Restart) || in_backoff;
        let reasons = self.reasons.filter(|reasons| is_followed(reasons.first)).ok_or(None)?;
        let any_abandoned = self.children.iter().any(|c| c.state == ChildState::Abandoned);
        let ended = |failure| AttemptReport { failure, began: self.began, ended: now };
        match reasons.decisive {
            // The rendezvous decides whether another round follows.
            StopReason::Restart if self.in_rounds => Err(None),
            StopReason::Restart if any_abandoned => Err(Some(NoRestart::Unkillable)),
            StopReason::Restart => Ok((ended(None), Duration::ZERO)),
            _ if self.restarts.is_disabled() => Err(None),
            StopReason::Done | StopReason::Regroup => Err(None),
            StopReason::StartFailed(_) => Err(Some(NoRestart::StartFailed)),
            StopReason::Signal(_) => Err(Some(NoRestart::Stopped)),
            StopReason::LauncherKilled => Err(Some(NoRestart::LauncherKilled)),
            StopReason::RankFailed(..) if self.forbids_restarts => Err(Some(NoRestart::Stopped)),
            StopReason::RankFailed(..) if any_abandoned => Err(Some(NoRestart::Unkillable)),
            StopReason::RankFailed(culprit, exit) => {
                let ended = ended(Some((culprit, exit)));
                let delay = self.restarts.decide(now, self.attempt + 1, culprit, exit).map_err(Some)?;
                Ok((ended, delay))
            }
        }
    }

    pub(super) fn report(&self, now: Duration, no_restart: Option<NoRestart>) -> NodeReport {
        // What came during the stop for another attempt tells why none follows.
        let reason = self.reasons.map(|reasons| match reasons.first {
            StopReason::Restart => reasons.decisive,
            first => first,
        });
        let outcome = match reason {
            None | Some(StopReason::Done) => NodeOutcome::Completed,
            Some(StopReason::RankFailed(culprit, exit)) => NodeOutcome::Failed { culprit, exit },
            Some(StopReason::StartFailed(local_rank)) => NodeOutcome::NotStarted { local_rank },
            Some(StopReason::Restart) if self.in_rounds => NodeOutcome::Regrouped,
            Some(StopReason::Restart) => NodeOutcome::Stopped { signal: libc::SIGTERM },
            Some(StopReason::Regroup) => NodeOutcome::Regrouped,
            Some(StopReason::Signal(signal)) => NodeOutcome::Stopped { signal },
            Some(StopReason::LauncherKilled) => NodeOutcome::LauncherKilled,
        };
        NodeReport {
            outcome,
            ranks: self.children.iter().map(SupervisedChild::report).collect(),
            attempts: self.attempts.clone(),
            restarts: self.attempt,
            restart_requested: matches!(self.reason(), Some(StopReason::Restart)),
            no_restart,
            at: now,
        }
    }
}
