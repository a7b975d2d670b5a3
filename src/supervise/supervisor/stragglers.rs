//! Ends ranks that still run long after another one has exited successfully (`--straggler_timeout`). They are aborted, as for a hang, so
//! that their end is a failure of their own like any other.

use super::{Supervisor, SupervisorPhase};
use crate::model::Exit;
use crate::supervise::child::ChildState;
use crate::supervise::event::{ChildId, Effect, ProgressNote};
use crate::supervise::lifecycle::Lifecycle;
use crate::supervise::report::StragglerReport;
use std::time::Duration;

impl Supervisor {
    /// The time of the others begins when the first rank of an attempt has exited successfully.
    pub(super) fn note_first_done(&mut self, now: Duration, ended: &[(ChildId, Exit)]) {
        let Some(limit) = self.straggler_timeout else { return };
        if self.phase != SupervisorPhase::Running || self.first_done.is_some() {
            return;
        }
        let is_done = |local: &usize| {
            let child = self.children.get(*local);
            child.is_some_and(|child| child.lifecycle == Lifecycle::Main && child.exited_successfully())
        };
        self.first_done = ended.iter().map(|(id, _)| id.local_rank).find(is_done);
        if self.first_done.is_some() {
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
        self.stragglers = Some(StragglerReport { ranks: living.clone(), first, limit });
        // A stopped process ends by no other signal than SIGKILL.
        for signal in [libc::SIGABRT, libc::SIGCONT] {
            self.signal_stragglers(signal, effects);
        }
        effects.push(Effect::Note(ProgressNote::Stragglers { living, first, limit }));
    }

    pub(super) fn kill_stragglers(&self, effects: &mut Vec<Effect>) {
        self.signal_stragglers(libc::SIGKILL, effects);
    }

    fn signal_stragglers(&self, signal: i32, effects: &mut Vec<Effect>) {
        let ranks = self.stragglers.iter().flat_map(|stragglers| &stragglers.ranks);
        let living = ranks.filter(|local| self.children[**local].state == ChildState::Alive);
        effects.extend(living.map(|local| Effect::ForwardSignal { child: self.id(*local), signal }));
    }
}
