//! What follows an attempt that is over: another one, or the report of this node.

use super::{Supervisor, SupervisorPhase};
use crate::supervise::child::{ChildState, SupervisedChild};
use crate::supervise::event::{Effect, ProgressNote};
use crate::supervise::report::{AttemptReport, FailedRank, NodeOutcome, NodeReport};
use crate::supervise::restart::NoRestart;
use crate::supervise::stop::{Reasons, StopReason, VerdictState};
use crate::supervise::timer::Timer;
use std::time::Duration;

impl Supervisor {
    /// Restarts or finishes once the attempt stops and no child is alive or being started.
    pub(super) fn restart_or_finish(&mut self, now: Duration, effects: &mut Vec<Effect>) {
        let any_in = |state| self.children.iter().any(|c| c.state == state);
        if any_in(ChildState::Alive) || any_in(ChildState::Starting) {
            return;
        }
        self.last_call.disarm();
        if let Some(Reasons {
            first: StopReason::RankFailed(rank, exit), verdict: verdict @ VerdictState::None, ..
        }) = &mut self.reasons
        {
            *verdict = VerdictState::Awaited;
            self.timer.disarm();
            effects.push(Effect::Judge(*rank, *exit));
        }
        if matches!(self.reasons, Some(Reasons { verdict: VerdictState::Awaited, .. })) {
            return;
        }
        match self.next_attempt(now) {
            Ok((ended, delay)) => {
                let (attempt, of) = (self.attempt + 1, self.restarts.policy.max_restart);
                self.phase = SupervisorPhase::Backoff(ended);
                self.reasons = None;
                self.timer.arm(now, delay);
                if let Some(culprit) = ended.failure {
                    let restart = self.restarts.made();
                    effects.push(Effect::Note(ProgressNote::Restarting { attempt, restart, of, culprit, delay }));
                }
            }
            Err(why) => {
                self.phase = SupervisorPhase::Finished;
                (self.timer, self.last_call) = (Timer::default(), Timer::default());
                if let Some(why) = why {
                    effects.push(Effect::Note(ProgressNote::NotRestarting { why }));
                }
                effects.push(Effect::Finish(self.report(now, why)));
            }
        }
    }

    /// The rank is known that is to blame for the end of the attempt.
    pub(super) fn judged(&mut self, now: Duration, culprit: FailedRank, effects: &mut Vec<Effect>) {
        if let Some(Reasons { verdict: verdict @ VerdictState::Awaited, .. }) = &mut self.reasons {
            *verdict = VerdictState::Known(culprit);
            self.restart_or_finish(now, effects);
        }
    }

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
            StopReason::RankFailed(local_rank, exit) => {
                let culprit = reasons.verdict.culprit((local_rank, exit));
                let (failed, decisive) = (culprit.local_rank, culprit.decisive);
                let delay = self.restarts.decide(now, self.attempt + 1, failed, decisive).map_err(Some)?;
                Ok((ended(Some(culprit)), delay))
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
            Some(StopReason::RankFailed(local_rank, exit)) => {
                let verdict = self.reasons.map_or(VerdictState::None, |reasons| reasons.verdict);
                NodeOutcome::Failed(verdict.culprit((local_rank, exit)))
            }
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
