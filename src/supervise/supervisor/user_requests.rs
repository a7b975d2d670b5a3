//! What a user asks for: the end of the job, or another attempt.

use super::{Supervisor, SupervisorPhase};
use crate::supervise::event::{Effect, ProgressNote};
use crate::supervise::stop::StopReason;
use std::time::Duration;

impl Supervisor {
    pub(super) fn stop_signalled(&mut self, now: Duration, signal: i32, effects: &mut Vec<Effect>) {
        self.resume(now, effects);
        let reason = StopReason::Signal(signal);
        match self.phase {
            SupervisorPhase::Finished => {}
            SupervisorPhase::Killing => self.add_reason(reason),
            // A signal during the stop after a failure is the first one.
            SupervisorPhase::Pending
            | SupervisorPhase::Running
            | SupervisorPhase::AwaitingServers
            | SupervisorPhase::Stopping
            | SupervisorPhase::Backoff(_) => {
                let grace = self.time_to_end(now, self.grace);
                effects.push(Effect::Note(ProgressNote::Stopping { signal, living: self.living(), grace }));
                self.stop(now, reason, effects);
            }
        }
    }

    pub(super) fn stop_again(&mut self, now: Duration, signal: i32, effects: &mut Vec<Effect>) {
        if self.phase != SupervisorPhase::Stopping || !self.is_stopped_by_signal() {
            return self.stop_signalled(now, signal, effects);
        }
        self.resume(now, effects);
        effects.push(Effect::Note(ProgressNote::Forced { living: self.living() }));
        self.kill(now, effects);
    }

    pub(super) fn limit_grace(&mut self, now: Duration, grace: Duration) {
        self.grace = self.grace.min(grace);
        if self.phase == SupervisorPhase::Stopping {
            self.limit_stop(now, grace);
        }
    }

    /// Whether a signal has begun the stop, or come meanwhile. The loss of the launcher leaves only such a stop its grace period.
    pub(super) fn is_stopped_by_signal(&self) -> bool {
        let decisive = self.reasons.map(|reasons| reasons.decisive);
        matches!(decisive, Some(StopReason::Signal(_) | StopReason::LauncherKilled))
    }

    /// Whether another attempt follows where a user asks for it now. The end of an attempt that has failed is left to the policy.
    pub fn takes_restart(&self) -> bool {
        match self.phase {
            SupervisorPhase::Pending | SupervisorPhase::Finished => false,
            SupervisorPhase::Stopping | SupervisorPhase::Killing => {
                self.reasons.is_some_and(|reasons| matches!(reasons.decisive, StopReason::Restart))
            }
            SupervisorPhase::Running | SupervisorPhase::AwaitingServers | SupervisorPhase::Backoff(_) => true,
        }
    }

    pub(super) fn restart_requested(&mut self, now: Duration, grace: Option<Duration>, effects: &mut Vec<Effect>) {
        if !self.takes_restart() || self.phase == SupervisorPhase::Killing {
            return;
        }
        self.resume(now, effects);
        let grace = self.time_to_end(now, grace.map_or(self.grace, |grace| grace.min(self.grace)));
        match self.phase {
            SupervisorPhase::Stopping => self.limit_stop(now, grace),
            SupervisorPhase::Backoff(_) => self.timer.arm(now, Duration::ZERO),
            _ => {
                let (attempt, living) = (self.attempt + 1, self.living());
                effects.push(Effect::Note(ProgressNote::RestartRequested { attempt, living, grace }));
                self.stop_within(now, StopReason::Restart, grace, effects);
            }
        }
    }
}
