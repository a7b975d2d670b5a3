//! Events that change nothing: of other attempts, of the dead, and after the end.

use super::{HANG, Life, World};
use rlaunch::model::Exit;
use rlaunch::supervise::{ChildId, MainProcess, RankStop, SupervisorEvent};
use std::time::Duration;

impl World<'_> {
    /// Children whose end is outdated: strangers, other attempts, and all that do not live, beside `ending`.
    pub(super) fn ranks_that_cannot_end(&self, ending: &[usize]) -> Vec<ChildId> {
        let dead = (0..self.sims.len()).filter(|rank| !self.sims[*rank].is_alive() && !ending.contains(rank));
        let dead = dead.map(|rank| self.id(rank));
        let others = [self.attempt.wrapping_sub(1), self.attempt + 1];
        let others = others
            .into_iter()
            .flat_map(|attempt| (0..self.sims.len()).map(move |local_rank| ChildId { attempt, local_rank }));
        dead.chain(others).chain([self.id(self.sims.len())]).collect()
    }

    /// Events of other attempts, of the dead, said twice, and turns of the clock that came too early.
    pub(super) fn outdated_events_change_nothing(&mut self) {
        let before = self.standing();
        let mut effects = Vec::new();
        if before.0.is_none_or(|at| self.now < at) {
            self.machine.handle_timeout(self.now, &mut effects);
        }
        let twice = if self.asleep.is_some() { SupervisorEvent::Suspend } else { SupervisorEvent::Resume };
        let mut events = vec![SupervisorEvent::Start, twice];
        for rank in 0..=self.sims.len() {
            let id = self.id(rank);
            let old = ChildId { attempt: self.attempt.wrapping_sub(1), ..id };
            let odd = ChildId { attempt: 7, ..id };
            for id in [old, odd] {
                events.extend([
                    SupervisorEvent::Exited(vec![(id, Exit::Code(99))]),
                    SupervisorEvent::Spawned(id),
                    SupervisorEvent::SpawnFailed(id, "".into()),
                    SupervisorEvent::SpawnCancelled(id),
                    SupervisorEvent::SignalledAlone(id, MainProcess::Program),
                    SupervisorEvent::MainProcessEnded(id),
                ]);
            }
            if self.sims.get(rank).is_none_or(|sim| sim.group.held_back.is_none()) {
                events.push(SupervisorEvent::MainProcessEnded(id));
            }
            let life = self.sims.get(rank).map(|s| s.life);
            if life != Some(Life::Alive) {
                events.push(SupervisorEvent::Exited(vec![(id, Exit::Code(98))]));
            }
            if !matches!(life, Some(Life::Starting { .. })) {
                events.extend([
                    SupervisorEvent::Spawned(id),
                    SupervisorEvent::SpawnFailed(id, "".into()),
                    SupervisorEvent::SpawnCancelled(id),
                ]);
            }
        }
        let all = self.ranks_that_cannot_end(&[]).into_iter().map(|id| (id, Exit::Code(96)));
        events.extend([SupervisorEvent::Exited(all.collect()), SupervisorEvent::Exited(Vec::new())]);
        let mut ranks = self.ranks_that_cannot_end(&[]);
        ranks.extend(self.aborted.iter().map(|aborted| self.id(aborted.rank)));
        events.push(SupervisorEvent::Abort { ranks, reason: HANG });
        for event in events {
            self.machine.handle(self.now, event, &mut effects);
        }
        assert_eq!(effects, []);
        assert_eq!(before, self.standing());
    }

    /// All that can be asked of the machine.
    pub(super) fn standing(&self) -> (Option<Duration>, Vec<usize>, bool) {
        (self.machine.next_deadline(), self.machine.living(), self.machine.is_stopping())
    }

    pub(super) fn nothing_moves_any_more(&mut self) {
        self.outdated_events_change_nothing();
        for event in [
            SupervisorEvent::Stop(15),
            SupervisorEvent::StopAgain(15),
            SupervisorEvent::Suspend,
            SupervisorEvent::Resume,
            SupervisorEvent::LauncherKilled,
            SupervisorEvent::Restart { grace: None },
            SupervisorEvent::Regroup(RankStop::WithGrace),
            SupervisorEvent::Regroup(RankStop::AtOnce),
            SupervisorEvent::ForwardSignal(10),
            SupervisorEvent::Abort { ranks: (0..self.sims.len()).map(|rank| self.id(rank)).collect(), reason: HANG },
        ] {
            assert_eq!(self.effects_of(event), []);
        }
        let mut effects = Vec::new();
        self.machine.handle_timeout(self.now + Duration::from_secs(1_000_000), &mut effects);
        assert_eq!((effects, self.machine.next_deadline(), self.machine.living()), (vec![], None, vec![]));
    }
}
