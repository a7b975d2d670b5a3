//! The invariants: the effects that are allowed at each moment, and the state between any two events.

use super::{Aborted, Cause, First, Life, Manners, SIGNAL, Sim, World};
use rlaunch::model::Exit;
use rlaunch::supervise::{
    AbortReason, AttemptReport, ChildId, Effect, FailedRank, KILL_PATIENCE, Lifecycle, NoRestart, NodeOutcome,
    NodeReport, ProgressNote, Recipients, SupervisorEvent,
};
use std::time::Duration;

impl World<'_> {
    pub(super) fn act(&mut self, effects: Vec<Effect>) {
        for effect in effects {
            assert!(self.report.is_none(), "nothing comes after Finish, but {effect:?} did");
            assert!(!self.swept || matches!(effect, Effect::Spawn(_)), "{effect:?} after a sweep");
            match effect {
                Effect::Spawn(id) => self.spawn(id),
                Effect::Kill { child, signal, to: Recipients::Rest } => self.signal_rest(child, signal),
                Effect::Kill { child, signal, to } => self.kill(child, signal, to),
                Effect::EndLeftovers(id) => self.end_leftovers(id),
                Effect::ForwardSignal { child, signal } => self.abort(child, signal),
                Effect::Suspend(id) => {
                    assert!(self.asleep.is_some(), "froze {id:?} while awake");
                    let now = self.now;
                    let sim = self.alive_sim(id);
                    assert!(!sim.frozen, "froze {id:?} twice");
                    sim.frozen = true;
                    if !sim.killed {
                        sim.dies = sim.dies.map(|(at, exit)| (at.saturating_sub(now), exit));
                        sim.group.dies = sim.group.dies.map(|at| at.saturating_sub(now));
                    }
                }
                Effect::Resume(id) => {
                    assert!(self.asleep.is_none(), "thawed {id:?} while asleep");
                    let now = self.now;
                    let sim = self.alive_sim(id);
                    assert!(sim.frozen, "thawed {id:?} that was not frozen");
                    sim.frozen = false;
                    if !sim.killed {
                        sim.dies = sim.dies.map(|(left, exit)| (now + left, exit));
                        sim.group.dies = sim.group.dies.map(|left| now + left);
                    }
                }
                Effect::Abandon(id) => {
                    let due = self.last_kill + KILL_PATIENCE;
                    assert!(self.awake() >= due, "gave up {id:?} at {:?}, before {due:?}", self.awake());
                    let sim = self.alive_sim(id);
                    assert!(sim.killed, "gave up {id:?}, which was not killed");
                    sim.life = Life::Abandoned;
                    let named = |n: &ProgressNote| matches!(n, ProgressNote::Unkillable { living } if living.contains(&id.local_rank));
                    assert!(self.notes.last().is_some_and(named), "gave up {id:?} without a word");
                }
                Effect::Judge(rank, exit) => self.judge(rank, exit),
                Effect::Sweep => self.sweep(),
                Effect::Note(note) => self.note(note),
                Effect::Finish(report) => self.finish(report),
            }
        }
        assert!(!self.swept, "nothing was spawned after a sweep");
        self.begin_requested_restart();
        self.check();
    }

    /// Blames the rank that ended first, or another one that failed.
    fn judge(&mut self, rank: usize, exit: Exit) {
        let runs = self.sims.iter().any(|s| matches!(s.life, Life::Alive | Life::Starting { .. }));
        assert!(!runs && self.backoff.is_none(), "judged before all had ended");
        let Some(First { cause: Cause::Failed(first), .. }) = &mut self.first else { panic!("nothing has failed") };
        assert_eq!(*first, FailedRank::ended_first(rank, exit));
        let failed = |(other, sim): (usize, &Sim)| match sim.life {
            Life::Ended(own) if other != rank && !own.is_success() => {
                Some(FailedRank { local_rank: other, exit: own, decisive: if sim.signalled { exit } else { own } })
            }
            _ => None,
        };
        if self.job.mix % 4 == 3
            && let Some(other) = self.sims.iter().enumerate().find_map(failed)
        {
            *first = other;
        }
        let judged = *first;
        self.send(SupervisorEvent::Judged(judged));
    }

    /// An attempt that a user wants to be followed by another is, once nothing of it runs.
    fn begin_requested_restart(&mut self) {
        let is_requested = matches!(self.first, Some(First { cause: Cause::Restart, .. }));
        let runs = self.sims.iter().any(|s| matches!(s.life, Life::Alive | Life::Starting { .. }));
        if is_requested && !runs && self.report.is_none() {
            assert!(!self.is_stopped_for_good(), "restarted in spite of what came meanwhile");
            assert!(self.sims.iter().all(|s| s.life != Life::Abandoned));
            let ended = AttemptReport { failure: None, began: self.began, ended: self.now };
            (self.first, self.backoff) = (None, Some((ended, self.awake())));
            (self.killing, self.awaiting) = (false, None);
            self.waits_asleep |= self.asleep.is_some();
        }
    }

    pub(super) fn is_stopped_for_good(&self) -> bool {
        self.host_lost || self.cut_off || self.stop_signals > 0 || self.start_failed
    }

    pub(super) fn alive_sim(&mut self, id: ChildId) -> &mut Sim {
        assert_eq!(id.attempt, self.attempt, "{id:?} is of another attempt");
        let sim = &mut self.sims[id.local_rank];
        assert!(sim.is_alive(), "{id:?} is not alive");
        sim
    }

    fn spawn(&mut self, id: ChildId) {
        assert!(self.stop_signals == 0 && !self.host_lost && !self.cut_off, "spawned {id:?} after a stop from outside");
        assert!(self.first.is_none(), "spawned {id:?} while stopping");
        assert!(self.backoff.is_none(), "spawned {id:?} before the sweep");
        assert_eq!(id.attempt, self.attempt);
        self.swept = false;
        self.may_start(id.local_rank);
        let answer_at = self.now + Duration::from_millis(self.manners(id.local_rank).start_takes);
        let sim = &mut self.sims[id.local_rank];
        assert_eq!(sim.life, Life::Waiting, "spawned {id:?} twice");
        sim.life = Life::Starting { answer_at };
    }

    /// One at a time and in order; first the `First`, each of which has to exit successfully.
    fn may_start(&self, rank: usize) {
        let is_first = |rank: usize| self.job.parts[rank] == Lifecycle::First;
        for (other, sim) in self.sims.iter().enumerate() {
            assert!(!matches!(sim.life, Life::Starting { .. }), "spawned {rank} while {other} is on its way");
            if is_first(other) && (!is_first(rank) || other < rank) {
                assert_eq!(sim.life, Life::Ended(Exit::Code(0)), "spawned {rank}, which comes after {other}");
            } else if is_first(rank) || other > rank {
                assert_eq!(sim.life, Life::Waiting, "spawned {rank}, which comes before {other}");
            } else if other < rank {
                assert_ne!(sim.life, Life::Waiting, "spawned {rank}, though {other} was before it");
            }
        }
    }

    fn kill(&mut self, id: ChildId, signal: i32, to: Recipients) {
        let (now, awake) = (self.now, self.awake());
        let Manners { on_term, on_kill, .. } = self.manners(id.local_rank);
        let first = self.first.expect("killed without a reason");
        let forced = self.stop_signals >= 2 || self.host_kills || self.cut_off;
        let due = awake >= first.awake + first.grace || self.job.policy.stop_by.is_some_and(|at| now >= at);
        let late = self.killing;
        let (done, repeats_signal) = (matches!(first.cause, Cause::Done), self.job.policy.repeats_signal);
        assert!(!done || self.serves(id.local_rank) && self.is_done(), "signalled {id:?}, which is waited for");
        let due_to = if signal == libc::SIGKILL { Recipients::Group } else { Recipients::MainProcessFirst };
        assert_eq!(to, due_to);
        let sim = self.alive_sim(id);
        assert!(!sim.frozen, "signalled {id:?}, which is frozen");
        if signal == libc::SIGKILL {
            assert!(forced || due, "killed {id:?} within the grace");
            assert!(!sim.killed && late, "killed {id:?} twice, or without a note");
            assert!(forced || sim.group.held_back.is_none(), "killed the group of {id:?} before it was signalled");
            sim.group.held_back = None;
            sim.killed = true;
            sim.dies = on_kill.map(|after| (now + Duration::from_millis(after), Exit::Signal(9)));
            self.last_kill = awake;
        } else {
            let passed_on = repeats_signal && matches!(first.cause, Cause::Asked);
            let due = if passed_on { SIGNAL } else { libc::SIGTERM };
            assert_eq!((signal, sim.signalled), (due, false), "signalled {id:?} twice, or by another signal");
            if let Some((after, exit)) = on_term {
                let at = now + Duration::from_millis(after);
                sim.dies = sim.dies.filter(|(dies, _)| *dies <= at).or(Some((at, exit)));
            }
        }
        self.sims[id.local_rank].signalled = true;
        if signal != libc::SIGKILL {
            self.signal_main_process_first(id);
        }
    }

    fn sweep(&mut self) {
        let (failed, due) = self.backoff.take().expect("swept without a restart");
        assert_eq!(self.awake(), due, "the restart came early or late");
        assert!(self.sims.iter().all(|s| !matches!(s.life, Life::Alive | Life::Starting { .. } | Life::Abandoned)));
        self.history.push(failed);
        for (sim, part) in self.sims.iter_mut().zip(&self.job.parts) {
            if *part != Lifecycle::First || sim.life != Life::Ended(Exit::Code(0)) || sim.signalled {
                *sim = Sim::NEW;
            }
        }
        (self.first_done, self.stragglers_due, self.are_stragglers_limited) = (None, None, false);
        (self.attempt, self.began, self.swept) = (self.attempt + 1, self.now, true);
        let most = self.job.policy.restart.max_restart as usize;
        let failures = self.history.iter().filter(|a| a.failure.is_some()).count();
        assert!(self.job.policy.restart.window.is_some() || failures <= most, "attempt {}", self.attempt);
    }

    fn note(&mut self, note: ProgressNote) {
        match &note {
            ProgressNote::Finishing { .. } => {
                assert!(self.sims.iter().all(|s| !s.signalled), "noted {note:?} too late");
            }
            ProgressNote::AwaitingServers { living, limit } => {
                let works = |rank: &usize| matches!(self.job.parts[*rank], Lifecycle::First | Lifecycle::Main);
                assert!(!living.iter().any(works), "noted {note:?} while others run");
                self.awaiting = Some(self.awake());
                self.stragglers_due = None;
                assert_eq!((living, *limit), (&self.living(), self.job.policy.server_timeout));
                assert!(self.first.is_none() && self.sims.iter().all(|s| !s.signalled), "noted {note:?} too late");
            }
            ProgressNote::Aborting { ranks, reason } => {
                assert!(self.first.is_none() && self.asleep.is_none() && !ranks.is_empty());
                assert!(ranks.iter().all(|rank| self.sims[*rank].is_alive() && !self.is_aborted(*rank)));
                if let AbortReason::Straggler { first, limit } = reason {
                    let is_straggler =
                        |rank: &usize| self.job.parts[*rank] == Lifecycle::Main && !self.is_aborted(*rank);
                    assert_eq!(*ranks, self.alive().filter(is_straggler).collect::<Vec<_>>());
                    assert_eq!((Some(*first), Some(*limit)), (self.first_done, self.job.policy.straggler_timeout));
                }
                let due = self.awake() + self.job.policy.grace;
                self.aborted.extend(ranks.iter().map(|&rank| Aborted { rank, due, killed: false }));
            }
            ProgressNote::AbortIgnored { living } => {
                let awake = self.awake();
                let is_due = |aborted: &&Aborted| !aborted.killed && aborted.due == awake;
                let ignoring: Vec<usize> = self.aborted().filter(is_due).map(|aborted| aborted.rank).collect();
                assert_eq!(living, &ignoring);
                for aborted in self.aborted.iter_mut().filter(|aborted| ignoring.contains(&aborted.rank)) {
                    (aborted.killed, aborted.due) = (true, awake + KILL_PATIENCE);
                }
            }
            ProgressNote::Killing { living } => {
                assert_eq!((living, self.killing), (&self.living(), false));
                self.killing = true;
                self.last_kill = self.awake();
            }
            ProgressNote::Unkillable { living } => {
                assert_eq!(living, &self.living());
                assert!(!living.is_empty());
            }
            ProgressNote::Restarting { attempt, restart, of, culprit, delay } => {
                assert!(self.restart_refusal().is_none() && *of > 0, "restarted against the policy");
                let Some(Cause::Failed(first)) = self.first.take().map(|f| f.cause) else {
                    panic!("{note:?} though nothing has failed")
                };
                assert_eq!(culprit, &first);
                assert_eq!((*attempt, *of), (self.attempt + 1, self.job.policy.restart.max_restart));
                assert_eq!(*restart as usize, self.recent().len() + 1);
                let backoff = self.job.policy.restart.backoff;
                let full = (1..=self.recent().len()).fold(backoff.base, |d, _| d * 2).min(backoff.max);
                assert!((full / 2..=full).contains(delay), "waits {delay:?} of {full:?}");
                assert_eq!(*delay, backoff.delay(*attempt, self.recent().len() as u32 + 1));
                let failed = AttemptReport { failure: Some(first), began: self.began, ended: self.now };
                self.backoff = Some((failed, self.awake() + *delay));
                (self.killing, self.awaiting) = (false, None);
                self.waits_asleep |= self.asleep.is_some();
            }
            ProgressNote::RestartRequested { attempt, living, grace } => {
                let first = self.first.expect("restarted without a request");
                assert!(matches!(first.cause, Cause::Restart) && self.sims.iter().all(|s| !s.signalled));
                let most = self.job.policy.stop_by.map_or(Duration::MAX, |at| at.saturating_sub(self.now));
                assert_eq!((*attempt, living, *grace), (self.attempt + 1, &self.living(), first.grace.min(most)));
            }
            ProgressNote::NotRestarting { why } => assert_eq!(Some(*why), self.restart_refusal()),
            ProgressNote::Stopping { .. } | ProgressNote::Forced { .. } => {}
        }
        self.notes.push(note);
    }

    /// When restarts were decided, those that count now.
    fn recent(&self) -> Vec<Duration> {
        let window = self.job.policy.restart.window.unwrap_or(Duration::MAX);
        let failed = self.history.iter().filter(|a| a.failure.is_some());
        failed.map(|a| a.ended).filter(|at| self.now - *at < window).collect()
    }

    /// Why the attempt that is over must not be followed by another; `None` also when nothing failed.
    fn restart_refusal(&self) -> Option<NoRestart> {
        let policy = &self.job.policy.restart;
        let cause = self.first.map(|f| f.cause);
        let abandoned = self.sims.iter().any(|s| s.life == Life::Abandoned);
        if matches!(cause, Some(Cause::Restart)) && !self.is_stopped_for_good() {
            return (abandoned && !self.job.policy.in_rounds).then_some(NoRestart::Unkillable);
        }
        if policy.max_restart == 0 {
            return None;
        }
        let (rank, exit) = match cause {
            Some(Cause::Failed(failed)) => (failed.local_rank, failed.decisive),
            Some(Cause::NotStarted(rank)) => (rank, Exit::Lost),
            Some(Cause::Restart) => (0, Exit::Lost),
            Some(Cause::Asked | Cause::HostLost | Cause::CutOff) if self.backoff.is_some() => (0, Exit::Lost),
            _ => return None,
        };
        // The rendezvous decides whether another round follows.
        if self.cut_off && !self.host_lost && self.stop_signals == 0 {
            return None;
        }
        let times = self.history.iter().rev().filter_map(|a| a.failure);
        let times = times.take_while(|last| (last.local_rank, last.decisive) == (rank, exit));
        let times = times.count() as u32 + 1;
        let used = self.recent().len() as u32;
        let status = exit.shell_status();
        let reasons = [
            (self.host_lost, NoRestart::LauncherKilled),
            (self.stop_signals > 0, NoRestart::Stopped),
            (self.start_failed, NoRestart::StartFailed),
            (abandoned, NoRestart::Unkillable),
            (policy.never_restart_on.contains(&status), NoRestart::Never(status)),
            (policy.restart_on.as_ref().is_some_and(|l| !l.contains(&status)), NoRestart::NotListed(status)),
            (policy.same_failure_limit.is_some_and(|limit| times >= limit), NoRestart::SameFailure(times)),
            (used >= policy.max_restart, NoRestart::UsedUp(used)),
        ];
        reasons.into_iter().find(|(holds, _)| *holds).map(|(_, why)| why)
    }

    fn finish(&mut self, report: NodeReport) {
        for sim in &self.sims {
            assert!(!matches!(sim.life, Life::Alive | Life::Starting { .. }), "finished before {sim:?}");
        }
        assert_eq!(report.no_restart, self.restart_refusal());
        let said = matches!(self.notes.last(), Some(ProgressNote::NotRestarting { .. }));
        assert_eq!(said, report.no_restart.is_some());
        assert_eq!((report.restarts, &report.attempts, report.at), (self.attempt, &self.history, self.now));
        let outcome = match self.first.map(|f| f.cause) {
            None => {
                assert!(self.sims.is_empty(), "finished without a reason");
                NodeOutcome::Completed
            }
            Some(Cause::Done) => NodeOutcome::Completed,
            Some(Cause::Restart) if self.host_lost => NodeOutcome::LauncherKilled,
            Some(Cause::Restart) if self.stop_signals > 0 => NodeOutcome::Stopped { signal: SIGNAL },
            Some(Cause::Restart) if self.cut_off => NodeOutcome::Regrouped,
            Some(Cause::Restart) => match self.sims.iter().position(|sim| sim.life == Life::NotStarted) {
                Some(local_rank) => NodeOutcome::NotStarted { local_rank },
                None if self.job.policy.in_rounds => NodeOutcome::Regrouped,
                None => NodeOutcome::Stopped { signal: libc::SIGTERM },
            },
            Some(Cause::Failed(failed)) => NodeOutcome::Failed(failed),
            Some(Cause::NotStarted(local_rank)) => NodeOutcome::NotStarted { local_rank },
            Some(Cause::Asked) => NodeOutcome::Stopped { signal: SIGNAL },
            Some(Cause::CutOff) => NodeOutcome::Regrouped,
            Some(Cause::HostLost) => NodeOutcome::LauncherKilled,
        };
        assert_eq!(report.outcome, outcome);
        assert_eq!(report.restart_requested, matches!(self.first, Some(First { cause: Cause::Restart, .. })));
        assert_eq!(report.ranks.len(), self.sims.len());
        for (rank, sim) in report.ranks.iter().zip(&self.sims) {
            let exit = if let Life::Ended(exit) = sim.life { Some(exit) } else { None };
            let ran = exit.is_some() || sim.life == Life::Abandoned;
            assert_eq!((rank.exit, rank.lived), (exit, exit.map(|_| sim.ended - sim.started)));
            assert_eq!(
                (rank.signalled, rank.killed, rank.abandoned),
                (sim.signalled, sim.killed, sim.life == Life::Abandoned)
            );
            assert_eq!(rank.started_at, ran.then_some(sim.started));
            assert_eq!(rank.start_error.as_deref(), (sim.life == Life::NotStarted).then_some("no"));
        }
        self.report = Some(report);
        self.wake();
    }

    /// The invariants between any two events.
    fn check(&mut self) {
        if self.report.is_some() {
            return;
        }
        let all = |holds: &dyn Fn(&Sim) -> bool| self.alive().all(|rank| holds(&self.sims[rank]));
        let any_starting = self.sims.iter().any(|s| matches!(s.life, Life::Starting { .. }));
        assert!(self.backoff.is_some() || any_starting || self.alive().next().is_some(), "no rank is left to wait for");
        assert_eq!(self.machine.living(), self.living());
        assert_eq!(self.machine.is_stopping(), self.first.is_some());
        assert_eq!(self.machine.is_killing(), self.killing);
        let first_lives = self.alive().any(|rank| self.job.parts[rank] == Lifecycle::First);
        let may_go_on = self.backoff.is_none() && self.first.is_none() && !any_starting && !first_lives;
        assert!(!may_go_on || self.sims.iter().all(|s| s.life != Life::Waiting), "a rank was forgotten");
        assert!(all(&|s| s.frozen == self.asleep.is_some()), "some are frozen and some are not");
        assert!(self.machine.next_deadline().is_none_or(|at| at >= self.now), "a deadline in the past");
        if self.asleep.is_some() {
            assert_eq!(self.machine.next_deadline(), None, "a timer runs while asleep");
            return;
        }
        let Some(first) = self.first else { return };
        assert!(all(&|s| s.signalled), "one rank was signalled, and another was not");
        let over = self.awake() > first.awake + first.grace;
        let stop_by = self.job.policy.stop_by.unwrap_or(Duration::MAX);
        let late = self.now > stop_by.max(first.at).max(self.woke);
        if over || late || self.stop_signals >= 2 || self.host_kills || self.cut_off {
            assert!(all(&|s| s.killed), "a rank outlived the grace, or a second signal");
        }
        let patience = self.last_kill + KILL_PATIENCE;
        assert!(all(&|s| !s.killed || self.awake() <= patience), "a rank outlived the patience");
        self.check_groups(first);
    }
}
