//! Ends ranks that still run long after another one has exited successfully (`--straggler_timeout`). They are aborted, as for a hang, so
//! that their end is a failure of their own like any other.

use super::{Supervisor, SupervisorPhase};
use crate::model::Exit;
use crate::supervise::child::{ChildState, SupervisedChild};
use crate::supervise::event::{ChildId, Effect, ProgressNote};
use crate::supervise::lifecycle::Lifecycle;
use crate::supervise::stop::{KILL_PATIENCE, StopReason};
use std::time::Duration;

impl Supervisor {
    pub(super) fn note_first_done(&mut self, now: Duration, ended: &[(ChildId, Exit)]) {
        if self.straggler_timeout.is_none() || self.phase != SupervisorPhase::Running || self.first_done.is_some() {
            return;
        }
        let is_done = |local: &usize| {
            let child = self.children.get(*local);
            child.is_some_and(|child| child.lifecycle == Lifecycle::Main && child.exited_successfully())
        };
        self.first_done = ended.iter().map(|(id, _)| id.local_rank).find(is_done);
        self.limit_stragglers(now);
    }

    /// The time of the others begins when the first rank of an attempt has exited successfully and the last one has been started.
    pub(super) fn limit_stragglers(&mut self, now: Duration) {
        let (Some(limit), Some(_)) = (self.straggler_timeout, self.first_done) else { return };
        let is_unstarted = |child: &SupervisedChild| {
            child.lifecycle == Lifecycle::Main && matches!(child.state, ChildState::Waiting | ChildState::Starting)
        };
        if self.phase == SupervisorPhase::Running && !self.timer.is_armed() && !self.children.iter().any(is_unstarted) {
            self.timer.arm(now, limit);
        }
    }

    pub(super) fn abort_stragglers(&mut self, now: Duration, effects: &mut Vec<Effect>) {
        let (Some(limit), Some(first)) = (self.straggler_timeout, self.first_done) else { return };
        let is_main = |local: &usize| self.children[*local].lifecycle == Lifecycle::Main;
        let living: Vec<usize> = self.living().into_iter().filter(is_main).collect();
        if living.is_empty() {
            return;
        }
        self.phase = SupervisorPhase::EndingStragglers;
        self.timer.arm(now, self.grace);
        self.stragglers.clone_from(&living);
        // A stopped process ends by no other signal than SIGKILL.
        for signal in [libc::SIGABRT, libc::SIGCONT] {
            self.signal_stragglers(signal, effects);
        }
        effects.push(Effect::Note(ProgressNote::Stragglers { living, first, limit }));
    }

    pub(super) fn kill_stragglers(&mut self, now: Duration, effects: &mut Vec<Effect>) {
        self.phase = SupervisorPhase::KillingStragglers;
        self.timer.arm(now, KILL_PATIENCE);
        self.signal_stragglers(libc::SIGKILL, effects);
        effects.push(Effect::Note(ProgressNote::AbortIgnored { living: self.living_stragglers() }));
    }

    /// The kernel does not release one: the attempt has failed by it.
    pub(super) fn give_stragglers_up(&mut self, now: Duration, effects: &mut Vec<Effect>) {
        if let Some(local) = self.living_stragglers().first() {
            self.stop(now, StopReason::RankFailed(*local, Exit::Signal(libc::SIGKILL)), effects);
        }
    }

    /// Whether stragglers are being ended, and no other rank lives.
    pub(super) fn only_stragglers_are_left(&self) -> bool {
        use SupervisorPhase::{EndingStragglers, KillingStragglers};
        matches!(self.phase, EndingStragglers | KillingStragglers) && self.living() == self.living_stragglers()
    }

    fn living_stragglers(&self) -> Vec<usize> {
        let is_alive = |local: &usize| self.children[*local].state == ChildState::Alive;
        self.stragglers.iter().copied().filter(is_alive).collect()
    }

    fn signal_stragglers(&self, signal: i32, effects: &mut Vec<Effect>) {
        let forward = |local| Effect::ForwardSignal { child: self.id(local), signal };
        effects.extend(self.living_stragglers().into_iter().map(forward));
    }
}
