//! The process groups of ranks: a main process that handles the stop signal gets it alone, the others of its group later.

use super::{First, Helpers, Manners, SIGNAL, Sim, World};
use rlaunch::model::Exit;
use rlaunch::supervise::{ChildId, MainProcess, SupervisorEvent, last_call};
use std::time::Duration;

#[derive(Clone, Copy, Debug)]
pub(super) struct Group {
    /// The main process alone has the stop signal.
    pub held_back: Option<MainProcess>,
    /// What the main process is, if it has had the signal alone.
    main: Option<MainProcess>,
    /// The least time before SIGKILL at which the others get the signal.
    margin: Duration,
    /// When the main process ended (in time awake), if others of its group lived.
    pub main_end: Option<(Duration, Exit)>,
    /// When the others die; while frozen, after how long.
    pub dies: Option<Duration>,
    is_expired: bool,
}

impl Group {
    pub const NEW: Self =
        Self { held_back: None, main: None, margin: Duration::ZERO, main_end: None, dies: None, is_expired: false };
}

/// What happened to a process group.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Case {
    HeldBack,
    AfterMainProcess,
    LastCall,
    Expired,
    /// After a shell, and after a main process that had it together with them.
    LeftForLong,
}

impl Sim {
    /// When the processes die that its main process has left, if it has: SIGKILL ends them with it.
    pub(super) fn leftovers_die(&self) -> Option<Option<Duration>> {
        (self.group.main_end.is_some() && !self.killed).then_some(self.group.dies)
    }
}

impl World<'_> {
    /// How long it is until SIGKILL, as things are.
    fn left(&self, first: First) -> Duration {
        let left = (first.awake + first.grace).saturating_sub(self.awake());
        self.job.policy.stop_by.map_or(left, |at| left.min(at.saturating_sub(self.now)))
    }

    pub(super) fn signal_main_process_first(&mut self, id: ChildId) {
        let Some(main) = self.manners(id.local_rank).handles else { return self.signal_others(id.local_rank) };
        let margin = self.first.map_or(Duration::ZERO, |first| last_call(self.left(first)));
        let group = &mut self.sims[id.local_rank].group;
        (group.held_back, group.main, group.margin) = (Some(main), Some(main), margin);
        self.groups.push(Case::HeldBack);
        assert_eq!(self.effects_of(SupervisorEvent::SignalledAlone(id, main)), []);
    }

    fn signal_others(&mut self, rank: usize) {
        let (now, Manners { helpers, .. }) = (self.now, self.manners(rank));
        let sim = &mut self.sims[rank];
        sim.group.held_back = None;
        let begins = if sim.frozen { Duration::ZERO } else { now };
        sim.group.dies = match helpers {
            Helpers::None | Helpers::Stay => None,
            Helpers::Leave(after) => Some(begins + Duration::from_millis(after)),
        };
    }

    pub(super) fn signal_rest(&mut self, id: ChildId, signal: i32) {
        let first = self.first.expect("signalled without a reason");
        let passed_on = self.job.policy.repeats_signal && matches!(first.cause, super::Cause::Asked);
        assert_eq!(signal, if passed_on { SIGNAL } else { libc::SIGTERM });
        let left = self.left(first);
        let sim = self.alive_sim(id);
        assert!(sim.group.held_back.is_some() && !sim.killed, "signalled the group of {id:?} twice");
        let main_has_ended = sim.group.main_end.is_some();
        assert!(main_has_ended || left <= last_call(self.job.policy.grace), "{left:?} before the end");
        self.groups.push(if main_has_ended { Case::AfterMainProcess } else { Case::LastCall });
        self.signal_others(id.local_rank);
    }

    /// Main processes that were asked to stop, and end before others of their groups.
    pub(super) fn main_processes_that_end_now(&mut self) {
        let (now, awake) = (self.now, self.awake());
        for rank in self.living() {
            let has_helpers = self.manners(rank).helpers != Helpers::None;
            let sim = &mut self.sims[rank];
            let Some((at, exit)) = sim.dies.filter(|_| sim.signalled && !sim.killed && !sim.frozen) else { continue };
            let others_have_died = sim.group.held_back.is_none() && sim.group.dies.is_some_and(|dies| dies <= now);
            if at > now || !has_helpers || others_have_died || sim.group.main_end.is_some() {
                continue;
            }
            sim.group.main_end = Some((awake, exit));
            self.send(SupervisorEvent::MainProcessEnded(self.id(rank)));
        }
    }

    pub(super) fn end_leftovers(&mut self, id: ChildId) {
        let (now, awake) = (self.now, self.awake());
        let (stop_by, time) = (self.job.policy.stop_by, last_call(self.job.policy.grace));
        let sim = self.alive_sim(id);
        let (ended, _) = sim.group.main_end.expect("a main process lives");
        assert!(awake == ended + time || stop_by.is_some_and(|at| now >= at), "leftovers had {:?}", awake - ended);
        assert_eq!((sim.group.main, sim.group.is_expired, sim.killed), (Some(MainProcess::Program), false, false));
        (sim.group.is_expired, sim.group.dies) = (true, Some(now));
        self.groups.push(Case::Expired);
    }

    pub(super) fn shorten_last_call(&mut self, most: Duration) {
        self.sims.iter_mut().for_each(|sim| sim.group.margin = sim.group.margin.min(last_call(most)));
    }

    pub(super) fn check_groups(&mut self, first: First) {
        let (left, awake) = (self.left(first), self.awake());
        for rank in self.living() {
            let Sim { group, .. } = &self.sims[rank];
            let is_held_back = group.held_back.is_some();
            let (is_late, is_checked) = (left < group.margin, self.now > self.woke);
            assert!(!is_held_back || !is_late || !is_checked, "the group of {rank} was not signalled in time");
            let Some((ended, _)) = group.main_end else { continue };
            assert!(!is_held_back, "the main process of {rank} has ended, and its group was not signalled");
            let is_over = awake > ended + last_call(self.job.policy.grace);
            if group.main == Some(MainProcess::Program) {
                assert!(!is_over || group.is_expired || self.killing, "what {rank} has left has too much time");
            } else if is_over {
                self.groups.push(Case::LeftForLong);
            }
        }
    }
}
