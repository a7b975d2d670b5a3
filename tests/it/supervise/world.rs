//! A simulation in virtual time: ranks with manners, a user, a clock. It carries out the supervisor's effects;
//! `checks.rs` checks each effect as it comes.

mod aborts;
mod checks;
mod groups;
mod happenings;
mod job;
mod outdated;

use aborts::Aborted;
pub use groups::Case;
use groups::Group;
pub use job::{GOOD, Happening, Helpers, Job, Manners, Together};

use rlaunch::model::Exit;
use rlaunch::supervise::{
    AbortReason, AttemptReport, ChildId, Effect, FailedRank, Lifecycle, NodeReport, ProgressNote, Supervisor,
    SupervisorEvent,
};
use std::time::Duration;

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
    signalled: bool,
    killed: bool,
    group: Group,
}

impl Sim {
    const NEW: Sim = Sim {
        life: Life::Waiting,
        started: Duration::ZERO,
        ended: Duration::ZERO,
        dies: None,
        frozen: false,
        signalled: false,
        killed: false,
        group: Group::NEW,
    };

    fn is_alive(&self) -> bool {
        self.life == Life::Alive
    }

    /// SIGKILL reaches the frozen as well.
    fn sleeps(&self) -> bool {
        self.frozen && !self.killed
    }
}

/// The first reason to stop in an attempt.
#[derive(Clone, Copy, Debug)]
struct First {
    cause: Cause,
    /// In time awake, and on the clock.
    awake: Duration,
    at: Duration,
    grace: Duration,
}

#[derive(Clone, Copy, Debug)]
enum Cause {
    /// All ranks that are waited for have exited successfully.
    Done,
    Restart,
    Failed(FailedRank),
    NotStarted(usize),
    Asked,
    CutOff,
    HostLost,
}

pub struct World<'a> {
    job: &'a Job,
    machine: Supervisor,
    attempt: u32,
    began: Duration,
    sims: Vec<Sim>,
    now: Duration,
    chance: fastrand::Rng,
    /// The ends of ranks, those together that were seen together.
    pub together: Vec<Together>,
    /// Suspended since.
    asleep: Option<Duration>,
    steps: usize,
    /// Suspended so far, and when the last suspension ended.
    slept: Duration,
    woke: Duration,
    first: Option<First>,
    start_failed: bool,
    pub stop_signals: usize,
    pub host_lost: bool,
    /// The loss of the host ended the grace period.
    pub host_kills: bool,
    /// The other nodes continue without this one.
    pub cut_off: bool,
    /// SIGKILL was announced, and last sent (in time awake).
    killing: bool,
    last_kill: Duration,
    /// The attempt that waits to be followed by another, and until when (in time awake).
    backoff: Option<(AttemptReport, Duration)>,
    /// Such a wait has begun while all slept.
    pub waits_asleep: bool,
    /// Since when the awaited servers are waited for (in time awake), and whether their time is over.
    awaiting: Option<Duration>,
    servers_timed_out: bool,
    /// The first `Main` rank of the attempt that has exited successfully, and when the others are aborted (in time awake).
    first_done: Option<usize>,
    are_stragglers_limited: bool,
    stragglers_due: Option<Duration>,
    aborted: Vec<Aborted>,
    /// What happened to process groups.
    pub groups: Vec<groups::Case>,
    swept: bool,
    history: Vec<AttemptReport>,
    pub notes: Vec<ProgressNote>,
    pub report: Option<NodeReport>,
}

const SIGNAL: i32 = libc::SIGINT;
const HANG: AbortReason = AbortReason::Hang { why: String::new(), silent_since: Duration::ZERO };

impl<'a> World<'a> {
    fn new(job: &'a Job) -> Self {
        let policy = job.policy.clone();
        let now = Duration::from_millis(job.begins);
        let machine = if job.adopted {
            Supervisor::adopting(job.parts.len(), policy, now)
        } else {
            Supervisor::new(&job.parts, policy)
        };
        Self {
            job,
            machine,
            attempt: 0,
            began: now,
            sims: vec![Sim::NEW; job.parts.len()],
            now,
            chance: fastrand::Rng::with_seed(job.mix),
            together: Vec::new(),
            asleep: None,
            steps: 0,
            slept: Duration::ZERO,
            woke: Duration::ZERO,
            first: None,
            start_failed: false,
            stop_signals: 0,
            host_lost: false,
            host_kills: false,
            cut_off: false,
            killing: false,
            last_kill: Duration::ZERO,
            backoff: None,
            waits_asleep: false,
            awaiting: None,
            servers_timed_out: false,
            first_done: None,
            are_stragglers_limited: false,
            stragglers_due: None,
            aborted: Vec::new(),
            groups: Vec::new(),
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
            (0..job.parts.len()).for_each(|rank| world.give_life(rank));
        } else {
            world.send(SupervisorEvent::Start);
        }
        for &(at, happening) in &job.happenings {
            let at = Duration::from_millis(at);
            while world.step(Some((at, job.happens_first))) {}
            if world.report.is_none() {
                world.now = world.now.max(at);
                world.happen(happening);
            }
        }
        while world.report.is_none() {
            if !world.step(None) {
                // All ranks that are left live for ever and no stop was asked for: then, and only then.
                let runs = world.first.is_none() && world.alive().any(|rank| !world.serves(rank));
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

    /// Whether it is not waited for.
    pub fn serves(&self, rank: usize) -> bool {
        let part = self.job.parts[rank];
        let serves = part == Lifecycle::Server || part == Lifecycle::AwaitedServer && self.servers_timed_out;
        serves && self.job.parts.contains(&Lifecycle::Main)
    }

    fn is_done(&self) -> bool {
        let well = Life::Ended(Exit::Code(0));
        (0..self.sims.len()).all(|rank| self.serves(rank) || self.sims[rank].life == well)
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
            let grace = self.time_of_aborted().unwrap_or(Duration::MAX).min(self.job.policy.grace);
            self.aborted.clear();
            self.first = Some(First { cause, awake: self.awake(), at: self.now, grace });
        }
    }

    fn give_life(&mut self, rank: usize) {
        let Manners { lives, exit, .. } = self.manners(rank);
        let sim = &mut self.sims[rank];
        sim.life = Life::Alive;
        sim.started = self.now;
        sim.dies = lives.map(|lives| (self.now + Duration::from_millis(lives), exit));
        self.limit_stragglers();
    }

    /// Lets time run to the next thing that happens; false when nothing does `until` then, or before.
    fn step(&mut self, until: Option<(Duration, bool)>) -> bool {
        if self.report.is_some() {
            return false;
        }
        self.steps += 1;
        assert!(self.steps < 10_000, "it goes on for ever");
        let answers = self.sims.iter().enumerate().filter_map(|(rank, sim)| match sim.life {
            Life::Starting { answer_at } => Some((answer_at, 0, rank)),
            _ => None,
        });
        let deaths = self.alive().filter_map(|rank| Some((self.dies_at(rank)?, 1, rank)));
        let deadline = self.machine.next_deadline().map(|at| (at, 2, 0));
        let Some((at, what, rank)) = answers.chain(deaths).chain(deadline).min() else { return false };
        if until.is_some_and(|(until, before)| at > until || before && at == until) {
            return false;
        }
        self.now = self.now.max(at);
        match what {
            0 => self.answer(rank),
            1 => {
                self.main_processes_that_end_now();
                self.ranks_that_end_now();
            }
            _ if self.aborted().any(|aborted| aborted.due <= self.awake()) => {
                let first_due = self.aborted().map(|aborted| aborted.due).min();
                assert_eq!(first_due, Some(self.awake()), "an aborted rank has too much time");
                let stuck = self.aborted().find(|aborted| aborted.killed && Some(aborted.due) == first_due);
                if let Some(&Aborted { rank, .. }) = stuck {
                    self.reason(Cause::Failed(FailedRank::ended_first(rank, Exit::Signal(9))));
                }
                self.time_out();
            }
            _ => {
                let limit = self.job.policy.server_timeout.filter(|_| self.first.is_none());
                if let (Some(began), Some(limit)) = (self.awaiting, limit) {
                    assert_eq!(self.awake(), began + limit, "the servers' time ended early or late");
                    self.servers_timed_out = true;
                    self.reason(Cause::Done);
                }
                if self.first.is_none() && self.backoff.is_none() && self.awaiting.is_none() {
                    let due = self.stragglers_due.take();
                    assert_eq!(Some(self.awake()), due, "stragglers are aborted early or late");
                }
                self.time_out();
            }
        }
        self.outdated_events_change_nothing();
        true
    }

    fn time_out(&mut self) {
        let mut effects = Vec::new();
        self.machine.handle_timeout(self.now, &mut effects);
        self.act(effects);
    }

    fn answer(&mut self, rank: usize) {
        // A start that has not begun is cancelled by a stop; one that has begun is carried out.
        if self.machine.is_stopping() && self.chance.bool() {
            self.sims[rank].life = Life::Waiting;
            self.send(SupervisorEvent::SpawnCancelled(self.id(rank)));
        } else if self.manners(rank).starts {
            self.give_life(rank);
            self.send(SupervisorEvent::Spawned(self.id(rank)));
        } else {
            self.sims[rank].life = Life::NotStarted;
            self.start_failed = true;
            self.reason(Cause::NotStarted(rank));
            self.send(SupervisorEvent::SpawnFailed(self.id(rank), "no".into()));
        }
    }

    fn dies_at(&self, rank: usize) -> Option<Duration> {
        let sim = &self.sims[rank];
        if sim.sleeps() {
            return self.manners(rank).dies_frozen.map(|_| self.now);
        }
        sim.leftovers_die().unwrap_or(sim.dies.map(|(at, _)| at))
    }

    /// All whose time has come, in any order, among ends that are no news: of strangers, of older attempts,
    /// of those that have ended already.
    fn ranks_that_end_now(&mut self) {
        let ending: Vec<_> = self.alive().filter(|&rank| self.dies_at(rank).is_some_and(|at| at <= self.now)).collect();
        if ending.is_empty() {
            return;
        }
        let how = |rank: usize| match &self.sims[rank] {
            Sim { group: Group { main_end: Some((_, exit)), .. }, .. } => *exit,
            sim if sim.sleeps() => self.manners(rank).dies_frozen.unwrap(),
            sim => sim.dies.unwrap().1,
        };
        let mut seen: Vec<_> = ending.iter().map(|&rank| (self.id(rank), how(rank))).collect();
        let mut twice: Vec<_> = ending.iter().map(|&rank| (self.id(rank), Exit::Signal(6))).collect();
        let mut others: Vec<_> =
            self.ranks_that_cannot_end(&ending).into_iter().map(|id| (id, Exit::Code(97))).collect();
        others.retain(|_| self.chance.u8(..) < 40);
        twice.retain(|_| self.chance.u8(..) < 40);
        seen.extend(others);
        self.chance.shuffle(&mut seen);
        // No rank ends twice: the first end holds.
        seen.extend(twice);
        let no_news = seen.len() - ending.len();
        let mut together = Together { at: self.now, no_news, again: self.attempt > 0, ..Together::default() };
        let mut failed = None;
        for &(id, exit) in &seen {
            if id.attempt != self.attempt || !self.sims.get(id.local_rank).is_some_and(Sim::is_alive) {
                continue;
            }
            let sim = &mut self.sims[id.local_rank];
            (sim.life, sim.ended) = (Life::Ended(exit), self.now);
            together.ended += 1;
            if sim.signalled {
                together.signalled += 1;
            } else if !exit.is_success() {
                together.failed += 1;
                together.by_signal += usize::from(matches!(exit, Exit::Signal(_)));
                failed.get_or_insert(Cause::Failed(FailedRank::ended_first(id.local_rank, exit)));
            }
        }
        together.done = self.first.is_none() && self.is_done();
        together.asleep = self.asleep.is_some();
        together.starting = self.sims.iter().any(|s| matches!(s.life, Life::Starting { .. }));
        if let Some(cause) = if together.done { Some(Cause::Done) } else { failed } {
            self.reason(cause);
        }
        let limit = self.job.policy.straggler_timeout.filter(|_| self.first_done.is_none() && self.first.is_none());
        let done = |rank: &usize| {
            self.job.parts[*rank] == Lifecycle::Main && self.sims[*rank].life == Life::Ended(Exit::Code(0))
        };
        if let (Some(_), Some(rank)) =
            (limit, seen.iter().map(|(id, _)| id.local_rank).filter(|rank| *rank < self.sims.len()).find(done))
        {
            self.first_done = Some(rank);
            self.limit_stragglers();
        }
        self.together.push(together);
        let finishing = Some(ProgressNote::Finishing { living: self.living() })
            .filter(|_| together.done && !self.living().is_empty());
        let known = self.notes.len();
        self.send(SupervisorEvent::Exited(seen));
        let said = self.notes[known..].iter().find(|n| matches!(n, ProgressNote::Finishing { .. }));
        assert_eq!(said, finishing.as_ref());
    }

    fn effects_of(&mut self, event: SupervisorEvent) -> Vec<Effect> {
        let mut effects = Vec::new();
        self.machine.handle(self.now, event, &mut effects);
        effects
    }

    fn send(&mut self, event: SupervisorEvent) {
        let effects = self.effects_of(event);
        self.act(effects);
    }
}
