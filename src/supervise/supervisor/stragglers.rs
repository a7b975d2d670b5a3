//! Aborts ranks that still run long after another one has exited successfully (`--straggler_timeout`).

use super::{Supervisor, SupervisorPhase};
use crate::model::Exit;
use crate::supervise::child::{ChildState, SupervisedChild};
use crate::supervise::event::{AbortReason, ChildId, Effect};
use crate::supervise::lifecycle::Lifecycle;
use std::time::Duration;

impl Supervisor {
    pub(super) fn note_first_done(&mut self, now: Duration, ended: &[(ChildId, Exit)]) {
        if self.first_done.is_some() {
            return;
        }
        let is_done = |local: &usize| {
            let child = self.children.get(*local);
            child.is_some_and(|child| child.lifecycle == Lifecycle::Main && child.exited_successfully())
        };
        self.first_done = ended.iter().map(|(id, _)| id.local_rank).find(is_done);
        self.limit_stragglers(now);
    }

    /// The time of the others begins, once, when the first rank of an attempt has exited successfully and the last one has been started.
    pub(super) fn limit_stragglers(&mut self, now: Duration) {
        let (Some(limit), Some(_)) = (self.straggler_timeout, self.first_done) else { return };
        let is_unstarted = |child: &SupervisedChild| {
            child.lifecycle == Lifecycle::Main && matches!(child.state, ChildState::Waiting | ChildState::Starting)
        };
        if self.phase == SupervisorPhase::Running
            && !self.are_stragglers_limited
            && !self.children.iter().any(is_unstarted)
        {
            self.are_stragglers_limited = true;
            self.timer.arm(now, limit);
        }
    }

    pub(super) fn abort_stragglers(&mut self, now: Duration, effects: &mut Vec<Effect>) {
        let (Some(limit), Some(first)) = (self.straggler_timeout, self.first_done) else { return };
        let is_main = |local: &usize| self.children[*local].lifecycle == Lifecycle::Main;
        let living: Vec<usize> = self.living().into_iter().filter(is_main).collect();
        self.abort(now, &living, AbortReason::Straggler { first, limit }, effects);
    }
}
