//! Ranks that hang, and ranks that have failed and do not exit: what the event loop does about them.

use super::EventLoop;
use crate::run::engine::RankHost;
use crate::spec::hang::OnHang;
use crate::supervise::ProgressNote;
use crate::sys::clock;

impl EventLoop<'_> {
    /// Looks at ranks that have been silent for long, and reports a hang.
    pub(super) fn watch_hangs(&mut self) {
        let (ranks, attempt) = (&self.ranks, self.engine.running_attempt());
        let Some(found) = self.hangs.turn(attempt, || ranks.stack_targets()) else { return };
        let has_other_nodes = self.launch.plan.nnodes > 1;
        let aborted = match self.launch.hang.on_hang {
            OnHang::Abort => found.ranks_to_abort(has_other_nodes),
            OnHang::Report => Vec::new(),
        };
        let is_spared = self.launch.hang.on_hang == OnHang::Abort && aborted.is_empty();
        self.ranks.report_hang(&found, &aborted, is_spared);
        aborted.into_iter().for_each(|local_rank| self.abort_rank(local_rank));
    }

    fn abort_rank(&mut self, local_rank: usize) {
        let Some(attempt) = self.engine.running_attempt() else { return };
        self.engine.signal_rank(local_rank, libc::SIGABRT);
        // A stopped process ends by no other signal than SIGKILL.
        self.engine.signal_rank(local_rank, libc::SIGCONT);
        self.aborted.add(attempt, local_rank, clock::now() + self.launch.policy.grace);
    }

    pub(super) fn kill_aborted_ranks(&mut self) {
        let mut due = self.aborted.take_due(clock::now(), self.engine.living_attempt());
        if due.is_empty() {
            return;
        }
        let living = self.engine.living();
        due.retain(|local_rank| living.contains(local_rank));
        due.iter().for_each(|local_rank| self.engine.signal_rank(*local_rank, libc::SIGKILL));
        if !due.is_empty() {
            self.ranks.report_progress(ProgressNote::AbortIgnored { living: due });
        }
    }

    /// Ends a rank that has failed and does not exit.
    pub(super) fn watch_exits(&mut self) {
        let (ranks, attempt) = (&self.ranks, self.engine.running_attempt());
        let Some(stuck) = self.exits.turn(attempt, |local| ranks.stack_target(local)) else { return };
        self.ranks.report_stuck_exit(&stuck);
        self.abort_rank(stuck.local_rank);
    }

    /// A child has ended, or a rank says that an exception has ended its program (`rlaunch_rank.py`).
    pub(super) fn note_failed_ranks(&mut self) {
        let living = if self.engine.running_attempt().is_some() { self.engine.living() } else { Vec::new() };
        for local_rank in living {
            if !self.exits.knows(local_rank) && self.ranks.has_raised(local_rank) {
                self.exits.has_failed(local_rank);
            }
        }
    }
}
