//! Ranks that are aborted while the others run.

use super::{Life, Manners, Sim, World};
use rlaunch::model::Exit;
use rlaunch::supervise::{ChildId, Lifecycle};
use std::time::Duration;

/// A rank that was aborted in an attempt that does not stop.
#[derive(Clone, Copy, Debug)]
pub(super) struct Aborted {
    pub rank: usize,
    /// When it is killed or, if it was, given up (in time awake).
    pub due: Duration,
    pub killed: bool,
}

impl World<'_> {
    /// Those that live.
    pub(super) fn aborted(&self) -> impl Iterator<Item = &Aborted> {
        self.aborted.iter().filter(|aborted| self.sims[aborted.rank].is_alive())
    }

    pub(super) fn is_aborted(&self, rank: usize) -> bool {
        self.aborted.iter().any(|aborted| aborted.rank == rank)
    }

    /// The time that is left to ranks that are aborted, where no other one lives or is on its way.
    pub(super) fn time_of_aborted(&self) -> Option<Duration> {
        let latest = self.aborted().map(|aborted| aborted.due).max()?;
        let any_starting = self.sims.iter().any(|sim| matches!(sim.life, Life::Starting { .. }));
        (!any_starting && self.alive().all(|rank| self.is_aborted(rank))).then(|| latest - self.awake())
    }

    /// The time of those that still run begins once one has exited successfully and all have been started.
    pub(super) fn limit_stragglers(&mut self) {
        let is_unstarted = |sim: &Sim| matches!(sim.life, Life::Waiting | Life::Starting { .. });
        let mut mains = self.sims.iter().zip(&self.job.parts).filter(|(_, part)| **part == Lifecycle::Main);
        if let (Some(limit), Some(_), None) = (self.job.policy.straggler_timeout, self.first_done, self.first)
            && !self.are_stragglers_limited
            && self.awaiting.is_none()
            && !mains.any(|(sim, _)| is_unstarted(sim))
        {
            (self.are_stragglers_limited, self.stragglers_due) = (true, Some(self.awake() + limit));
        }
    }

    /// The end of a rank that is aborted, which is a failure of its own.
    pub(super) fn abort(&mut self, id: ChildId, signal: i32) {
        assert!(self.first.is_none(), "aborted {id:?} in a stop");
        let aborted = self.aborted.iter().find(|aborted| aborted.rank == id.local_rank);
        let is_due = aborted.is_some_and(|aborted| !aborted.killed && aborted.due == self.awake());
        let (now, Manners { on_term, on_kill, .. }) = (self.now, self.manners(id.local_rank));
        let end = match signal {
            libc::SIGCONT => None,
            libc::SIGABRT => on_term.map(|(after, exit)| match exit {
                Exit::Signal(15) => (after, Exit::Signal(signal)),
                exit => (after, exit),
            }),
            _ => {
                assert!(signal == libc::SIGKILL && is_due, "{id:?} got signal {signal}");
                on_kill.map(|after| (after, Exit::Signal(signal)))
            }
        };
        let end = end.map(|(after, exit)| (now + Duration::from_millis(after), exit));
        let sim = self.alive_sim(id);
        assert!(!sim.frozen);
        sim.dies = sim.dies.into_iter().chain(end).min_by_key(|(at, _)| *at);
    }
}
