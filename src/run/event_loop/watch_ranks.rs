//! Ranks that hang, and ranks that have failed and do not exit: what the event loop does about them.

use super::EventLoop;
use crate::spec::hang::OnHang;
use crate::supervise::{AbortReason, ChildId, SupervisorEvent};
use crate::sys::clock;
use std::io;

impl EventLoop<'_> {
    /// Looks at ranks that have been silent for long, and reports a hang.
    pub(super) fn watch_hangs(&mut self) -> io::Result<()> {
        let (ranks, attempt) = (&self.ranks, self.engine.running_attempt());
        let found = self.hangs.turn(attempt, || ranks.stack_targets());
        if let Some(membership) = &mut self.membership {
            match &found {
                Some(found) => membership.report_hang(found.for_other_nodes(&ranks.rank_lines())),
                None if !self.hangs.is_reported() => membership.report_hang(None),
                None => {}
            }
        }
        let Some(found) = found.filter(|found| found.is_new) else { return Ok(()) };
        let has_other_nodes = self.launch.plan.nnodes > 1;
        let aborted = match self.launch.hang.on_hang {
            OnHang::Abort => found.ranks_to_abort(has_other_nodes),
            OnHang::Report => Vec::new(),
        };
        let is_spared = self.launch.hang.on_hang == OnHang::Abort && aborted.is_empty();
        let why = self.ranks.report_hang(&found, is_spared);
        let silent_since = clock::now().saturating_sub(found.silence);
        self.abort(aborted, AbortReason::Hang { why, silent_since })
    }

    /// Ends a rank that has failed and does not exit.
    pub(super) fn watch_exits(&mut self) -> io::Result<()> {
        let (ranks, attempt) = (&self.ranks, self.engine.running_attempt());
        let found = self.exits.turn(attempt, |local| ranks.stack_target(local));
        // One that is aborted already, for another reason, gets no second SIGABRT.
        let Some(stuck) = found.filter(|stuck| !ranks.is_aborted(stuck.local_rank)) else { return Ok(()) };
        let late = self.ranks.report_stuck_exit(&stuck);
        if stuck.state.is_spared() {
            return Ok(());
        }
        self.abort(vec![stuck.local_rank], AbortReason::StuckExit(late))
    }

    fn abort(&mut self, local_ranks: Vec<usize>, reason: AbortReason) -> io::Result<()> {
        let Some(attempt) = self.engine.running_attempt() else { return Ok(()) };
        let ranks = local_ranks.into_iter().map(|local_rank| ChildId { attempt, local_rank }).collect();
        self.send(SupervisorEvent::Abort { ranks, reason })
    }

    /// A child has ended, or a rank says that its program has failed (`rlaunch_rank.py`).
    pub(super) fn note_failed_ranks(&mut self) {
        let living = if self.engine.running_attempt().is_some() { self.engine.living() } else { Vec::new() };
        for local_rank in living {
            if !self.exits.knows(local_rank) && self.ranks.has_failed(local_rank) {
                self.exits.has_failed(local_rank);
            }
        }
    }
}
