//! The process groups of ranks in a stop. A main process that handles the stop signal gets it alone, because its helpers (data loader
//! workers, loggers) have to live while it saves. They get it when it has ended or, so that they can save something as well, at the last
//! call: `last_call` before SIGKILL.

use super::{Supervisor, SupervisorPhase};
use crate::supervise::child::{ChildState, GroupState, SupervisedChild};
use crate::supervise::event::{ChildId, Effect, MainProcess, Recipients};
use crate::supervise::stop::last_call;
use std::time::Duration;

impl Supervisor {
    pub(super) fn signalled_alone(&mut self, now: Duration, id: ChildId, main: MainProcess) {
        let is_stopping = self.phase == SupervisorPhase::Stopping;
        let Some(child) = self.child(id, &ChildState::Alive).filter(|_| is_stopping) else { return };
        child.group = GroupState::HeldBack(main);
        if !self.last_call.is_armed() {
            let left = self.timer.left(now).unwrap_or_default();
            self.last_call.arm(now, left - last_call(left));
        }
    }

    pub(super) fn main_process_ended(&mut self, now: Duration, id: ChildId, effects: &mut Vec<Effect>) {
        let Some(child) = self.child(id, &ChildState::Alive) else { return };
        let GroupState::HeldBack(main) = child.group else { return };
        self.send(id.local_rank, self.stop_signal(), Recipients::Rest, effects);
        if main == MainProcess::Program {
            let mut timer = self.timer.unarmed();
            timer.arm(now, last_call(self.grace));
            self.children[id.local_rank].group = GroupState::Leftover(timer);
        }
    }

    pub(super) fn make_last_call(&mut self, now: Duration, effects: &mut Vec<Effect>) {
        if self.last_call.due().is_none_or(|at| now < at) {
            return;
        }
        self.last_call.disarm();
        let is_held_back = |rank: &usize| matches!(self.children[*rank].group, GroupState::HeldBack(_));
        let ranks: Vec<usize> = self.living().into_iter().filter(is_held_back).collect();
        for rank in ranks {
            self.send(rank, self.stop_signal(), Recipients::Rest, effects);
        }
    }

    /// Ends the processes that a main process has left, once their time is over.
    pub(super) fn end_leftovers(&mut self, now: Duration, effects: &mut Vec<Effect>) {
        let is_due = |child: &SupervisedChild| child.leftover_due().is_some_and(|at| at <= now);
        let ranks: Vec<usize> = (0..self.children.len()).filter(|rank| is_due(&self.children[*rank])).collect();
        for rank in ranks {
            self.children[rank].group = GroupState::Reached;
            effects.push(Effect::EndLeftovers(self.id(rank)));
        }
    }

    /// The ranks have at most this time from now on.
    pub(super) fn limit_stop(&mut self, now: Duration, most: Duration) {
        self.timer.limit(now, most);
        self.last_call.limit(now, most - last_call(most));
    }
}
