//! A world in virtual time that does what the supervisor says, and checks the laws as it goes.

use rlaunch::model::Exit;
use rlaunch::supervise::{
    AttemptReport, ChildId, Effect, Event, KILL_PATIENCE, NoRestart, Note, Outcome, Policy, Report, Supervisor,
};
use std::time::Duration;

/// How one child behaves: times in virtual milliseconds.
#[derive(Clone, Debug)]
pub struct Manners {
    pub starts: bool,
    /// How long starting it takes.
    pub start_takes: u64,
    pub lives: Option<u64>,
    pub exit: Exit,
    /// How long after SIGTERM it goes, and how; `None`: it ignores it.
    pub on_term: Option<(u64, Exit)>,
    /// How long after SIGKILL it goes; `None`: the kernel does not let it.
    pub on_kill: Option<u64>,
    /// It ends even while it is frozen (somebody else kills it).
    pub dies_frozen: bool,
}

/// It runs well for a while.
pub const GOOD: Manners = Manners {
    starts: true,
    start_takes: 0,
    lives: Some(100),
    exit: Exit::Code(0),
    on_term: Some((5, Exit::Signal(15))),
    on_kill: Some(0),
    dies_frozen: false,
};

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Happening {
    Stop,
    Notify,
    Suspend,
    Resume,
    HostLost,
}

/// A job and all that befalls it.
#[derive(Clone, Debug)]
pub struct Job {
    pub policy: Policy,
    pub ranks: usize,
    pub adopted: bool,
    /// By attempt and local rank; beyond these all are `GOOD`.
    pub manners: Vec<Vec<Manners>>,
    /// In order of time.
    pub happenings: Vec<(u64, Happening)>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Life {
    Waiting,
    Starting { answer_at: Duration },
    Alive,
    Ended(Exit),
    NotStarted,
    Abandoned,
}

#[derive(Clone, Debug)]
struct Sim {
    life: Life,
    started: Duration,
    ended: Duration,
    /// When it ends; while `frozen` and not killed, after how long.
    dies: Option<(Duration, Exit)>,
    frozen: bool,
    told: bool,
    killed: bool,
}

impl Sim {
    const NEW: Sim = Sim {
        life: Life::Waiting,
        started: Duration::ZERO,
        ended: Duration::ZERO,
        dies: None,
        frozen: false,
        told: false,
        killed: false,
    };

    fn is_alive(&self) -> bool {
        self.life == Life::Alive
    }
}

/// The first reason to stop in an attempt.
#[derive(Clone, Copy, Debug)]
struct First {
    cause: Cause,
    /// In time awake, and on the clock.
    awake: Duration,
    at: Duration,
}

#[derive(Clone, Copy, Debug)]
enum Cause {
    Failed(usize, Exit),
    NotStarted(usize),
    Asked,
    HostLost,
}

pub struct World<'a> {
    job: &'a Job,
    machine: Supervisor,
    attempt: u32,
    began: Duration,
    sims: Vec<Sim>,
    now: Duration,
    /// Suspended since.
    asleep: Option<Duration>,
    /// Suspended so far, and when the last suspension ended.
    slept: Duration,
    woke: Duration,
    first: Option<First>,
    start_failed: bool,
    pub stop_signals: usize,
    pub host_lost: bool,
    /// SIGKILL was announced, and last sent (in time awake).
    killing: bool,
    last_kill: Duration,
    /// The attempt that waits to be followed by another, and until when (in time awake).
    backoff: Option<(AttemptReport, Duration)>,
    swept: bool,
    history: Vec<AttemptReport>,
    pub notes: Vec<Note>,
    pub report: Option<Report>,
}

const SIGNAL: i32 = libc::SIGINT;

impl<'a> World<'a> {
    fn new(job: &'a Job) -> Self {
        let machine = if job.adopted {
            Supervisor::adopting(job.ranks, job.policy.clone(), Duration::ZERO)
        } else {
            Supervisor::new(job.ranks, job.policy.clone())
        };
        Self {
            job,
            machine,
            attempt: 0,
            began: Duration::ZERO,
            sims: vec![Sim::NEW; job.ranks],
            now: Duration::ZERO,
            asleep: None,
            slept: Duration::ZERO,
            woke: Duration::ZERO,
            first: None,
            start_failed: false,
            stop_signals: 0,
            host_lost: false,
            killing: false,
            last_kill: Duration::ZERO,
            backoff: None,
            swept: false,
            history: Vec::new(),
            notes: Vec::new(),
            report: None,
        }
    }

    /// Lives through the whole job.
    pub fn live(job: &'a Job) -> Self {
        let mut world = Self::new(job);
        if job.adopted {
            (0..job.ranks).for_each(|rank| world.give_life(rank));
        } else {
            world.send(Event::Start);
        }
        for &(at, happening) in &job.happenings {
            let at = Duration::from_millis(at);
            while world.step(Some(at)) {}
            if world.report.is_none() {
                world.now = world.now.max(at);
                world.happen(happening);
            }
        }
        while world.report.is_none() {
            if !world.step(None) {
                // Everybody left lives for ever and nobody asked for a stop: then, and only then.
                let runs = world.first.is_none() && world.alive().next().is_some();
                assert!(world.asleep.is_some() || runs, "stuck at {:?}", world.now);
                world.happen(if world.asleep.is_some() { Happening::Resume } else { Happening::Stop });
            }
        }
        world.nothing_moves_any_more();
        world
    }

    fn manners(&self, rank: usize) -> Manners {
        self.job.manners.get(self.attempt as usize).map_or(GOOD, |ranks| ranks[rank].clone())
    }

    fn id(&self, local_rank: usize) -> ChildId {
        ChildId { attempt: self.attempt, local_rank }
    }

    fn alive(&self) -> impl Iterator<Item = usize> {
        (0..self.sims.len()).filter(|&rank| self.sims[rank].is_alive())
    }

    fn living(&self) -> Vec<usize> {
        self.alive().collect()
    }

    /// Time without suspensions.
    fn awake(&self) -> Duration {
        self.asleep.unwrap_or(self.now) - self.slept
    }

    fn wake(&mut self) {
        if let Some(since) = self.asleep.take() {
            self.slept += self.now - since;
            self.woke = self.now;
        }
    }

    fn reason(&mut self, cause: Cause) {
        if self.first.is_none() {
            self.wake();
            self.first = Some(First { cause, awake: self.awake(), at: self.now });
        }
    }

    fn give_life(&mut self, rank: usize) {
        let Manners { lives, exit, .. } = self.manners(rank);
        let sim = &mut self.sims[rank];
        sim.life = Life::Alive;
        sim.started = self.now;
        sim.dies = lives.map(|lives| (self.now + Duration::from_millis(lives), exit));
    }

    fn happen(&mut self, happening: Happening) {
        match happening {
            Happening::Notify => {
                let told = self.alive().map(|rank| Effect::Tell { child: self.id(rank), signal: 10 });
                let told: Vec<_> = told.collect();
                assert_eq!(self.effects_of(Event::Notify(10)), told);
            }
            Happening::Suspend => {
                self.asleep.get_or_insert(self.now);
                self.send(Event::Suspend);
            }
            Happening::Resume => {
                self.wake();
                self.send(Event::Resume);
            }
            Happening::Stop => {
                self.wake();
                self.stop_signals += 1;
                self.reason(Cause::Asked);
                let (known, living) = (self.notes.len(), self.living());
                let expected = match (self.killing, self.stop_signals) {
                    (true, _) => vec![],
                    (false, 1) => vec![Note::Stopping { signal: SIGNAL, living }],
                    _ => vec![Note::Forced { living: living.clone() }, Note::Killing { living }],
                };
                self.send(Event::Stop(SIGNAL));
                let said = self.notes[known..].iter().filter(|n| !matches!(n, Note::NotRestarting { .. }));
                assert_eq!(said.collect::<Vec<_>>(), expected.iter().collect::<Vec<_>>());
            }
            Happening::HostLost => {
                self.wake();
                self.host_lost = true;
                self.reason(Cause::HostLost);
                self.send(Event::HostLost);
            }
        }
    }

    /// Lets time run to the next thing that happens, `until` at most; false when nothing does.
    fn step(&mut self, until: Option<Duration>) -> bool {
        if self.report.is_some() {
            return false;
        }
        let next = |sim: &Sim| match sim.life {
            Life::Starting { answer_at } => Some((answer_at, 0)),
            Life::Alive if !sim.frozen || sim.killed => sim.dies.map(|(at, _)| (at, 1)),
            _ => None,
        };
        let frozen_deaths = self.alive().filter(|&rank| self.sims[rank].frozen && self.manners(rank).dies_frozen);
        let frozen_deaths = frozen_deaths.map(|rank| (self.now, 1, rank));
        let deaths =
            self.sims.iter().enumerate().filter_map(|(rank, sim)| next(sim).map(|(at, what)| (at, what, rank)));
        let deadline = self.machine.next_deadline().map(|at| (at, 2, 0));
        let Some((at, what, rank)) = deaths.chain(frozen_deaths).chain(deadline).min() else { return false };
        if until.is_some_and(|until| at > until) {
            return false;
        }
        self.now = self.now.max(at);
        match what {
            0 => self.answer(rank),
            1 => self.die(rank),
            _ => {
                let mut effects = Vec::new();
                self.machine.handle_timeout(self.now, &mut effects);
                self.act(effects);
            }
        }
        self.what_is_old_changes_nothing();
        true
    }

    fn answer(&mut self, rank: usize) {
        if self.manners(rank).starts {
            self.give_life(rank);
            self.send(Event::Spawned(self.id(rank)));
        } else {
            self.sims[rank].life = Life::NotStarted;
            self.start_failed = true;
            self.reason(Cause::NotStarted(rank));
            self.send(Event::SpawnFailed(self.id(rank), "no".into()));
        }
    }

    fn die(&mut self, rank: usize) {
        let sim = &mut self.sims[rank];
        let exit = if sim.frozen && !sim.killed { Exit::Signal(9) } else { sim.dies.unwrap().1 };
        sim.life = Life::Ended(exit);
        sim.ended = self.now;
        if !sim.told && !exit.is_success() {
            self.reason(Cause::Failed(rank, exit));
        }
        self.send(Event::Exited(self.id(rank), exit));
    }

    fn effects_of(&mut self, event: Event) -> Vec<Effect> {
        let mut effects = Vec::new();
        self.machine.handle(self.now, event, &mut effects);
        effects
    }

    fn send(&mut self, event: Event) {
        let effects = self.effects_of(event);
        self.act(effects);
    }

    fn act(&mut self, effects: Vec<Effect>) {
        for effect in effects {
            assert!(self.report.is_none(), "nothing comes after Finish, but {effect:?} did");
            assert!(!self.swept || matches!(effect, Effect::Spawn(_)), "{effect:?} after a sweep");
            match effect {
                Effect::Spawn(id) => self.spawn(id),
                Effect::Kill { child, signal } => self.kill(child, signal),
                Effect::Tell { .. } => panic!("{effect:?} without a notify"),
                Effect::Freeze(id) => {
                    assert!(self.asleep.is_some(), "froze {id:?} while awake");
                    let now = self.now;
                    let sim = self.alive_sim(id);
                    assert!(!sim.frozen, "froze {id:?} twice");
                    sim.frozen = true;
                    if !sim.killed {
                        sim.dies = sim.dies.map(|(at, exit)| (at - now, exit));
                    }
                }
                Effect::Thaw(id) => {
                    assert!(self.asleep.is_none(), "thawed {id:?} while asleep");
                    let now = self.now;
                    let sim = self.alive_sim(id);
                    assert!(sim.frozen, "thawed {id:?} that was not frozen");
                    sim.frozen = false;
                    if !sim.killed {
                        sim.dies = sim.dies.map(|(left, exit)| (now + left, exit));
                    }
                }
                Effect::Abandon(id) => {
                    let due = self.last_kill + KILL_PATIENCE;
                    assert!(self.awake() >= due, "gave up {id:?} at {:?}, before {due:?}", self.awake());
                    let sim = self.alive_sim(id);
                    assert!(sim.killed, "gave up {id:?}, which was not killed");
                    sim.life = Life::Abandoned;
                }
                Effect::Sweep => self.sweep(),
                Effect::Note(note) => self.note(note),
                Effect::Finish(report) => self.finish(report),
            }
        }
        assert!(!self.swept, "nothing was spawned after a sweep");
        self.check();
    }

    fn alive_sim(&mut self, id: ChildId) -> &mut Sim {
        assert_eq!(id.attempt, self.attempt, "{id:?} is of another attempt");
        let sim = &mut self.sims[id.local_rank];
        assert!(sim.is_alive(), "{id:?} is not alive");
        sim
    }

    fn spawn(&mut self, id: ChildId) {
        assert!(self.stop_signals == 0 && !self.host_lost, "spawned {id:?} after a stop from outside");
        assert!(self.first.is_none(), "spawned {id:?} while stopping");
        assert!(self.backoff.is_none(), "spawned {id:?} before the sweep");
        assert_eq!(id.attempt, self.attempt);
        self.swept = false;
        let answer_at = self.now + Duration::from_millis(self.manners(id.local_rank).start_takes);
        let sim = &mut self.sims[id.local_rank];
        assert_eq!(sim.life, Life::Waiting, "spawned {id:?} twice");
        sim.life = Life::Starting { answer_at };
    }

    fn kill(&mut self, id: ChildId, signal: i32) {
        let (now, awake) = (self.now, self.awake());
        let Manners { on_term, on_kill, .. } = self.manners(id.local_rank);
        let first = self.first.expect("killed without a reason");
        let forced = self.stop_signals >= 2 || self.host_lost;
        let due = awake >= first.awake + self.job.policy.grace || self.job.policy.stop_by.is_some_and(|at| now >= at);
        let late = self.killing;
        let sim = self.alive_sim(id);
        assert!(!sim.frozen, "signalled {id:?}, which is frozen");
        if signal == libc::SIGKILL {
            assert!(forced || due, "killed {id:?} within the grace");
            assert!(!sim.killed && late, "killed {id:?} twice, or without a word");
            sim.killed = true;
            sim.dies = on_kill.map(|after| (now + Duration::from_millis(after), Exit::Signal(9)));
            self.last_kill = awake;
        } else {
            assert_eq!((signal, sim.told), (libc::SIGTERM, false), "told {id:?} twice");
            if let Some((after, exit)) = on_term {
                let at = now + Duration::from_millis(after);
                sim.dies = sim.dies.filter(|(dies, _)| *dies <= at).or(Some((at, exit)));
            }
        }
        self.sims[id.local_rank].told = true;
    }

    fn sweep(&mut self) {
        let (failed, due) = self.backoff.take().expect("swept without a restart");
        assert_eq!(self.awake(), due, "the restart came early or late");
        assert!(self.sims.iter().all(|s| !matches!(s.life, Life::Alive | Life::Starting { .. } | Life::Abandoned)));
        self.history.push(failed);
        self.sims.fill(Sim::NEW);
        (self.attempt, self.began, self.swept) = (self.attempt + 1, self.now, true);
        let most = self.job.policy.restart.max_restart;
        assert!(self.job.policy.restart.window.is_some() || self.attempt <= most, "attempt {}", self.attempt);
    }

    fn note(&mut self, note: Note) {
        match &note {
            Note::Killing { living } => {
                assert_eq!((living, self.killing), (&self.living(), false));
                self.killing = true;
                self.last_kill = self.awake();
            }
            Note::Unkillable { living } => {
                assert_eq!(living, &self.living());
                assert!(!living.is_empty());
            }
            Note::Restarting { attempt, of, culprit, exit, delay } => {
                assert_eq!(self.verdict(), None, "restarted against the policy");
                let Some(Cause::Failed(first, how)) = self.first.take().map(|f| f.cause) else {
                    panic!("{note:?} though nothing has failed")
                };
                assert_eq!((culprit, exit), (&first, &how));
                assert_eq!((*attempt, *of), (self.attempt + 1, self.job.policy.restart.max_restart));
                let backoff = self.job.policy.restart.backoff;
                let full = (1..=self.recent().len()).fold(backoff.base, |d, _| d * 2).min(backoff.max);
                assert!((full / 2..=full).contains(delay), "waits {delay:?} of {full:?}");
                let failed = AttemptReport { culprit: first, exit: how, began: self.began, ended: self.now };
                self.backoff = Some((failed, self.awake() + *delay));
                self.killing = false;
            }
            Note::NotRestarting { why } => assert_eq!(Some(*why), self.verdict()),
            Note::Stopping { .. } | Note::Forced { .. } => {}
        }
        self.notes.push(note);
    }

    /// When restarts were decided, those that count now.
    fn recent(&self) -> Vec<Duration> {
        let window = self.job.policy.restart.window.unwrap_or(Duration::MAX);
        self.history.iter().map(|a| a.ended).filter(|at| self.now - *at < window).collect()
    }

    /// Why the attempt that is over must not be followed by another; `None` also when nothing failed.
    fn verdict(&self) -> Option<NoRestart> {
        let policy = &self.job.policy.restart;
        let cause = self.first.map(|f| f.cause);
        let (rank, exit) = match cause {
            Some(Cause::Failed(rank, exit)) => (rank, exit),
            Some(Cause::NotStarted(_)) if policy.max_restart == 0 => return Some(NoRestart::Off),
            Some(Cause::NotStarted(rank)) => (rank, Exit::Lost),
            Some(Cause::Asked | Cause::HostLost) if self.backoff.is_some() => (0, Exit::Lost),
            _ => return None,
        };
        let times = self.history.iter().rev().take_while(|a| (a.culprit, a.exit) == (rank, exit)).count() as u32 + 1;
        let used = self.recent().len() as u32;
        let status = exit.shell_status();
        let abandoned = self.sims.iter().any(|s| s.life == Life::Abandoned);
        let reasons = [
            (policy.max_restart == 0, NoRestart::Off),
            (self.host_lost, NoRestart::HostLost),
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

    fn finish(&mut self, report: Report) {
        for sim in &self.sims {
            assert!(!matches!(sim.life, Life::Alive | Life::Starting { .. }), "finished before {sim:?}");
        }
        assert_eq!(report.no_restart, self.verdict());
        let said = matches!(self.notes.last(), Some(Note::NotRestarting { .. }));
        assert_eq!(said, report.no_restart.is_some_and(|why| why != NoRestart::Off));
        assert_eq!((report.restarts, &report.attempts, report.at), (self.attempt, &self.history, self.now));
        let outcome = match self.first.map(|f| f.cause) {
            None => Outcome::Completed,
            Some(Cause::Failed(culprit, exit)) => Outcome::Failed { culprit, exit },
            Some(Cause::NotStarted(local_rank)) => Outcome::NotStarted { local_rank },
            Some(Cause::Asked) => Outcome::Stopped { signal: SIGNAL },
            Some(Cause::HostLost) => Outcome::HostLost,
        };
        assert_eq!(report.outcome, outcome);
        assert_eq!(report.ranks.len(), self.sims.len());
        for (rank, sim) in report.ranks.iter().zip(&self.sims) {
            let exit = if let Life::Ended(exit) = sim.life { Some(exit) } else { None };
            let ran = exit.is_some() || sim.life == Life::Abandoned;
            assert_eq!((rank.exit, rank.lived), (exit, exit.map(|_| sim.ended - sim.started)));
            assert_eq!((rank.told, rank.killed, rank.abandoned), (sim.told, sim.killed, sim.life == Life::Abandoned));
            assert_eq!(rank.started_at, ran.then_some(sim.started));
            assert_eq!(rank.not_started.as_deref(), (sim.life == Life::NotStarted).then_some("no"));
            assert!(outcome != Outcome::Completed || exit == Some(Exit::Code(0)), "{rank:?} completed");
        }
        self.report = Some(report);
        self.wake();
    }

    /// What has to hold between any two events.
    fn check(&self) {
        if self.report.is_some() {
            return;
        }
        let all = |holds: &dyn Fn(&Sim) -> bool| self.alive().all(|rank| holds(&self.sims[rank]));
        let any_starting = self.sims.iter().any(|s| matches!(s.life, Life::Starting { .. }));
        assert!(self.backoff.is_some() || any_starting || self.alive().next().is_some(), "nobody is left to wait for");
        assert_eq!(self.machine.living(), self.living());
        assert_eq!(self.machine.is_stopping(), self.first.is_some());
        assert!(all(&|s| s.frozen == self.asleep.is_some()), "some are frozen and some are not");
        if self.asleep.is_some() {
            assert_eq!(self.machine.next_deadline(), None, "a timer runs while asleep");
            return;
        }
        let Some(first) = self.first else { return };
        assert!(all(&|s| s.told), "somebody was told to go, and somebody was not");
        let over = self.awake() > first.awake + self.job.policy.grace;
        let stop_by = self.job.policy.stop_by.unwrap_or(Duration::MAX);
        let late = self.now > stop_by.max(first.at).max(self.woke);
        if over || late || self.stop_signals >= 2 || self.host_lost {
            assert!(all(&|s| s.killed), "somebody outlived the grace, or a second signal");
        }
        let patience = self.last_kill + KILL_PATIENCE;
        assert!(all(&|s| !s.killed || self.awake() <= patience), "somebody outlived the patience");
    }

    /// Events of other attempts, of the dead, said twice, and turns of the clock that came too early.
    fn what_is_old_changes_nothing(&mut self) {
        let before = (self.machine.next_deadline(), self.machine.living(), self.machine.is_stopping());
        let mut effects = Vec::new();
        if before.0.is_none_or(|at| self.now < at) {
            self.machine.handle_timeout(self.now, &mut effects);
        }
        let twice = if self.asleep.is_some() { Event::Suspend } else { Event::Resume };
        let mut events = vec![Event::Start, twice];
        for rank in 0..=self.sims.len() {
            let id = self.id(rank);
            let old = ChildId { attempt: self.attempt.wrapping_sub(1), ..id };
            let odd = ChildId { attempt: 7, ..id };
            for id in [old, odd] {
                events.extend([
                    Event::Exited(id, Exit::Code(99)),
                    Event::Spawned(id),
                    Event::SpawnFailed(id, "".into()),
                ]);
            }
            let life = self.sims.get(rank).map(|s| s.life);
            if life != Some(Life::Alive) {
                events.push(Event::Exited(id, Exit::Code(98)));
            }
            if !matches!(life, Some(Life::Starting { .. })) {
                events.extend([Event::Spawned(id), Event::SpawnFailed(id, "".into())]);
            }
        }
        for event in events {
            self.machine.handle(self.now, event, &mut effects);
        }
        assert_eq!(effects, []);
        assert_eq!(before, (self.machine.next_deadline(), self.machine.living(), self.machine.is_stopping()));
    }

    fn nothing_moves_any_more(&mut self) {
        self.what_is_old_changes_nothing();
        for event in [Event::Stop(15), Event::Suspend, Event::Resume, Event::HostLost, Event::Notify(10)] {
            assert_eq!(self.effects_of(event), []);
        }
        let mut effects = Vec::new();
        self.machine.handle_timeout(self.now + Duration::from_secs(1_000_000), &mut effects);
        assert_eq!((effects, self.machine.next_deadline(), self.machine.living()), (vec![], None, vec![]));
    }
}
