//! Ranks that are aborted while the others run. They get SIGABRT, and SIGKILL after the grace period. They do not count as signalled: their
//! end is a failure of their own like any other.

use super::Supervisor;
use crate::model::Exit;
use crate::supervise::child::{AbortedRank, ChildState, SupervisedChild};
use crate::supervise::event::{AbortReason, ChildId, Effect, ProgressNote};
use crate::supervise::stop::{KILL_PATIENCE, StopReason};
use crate::supervise::timer::Timer;
use std::time::Duration;

impl Supervisor {
    pub(super) fn abort_requested(
        &mut self,
        now: Duration,
        ranks: &[ChildId],
        reason: AbortReason,
        effects: &mut Vec<Effect>,
    ) {
        if self.is_running() && !self.is_suspended() {
            let of_attempt = ranks.iter().filter(|id| id.attempt == self.attempt);
            let ranks: Vec<usize> = of_attempt.map(|id| id.local_rank).collect();
            self.abort(now, &ranks, reason, effects);
        }
    }

    /// Aborts those of these ranks that are alive and are not aborted yet.
    pub(super) fn abort(&mut self, now: Duration, ranks: &[usize], reason: AbortReason, effects: &mut Vec<Effect>) {
        let known = self.aborted.len();
        for &local_rank in ranks {
            let is_alive = self.children.get(local_rank).is_some_and(|child| child.state == ChildState::Alive);
            if is_alive && !self.is_aborted(local_rank) {
                let mut timer = Timer::default();
                timer.arm(now, self.grace);
                self.aborted.push(AbortedRank { local_rank, was_killed: false, timer });
            }
        }
        let ranks: Vec<usize> = self.aborted[known..].iter().map(|rank| rank.local_rank).collect();
        if !ranks.is_empty() {
            // A stopped process ends by no other signal than SIGKILL.
            for signal in [libc::SIGABRT, libc::SIGCONT] {
                self.signal_leaders(&ranks, signal, effects);
            }
            effects.push(Effect::Note(ProgressNote::Aborting { ranks, reason }));
        }
    }

    /// Kills the aborted ranks whose grace period is over. If SIGKILL has not ended one, the kernel does not release it: the attempt has
    /// failed by it. Returns whether a deadline was due.
    pub(super) fn end_aborted(&mut self, now: Duration, effects: &mut Vec<Effect>) -> bool {
        let is_due = |rank: &AbortedRank| rank.timer.due().is_some_and(|at| at <= now);
        if let Some(stuck) = self.aborted.iter().find(|rank| rank.was_killed && is_due(rank)) {
            let reason = StopReason::RankFailed(stuck.local_rank, Exit::Signal(libc::SIGKILL));
            self.stop(now, reason, effects);
            return true;
        }
        let mut living = Vec::new();
        for rank in self.aborted.iter_mut().filter(|rank| is_due(rank)) {
            rank.was_killed = true;
            rank.timer.arm(now, KILL_PATIENCE);
            living.push(rank.local_rank);
        }
        if living.is_empty() {
            return false;
        }
        self.signal_leaders(&living, libc::SIGKILL, effects);
        effects.push(Effect::Note(ProgressNote::AbortIgnored { living }));
        true
    }

    /// The time that is left to the living ranks, if all of them are aborted.
    pub(super) fn time_left_to_aborted(&self, now: Duration) -> Option<Duration> {
        let is_other = |(local_rank, child): (usize, &SupervisedChild)| match child.state {
            ChildState::Starting => true,
            ChildState::Alive => !self.is_aborted(local_rank),
            _ => false,
        };
        let latest = self.aborted.iter().filter_map(|rank| rank.timer.due()).max()?;
        let any_other = self.children.iter().enumerate().any(is_other);
        (!any_other).then(|| latest.saturating_sub(now))
    }

    pub(super) fn forget_ended_aborted(&mut self) {
        let children = &self.children;
        self.aborted.retain(|rank| children[rank.local_rank].state == ChildState::Alive);
    }

    fn is_aborted(&self, local_rank: usize) -> bool {
        self.aborted.iter().any(|rank| rank.local_rank == local_rank)
    }

    fn signal_leaders(&self, ranks: &[usize], signal: i32, effects: &mut Vec<Effect>) {
        effects.extend(ranks.iter().map(|local| Effect::ForwardSignal { child: self.id(*local), signal }));
    }
}
