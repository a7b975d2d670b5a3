//! What befalls a job from outside.

use super::{Cause, First, HANG, Happening, SIGNAL, World};
use rlaunch::supervise::{Effect, ProgressNote, RankStop, SupervisorEvent};
use std::time::Duration;

impl World<'_> {
    pub(super) fn happen(&mut self, happening: Happening) {
        match happening {
            Happening::Notify => {
                let expected = self.alive().map(|rank| Effect::ForwardSignal { child: self.id(rank), signal: 10 });
                let expected: Vec<_> = expected.collect();
                let before = self.standing();
                assert_eq!((self.effects_of(SupervisorEvent::ForwardSignal(10)), self.standing()), (expected, before));
            }
            Happening::Suspend => {
                self.asleep.get_or_insert(self.now);
                self.send(SupervisorEvent::Suspend);
            }
            Happening::Resume => {
                self.wake();
                self.send(SupervisorEvent::Resume);
            }
            Happening::Stop | Happening::OtherStop => {
                self.wake();
                let is_again = happening == Happening::Stop && self.stop_signals > 0;
                self.stop_signals = if is_again { self.stop_signals + 1 } else { self.stop_signals.max(1) };
                self.reason(Cause::Asked);
                let (known, living) = (self.notes.len(), self.living());
                let expected = match (self.killing, is_again) {
                    (true, _) => vec![],
                    (false, false) => vec![ProgressNote::Stopping { signal: SIGNAL, living, grace: Duration::ZERO }],
                    _ => vec![ProgressNote::Forced { living: living.clone() }, ProgressNote::Killing { living }],
                };
                self.send(if is_again { SupervisorEvent::StopAgain(SIGNAL) } else { SupervisorEvent::Stop(SIGNAL) });
                let said = self.notes[known..].iter().filter(|n| !matches!(n, ProgressNote::NotRestarting { .. }));
                let left = self.machine.phase_end().map(|at| at - self.now);
                let said = said.cloned().map(|note| match note {
                    ProgressNote::Stopping { signal, living, grace } => {
                        assert!(
                            living.is_empty() || Some(grace) == left,
                            "it is said that ranks have {grace:?} of {left:?}"
                        );
                        ProgressNote::Stopping { signal, living, grace: Duration::ZERO }
                    }
                    note => note,
                });
                assert_eq!(said.collect::<Vec<_>>(), expected);
            }
            Happening::HostLost => {
                self.wake();
                self.host_lost = true;
                // The grace period of a stop by a signal goes on.
                self.host_kills |= self.stop_signals == 0;
                self.reason(Cause::HostLost);
                self.send(SupervisorEvent::LauncherKilled);
            }
            Happening::Restart(millis) => {
                let grace = millis.map(Duration::from_millis);
                let most = grace.unwrap_or(Duration::MAX).min(self.job.policy.grace);
                let is_prevented = self.is_stopped_for_good() || self.start_failed;
                match (self.first, &self.backoff) {
                    (None, None) => {
                        self.reason(Cause::Restart);
                        self.first = self.first.map(|first| First { grace: most.min(first.grace), ..first });
                    }
                    (_, Some((ended, _))) => {
                        let ended = *ended;
                        self.wake();
                        self.backoff = Some((ended, self.awake()));
                    }
                    (Some(first @ First { cause: Cause::Restart, .. }), None) if !self.killing && !is_prevented => {
                        self.wake();
                        let grace = first.grace.min(self.awake() - first.awake + most);
                        self.shorten_last_call(most);
                        self.first = Some(First { grace, ..first });
                    }
                    _ => {}
                }
                self.send(SupervisorEvent::Restart { grace });
            }
            Happening::Abort(bits) => {
                let runs = self.first.is_none() && self.backoff.is_none() && self.asleep.is_none();
                let is_chosen = |rank: &usize| bits >> rank & 1 == 1;
                let expected: Vec<usize> =
                    self.alive().filter(|rank| runs && is_chosen(rank) && !self.is_aborted(*rank)).collect();
                let ranks = (0..self.sims.len()).filter(is_chosen).map(|rank| self.id(rank)).collect();
                let known = self.notes.len();
                self.send(SupervisorEvent::Abort { ranks, reason: HANG });
                let said = self.notes[known..].iter().flat_map(|note| match note {
                    ProgressNote::Aborting { ranks, .. } => ranks.clone(),
                    note => panic!("{note:?}"),
                });
                assert_eq!(said.collect::<Vec<_>>(), expected);
            }
            Happening::CutOff => {
                self.wake();
                self.cut_off = true;
                self.reason(Cause::CutOff);
                self.send(SupervisorEvent::Regroup(RankStop::AtOnce));
            }
        }
    }
}
