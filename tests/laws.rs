//! The laws of supervision, over random histories in virtual time.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // A test fails by panicking.

use proptest::prelude::*;
use rlaunch::model::Exit;
use rlaunch::supervise::{ChildId, Effect, Event, Outcome, Report, Supervisor};
use std::time::Duration;

const GRACE: Duration = Duration::from_secs(10);

/// How one child behaves: in virtual milliseconds.
#[derive(Clone, Debug)]
struct Manners {
    starts: bool,
    lives: Option<u64>,
    exit: i32,
    /// How long after SIGTERM it goes; `None`: it ignores it.
    on_term: Option<u64>,
}

fn manners() -> impl Strategy<Value = Manners> {
    let starts = prop::sample::select(vec![true, true, true, true, true, true, true, false]);
    let lives = prop::option::weighted(0.7, 0..20_000u64);
    let exit = prop::sample::select(vec![0, 0, 0, 1, 3, -9, -11]);
    let on_term = prop::option::weighted(0.7, 0..15_000u64);
    (starts, lives, exit, on_term).prop_map(|(starts, lives, exit, on_term)| Manners { starts, lives, exit, on_term })
}

fn exit(code: i32) -> Exit {
    if code < 0 { Exit::Signal(-code) } else { Exit::Code(code) }
}

#[derive(Clone, Debug, Default)]
struct Sim {
    alive: bool,
    ended: bool,
    dies_at: Option<(Duration, Exit)>,
    told_at: Option<Duration>,
    killed: bool,
}

/// A world that does what the machine says and checks the laws as it goes.
struct World<'a> {
    machine: Supervisor,
    manners: &'a [Manners],
    sims: Vec<Sim>,
    now: Duration,
    stopped_from_outside: Option<Duration>,
    stop_signals: usize,
    first_stop: Option<Duration>,
    report: Option<Report>,
    first_failure: Option<usize>,
}

impl World<'_> {
    fn id(rank: usize) -> ChildId {
        ChildId { attempt: 0, local_rank: rank }
    }

    fn send(&mut self, event: Event) {
        let mut queue = vec![event];
        while !queue.is_empty() {
            let event = queue.remove(0);
            let mut effects = Vec::new();
            self.machine.handle(self.now, event, &mut effects);
            self.act(effects, &mut queue);
        }
    }

    fn act(&mut self, effects: Vec<Effect>, queue: &mut Vec<Event>) {
        for effect in effects {
            assert!(self.report.is_none(), "nothing comes after Finish, but {effect:?} did");
            match effect {
                Effect::Spawn(id) => {
                    assert_eq!(self.stopped_from_outside, None, "spawned {id:?} after a stop from outside");
                    assert_eq!(self.first_stop, None, "spawned {id:?} while stopping");
                    let m = &self.manners[id.local_rank];
                    let sim = &mut self.sims[id.local_rank];
                    assert!(!sim.alive && !sim.ended, "spawned {id:?} twice");
                    if m.starts {
                        sim.alive = true;
                        sim.dies_at = m.lives.map(|l| (self.now + Duration::from_millis(l), exit(m.exit)));
                        queue.push(Event::Spawned(id));
                    } else {
                        self.first_stop.get_or_insert(self.now);
                        queue.push(Event::SpawnFailed(id, "no".into()));
                    }
                }
                Effect::Kill { child, signal } => {
                    let on_term = self.manners[child.local_rank].on_term;
                    let sim = &mut self.sims[child.local_rank];
                    assert!(sim.alive, "signalled the dead {child:?}");
                    if signal == libc::SIGKILL {
                        sim.killed = true;
                        sim.dies_at = Some((self.now, Exit::Signal(9)));
                    } else {
                        sim.told_at.get_or_insert(self.now);
                        if let Some(after) = on_term {
                            let at = self.now + Duration::from_millis(after);
                            if sim.dies_at.is_none_or(|(d, _)| d > at) {
                                sim.dies_at = Some((at, Exit::Signal(15)));
                            }
                        }
                    }
                }
                Effect::Tell { child, .. } => assert!(self.sims[child.local_rank].alive),
                Effect::Note(_) => {}
                Effect::Finish(report) => {
                    assert!(self.sims.iter().all(|s| !s.alive), "finished with somebody alive");
                    self.report = Some(report);
                }
            }
        }
        if self.machine.is_stopping() && queue.is_empty() {
            self.first_stop.get_or_insert(self.now);
            for (rank, sim) in self.sims.iter().enumerate() {
                assert!(!sim.alive || sim.told_at.is_some() || sim.killed, "rank {rank} lives and was not told");
            }
            if self.stop_signals >= 2 {
                assert!(self.sims.iter().all(|s| !s.alive || s.killed), "a second signal kills at once");
            }
        }
    }

    /// Lets time run to the next thing that happens; false when nothing ever will.
    fn step(&mut self, until: Option<Duration>) -> bool {
        let death = (0..self.sims.len())
            .filter(|&i| self.sims[i].alive)
            .filter_map(|i| self.sims[i].dies_at.map(|(at, e)| (at, i, e)))
            .min_by_key(|(at, i, _)| (*at, *i));
        let deadline = self.machine.next_deadline();
        let next = [death.map(|d| d.0), deadline, until].into_iter().flatten().min();
        let Some(next) = next else { return false };
        self.now = self.now.max(next);
        match death {
            Some((at, rank, exit)) if at <= self.now => {
                let sim = &mut self.sims[rank];
                sim.alive = false;
                sim.ended = true;
                let own = sim.told_at.is_none() && !sim.killed && !exit.is_success();
                if own && self.first_failure.is_none() && self.first_stop.is_none() {
                    self.first_failure = Some(rank);
                }
                self.send(Event::Exited(Self::id(rank), exit));
                // Said twice, or of an older attempt: changes nothing.
                self.send(Event::Exited(Self::id(rank), Exit::Code(99)));
                self.send(Event::Exited(ChildId { attempt: 7, local_rank: rank }, Exit::Code(98)));
            }
            _ if deadline.is_some_and(|d| d <= self.now) => {
                let mut effects = Vec::new();
                self.machine.handle_timeout(self.now, &mut effects);
                self.act(effects, &mut Vec::new());
            }
            _ => return until.is_some_and(|u| u > self.now),
        }
        true
    }
}

fn live(manners: &[Manners], stops: &[u64]) -> (Report, Option<usize>, usize) {
    let mut world = World {
        machine: Supervisor::new(manners.len(), GRACE),
        manners,
        sims: vec![Sim::default(); manners.len()],
        now: Duration::ZERO,
        stopped_from_outside: None,
        stop_signals: 0,
        first_stop: None,
        report: None,
        first_failure: None,
    };
    world.send(Event::Start);
    for &at in stops {
        let at = Duration::from_millis(at);
        while world.report.is_none() && world.now < at && world.step(Some(at)) {}
        if world.report.is_none() {
            world.now = world.now.max(at);
            world.send(Event::Notify(libc::SIGUSR1));
            world.stopped_from_outside.get_or_insert(at);
            world.stop_signals += 1;
            world.send(Event::Stop(libc::SIGINT));
        }
    }
    while world.report.is_none() {
        let before = world.now;
        if !world.step(None) {
            // Everybody left lives for ever and nobody asked for a stop: then, and only then.
            assert!(world.first_stop.is_none() && world.sims.iter().any(|s| s.alive), "stuck at {before:?}");
            world.stopped_from_outside = Some(world.now);
            world.stop_signals += 1;
            world.send(Event::Stop(libc::SIGTERM));
        }
    }
    if let Some(stop) = world.first_stop {
        assert!(world.now <= stop + GRACE, "somebody outlived the grace: {:?} after {stop:?}", world.now);
    }
    // After the end nothing moves any more.
    world.report.as_ref().unwrap();
    let mut effects = Vec::new();
    for event in [Event::Start, Event::Stop(15), Event::Notify(10), Event::Exited(World::id(0), Exit::Code(1))] {
        world.machine.handle(world.now, event, &mut effects);
    }
    world.machine.handle_timeout(world.now + GRACE, &mut effects);
    assert_eq!(effects, []);
    (world.report.unwrap(), world.first_failure, world.stop_signals)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]

    #[test]
    fn every_history_obeys(manners in prop::collection::vec(manners(), 0..7), stops in prop::collection::vec(0..40_000u64, 0..3)) {
        let mut stops = stops;
        stops.sort_unstable();
        let (report, first_failure, stop_signals) = live(&manners, &stops);
        match report.outcome {
            Outcome::Completed => prop_assert!(report.ranks.iter().all(|r| r.exit == Some(Exit::Code(0)))),
            Outcome::Failed { culprit, exit } => {
                prop_assert_eq!(Some(culprit), first_failure);
                prop_assert_eq!(report.ranks[culprit].exit, Some(exit));
                prop_assert!(!report.ranks[culprit].told, "a rank that was told is never the culprit");
            }
            Outcome::NotStarted { local_rank } => prop_assert!(!manners[local_rank].starts),
            Outcome::Stopped { .. } => prop_assert!(stop_signals > 0 && first_failure.is_none()),
        }
    }
}

#[test]
fn a_failure_stops_the_others_and_is_the_culprit_even_if_a_signal_follows() {
    let quiet = Manners { starts: true, lives: None, exit: 0, on_term: None };
    let fails = Manners { lives: Some(5), exit: 3, ..quiet.clone() };
    let (report, _, _) = live(&[quiet, fails], &[1_000]);
    assert_eq!(report.outcome, Outcome::Failed { culprit: 1, exit: Exit::Code(3) });
    assert_eq!(report.victims(), [0]);
}

#[test]
fn no_ranks_is_done_at_once() {
    assert_eq!(live(&[], &[]).0.outcome, Outcome::Completed);
}
