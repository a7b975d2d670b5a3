//! Floor 4: what happens next. A pure machine: events go in, effects come out, time is an argument.
//! Nothing here reads a clock, starts a process or sends a signal; `run::engine` does what it says.
//!
//! ```text
//!            Start            the work is done, no server lives
//!  Pending ────────► Running ───────────────────────────────────► Finished
//!                    ▲  │ a rank failed, a start failed,           ▲  ▲
//!                    │  │ a stop signal; the work is               │  │
//!                    │  │ done and servers live                    │  │
//!                    │  ▼            grace over, 2nd signal        │  │
//!                    │ Stopping ─────────────────► Killing         │  │
//!                    │  │ last rank ended             │ the same,   │  │
//!                    │  │                             │ or given up │  │
//!                    │  ▼                             ▼             │  │
//!                    │  may it be tried again? ─────────── no ──────┘  │
//!                    │  │ yes                                          │
//!     the wait over  │  ▼            a stop signal                     │
//!                    └─ Backoff ───────────────────────────────────────┘
//! ```
//!
//! The work is done when all but the servers (`Part`) have ended well. A lost host goes to Killing from
//! everywhere. Suspension is no phase: it pauses the timer of any.

mod child;
mod event;
mod part;
mod report;
mod restart;
mod stop;
mod timer;

pub use event::{ChildId, Effect, Event, Note};
pub use part::Part;
pub use report::{AttemptReport, Outcome, RankReport, Report};
pub use restart::{Backoff, NoRestart, RestartPolicy, Restarts};
pub use stop::{KILL_PATIENCE, StopReason};

use crate::model::Exit;
use child::{Child, State};
use std::time::Duration;
use stop::Reasons;
use timer::Timer;

/// How a job is stopped, and when it is started again.
#[derive(Clone, Debug, Default)]
pub struct Policy {
    /// Time between asking to stop and killing.
    pub grace: Duration,
    /// When whoever runs the launcher will kill it, on the clock of the events: the grace ends no later.
    pub stop_by: Option<Duration>,
    /// Restarts.
    pub restart: RestartPolicy,
    /// The number of the first attempt; not 0 where others came before with other nodes.
    pub first_attempt: u32,
    /// Whether who is stopped by a signal from outside is sent that very signal; else SIGTERM, as for all other reasons.
    pub forwards: bool,
}

impl Policy {
    /// With a grace, without a deadline or restarts.
    pub fn with_grace(grace: Duration) -> Self {
        Self { grace, ..Self::default() }
    }
}

/// Where the job stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Pending,
    Running,
    /// The living have been asked to go; the timer is the grace.
    Stopping,
    /// They have been sent SIGKILL; the timer is the patience.
    Killing,
    /// Nobody lives; the timer is the wait for the next attempt.
    Backoff(AttemptReport),
    Finished,
}

/// Supervises the ranks of one node through all their attempts.
#[derive(Debug)]
pub struct Supervisor {
    phase: Phase,
    timer: Timer,
    /// Why the present attempt stops.
    reasons: Option<Reasons>,
    attempt: u32,
    began: Duration,
    children: Vec<Child>,
    grace: Duration,
    stop_by: Option<Duration>,
    forwards: bool,
    restarts: Restarts,
    /// The attempts that have been followed by another.
    attempts: Vec<AttemptReport>,
}

impl Supervisor {
    /// For children, by local rank, that it is to start, one after another.
    pub fn new(parts: &[Part], policy: Policy) -> Self {
        Self {
            phase: Phase::Pending,
            timer: Timer::default(),
            reasons: None,
            attempt: policy.first_attempt,
            began: Duration::ZERO,
            children: part::played(parts).map(Child::new).collect(),
            grace: policy.grace,
            stop_by: policy.stop_by,
            forwards: policy.forwards,
            restarts: Restarts::new(policy.restart),
            attempts: Vec::new(),
        }
    }

    /// For `ranks` children that somebody else has started already, all of them `Part::Main`.
    pub fn adopting(ranks: usize, policy: Policy, now: Duration) -> Self {
        let alive = Child { state: State::Alive, started: now, ..Child::new(Part::Main) };
        let machine = Self::new(&[], policy);
        Self { phase: Phase::Running, began: now, children: vec![alive; ranks], ..machine }
    }

    /// When `handle_timeout` wants to be called; `None`: never, unless an event changes that.
    pub fn next_deadline(&self) -> Option<Duration> {
        self.timer.due()
    }

    /// Local ranks that are alive now.
    pub fn living(&self) -> Vec<usize> {
        (0..self.children.len()).filter(|&i| self.children[i].state == State::Alive).collect()
    }

    /// Why the present attempt stops, if it does: the first reason.
    pub fn reason(&self) -> Option<StopReason> {
        self.reasons.map(|reasons| reasons.first)
    }

    /// Whether the attempt is on its way down.
    pub fn is_stopping(&self) -> bool {
        matches!(self.phase, Phase::Stopping | Phase::Killing)
    }

    /// Takes in one event. The only transition function beside `handle_timeout`.
    pub fn handle(&mut self, now: Duration, event: Event, effects: &mut Vec<Effect>) {
        match event {
            Event::Start => self.start(now, effects),
            Event::Spawned(id) => self.spawned(now, id, effects),
            Event::SpawnFailed(id, why) => self.spawn_failed(now, id, why, effects),
            Event::Exited(ended) => self.exited(now, &ended, effects),
            Event::Stop(signal) => self.stop_asked(now, signal, effects),
            Event::Regroup { within } => self.regroup(now, within, effects),
            Event::Notify(signal) => self.each_living(effects, |child| Effect::Tell { child, signal }),
            Event::Suspend => self.suspend(now, effects),
            Event::Resume => self.resume(now, effects),
            Event::HostLost => self.host_lost(now, effects),
        }
    }

    /// The deadline of `next_deadline` has come (or not yet: then nothing happens).
    pub fn handle_timeout(&mut self, now: Duration, effects: &mut Vec<Effect>) {
        if self.timer.due().is_none_or(|at| now < at) {
            return;
        }
        self.timer.disarm();
        match self.phase {
            Phase::Stopping => self.kill(now, effects),
            Phase::Killing => self.give_up(now, effects),
            Phase::Backoff(failed) => self.restart(now, failed, effects),
            Phase::Pending | Phase::Running | Phase::Finished => {}
        }
    }

    fn start(&mut self, now: Duration, effects: &mut Vec<Effect>) {
        if self.phase == Phase::Pending {
            self.phase = Phase::Running;
            self.began = now;
            self.go_on(now, effects);
        }
    }

    /// What follows from news that nobody has failed: the next start, or the end of the work.
    fn go_on(&mut self, now: Duration, effects: &mut Vec<Effect>) {
        if self.phase != Phase::Running {
            self.settle(now, effects);
        } else if self.is_done() {
            let living = self.living();
            if !living.is_empty() {
                effects.push(Effect::Note(Note::Finishing { living }));
            }
            self.stop(now, StopReason::Done, effects);
        } else if let Some(rank) = self.next_to_start() {
            self.children[rank].state = State::Starting;
            effects.push(Effect::Spawn(self.id(rank)));
        }
    }

    /// One at a time, and nobody beside a `First`.
    fn next_to_start(&self) -> Option<usize> {
        let holds_up = |c: &Child| c.state == State::Starting || c.part == Part::First && c.state == State::Alive;
        let waiting = (0..self.children.len()).filter(|&i| self.children[i].state == State::Waiting);
        let next = waiting.min_by_key(|&i| self.children[i].part != Part::First);
        next.filter(|_| !self.children.iter().any(holds_up))
    }

    /// All that is waited for has ended well.
    fn is_done(&self) -> bool {
        self.children.iter().all(|c| c.part == Part::Server || c.has_ended_well())
    }

    fn spawned(&mut self, now: Duration, id: ChildId, effects: &mut Vec<Effect>) {
        let Some(child) = self.child(id, &State::Starting) else { return };
        child.state = State::Alive;
        child.started = now;
        match self.phase {
            Phase::Running => self.go_on(now, effects),
            // A stop came while it was being started: it has to be told as well.
            Phase::Stopping => self.send(id.local_rank, self.stop_signal(), effects),
            Phase::Killing => {
                self.send(id.local_rank, libc::SIGKILL, effects);
                self.timer.arm(now, KILL_PATIENCE);
            }
            Phase::Pending | Phase::Backoff(_) | Phase::Finished => {}
        }
        if self.timer.is_paused() {
            effects.push(Effect::Freeze(id));
        }
    }

    fn spawn_failed(&mut self, now: Duration, id: ChildId, why: String, effects: &mut Vec<Effect>) {
        let Some(child) = self.child(id, &State::Starting) else { return };
        child.state = State::NotStarted(why);
        self.stop(now, StopReason::StartFailed(id.local_rank), effects);
    }

    fn exited(&mut self, now: Duration, ended: &[(ChildId, Exit)], effects: &mut Vec<Effect>) {
        let (mut news, mut failed) = (false, None);
        for &(id, exit) in ended {
            let Some(child) = self.child(id, &State::Alive) else { continue };
            news = true;
            child.state = State::Ended { exit, lived: now.saturating_sub(child.started) };
            if !exit.is_success() && !child.told {
                failed.get_or_insert(StopReason::RankFailed(id.local_rank, exit));
            }
        }
        match failed {
            // A server may well fail because those that it served are gone.
            Some(reason) if !self.is_done() => self.stop(now, reason, effects),
            _ if news => self.go_on(now, effects),
            _ => {}
        }
    }

    fn stop_asked(&mut self, now: Duration, signal: i32, effects: &mut Vec<Effect>) {
        self.resume(now, effects);
        let reason = StopReason::Asked(signal);
        match self.phase {
            Phase::Finished => {}
            Phase::Killing => self.blame(reason),
            Phase::Stopping if self.reasons.is_some_and(|r| r.weightiest == reason) => {
                effects.push(Effect::Note(Note::Forced { living: self.living() }));
                self.kill(now, effects);
            }
            // Asked while a failure is being cleaned up counts as the first time.
            Phase::Pending | Phase::Running | Phase::Stopping | Phase::Backoff(_) => {
                effects.push(Effect::Note(Note::Stopping { signal, living: self.living() }));
                self.stop(now, reason, effects);
            }
        }
    }

    fn regroup(&mut self, now: Duration, within: Option<Duration>, effects: &mut Vec<Effect>) {
        if self.phase == Phase::Finished {
            return;
        }
        if let Some(within) = within {
            let at = now.saturating_add(within);
            self.stop_by = Some(self.stop_by.map_or(at, |other| other.min(at)));
            // Whatever they were asked to stop for.
            if self.phase == Phase::Stopping && self.timer.due().is_none_or(|due| due > at) {
                self.timer.arm(now, within);
            }
        }
        self.stop(now, StopReason::Regroup, effects);
    }

    fn host_lost(&mut self, now: Duration, effects: &mut Vec<Effect>) {
        if self.phase == Phase::Finished {
            return;
        }
        self.resume(now, effects);
        self.blame(StopReason::HostLost);
        if matches!(self.phase, Phase::Running | Phase::Stopping) {
            self.kill(now, effects);
        }
        self.settle(now, effects);
    }

    /// A stopped process does not answer SIGTERM, so every stop ends a suspension first.
    fn suspend(&mut self, now: Duration, effects: &mut Vec<Effect>) {
        if !self.timer.is_paused() && !matches!(self.phase, Phase::Pending | Phase::Finished) {
            self.timer.pause(now);
            self.each_living(effects, Effect::Freeze);
        }
    }

    fn resume(&mut self, now: Duration, effects: &mut Vec<Effect>) {
        if self.timer.is_paused() {
            // The deadline from outside does not sleep.
            self.timer.resume(now, self.stop_by.filter(|_| self.phase == Phase::Stopping));
            self.each_living(effects, Effect::Thaw);
        }
    }

    fn blame(&mut self, reason: StopReason) {
        self.reasons = Some(Reasons::with(self.reasons, reason));
    }

    /// Begins to stop, once. A later reason changes neither whom it is blamed on nor when the grace ends.
    fn stop(&mut self, now: Duration, reason: StopReason, effects: &mut Vec<Effect>) {
        self.blame(reason);
        if matches!(self.phase, Phase::Pending | Phase::Running) {
            self.resume(now, effects);
            self.phase = Phase::Stopping;
            let most = self.stop_by.map_or(Duration::MAX, |at| at.saturating_sub(now));
            self.timer.arm(now, self.grace.min(most));
            for rank in self.living() {
                self.send(rank, self.stop_signal(), effects);
            }
        }
        self.settle(now, effects);
    }

    /// What a rank is asked to go with.
    fn stop_signal(&self) -> i32 {
        match self.reasons {
            Some(Reasons { first: StopReason::Asked(signal), .. }) if self.forwards => signal,
            _ => libc::SIGTERM,
        }
    }

    fn kill(&mut self, now: Duration, effects: &mut Vec<Effect>) {
        self.phase = Phase::Killing;
        self.timer.arm(now, KILL_PATIENCE);
        effects.push(Effect::Note(Note::Killing { living: self.living() }));
        for rank in self.living() {
            self.send(rank, libc::SIGKILL, effects);
        }
    }

    fn give_up(&mut self, now: Duration, effects: &mut Vec<Effect>) {
        let living = self.living();
        if !living.is_empty() {
            effects.push(Effect::Note(Note::Unkillable { living: living.clone() }));
        }
        self.each_living(effects, Effect::Abandon);
        for rank in living {
            self.children[rank].state = State::Abandoned;
        }
        self.settle(now, effects);
    }

    fn restart(&mut self, now: Duration, failed: AttemptReport, effects: &mut Vec<Effect>) {
        self.attempts.push(failed);
        self.attempt += 1;
        self.began = now;
        for child in &mut self.children {
            if child.part != Part::First || !child.has_ended_well() {
                *child = Child::new(child.part);
            }
        }
        self.phase = Phase::Running;
        effects.push(Effect::Sweep);
        self.go_on(now, effects);
    }

    /// Once there was a reason to stop, nobody lives and nobody is on the way: what now?
    fn settle(&mut self, now: Duration, effects: &mut Vec<Effect>) {
        let any = |state| self.children.iter().any(|c| c.state == state);
        if any(State::Alive) || any(State::Starting) {
            return;
        }
        match self.next_attempt(now) {
            Ok((failed, delay)) => {
                let AttemptReport { culprit, exit, .. } = failed;
                let (attempt, of) = (self.attempt + 1, self.restarts.policy.max_restart);
                self.phase = Phase::Backoff(failed);
                self.reasons = None;
                self.timer.arm(now, delay);
                effects.push(Effect::Note(Note::Restarting { attempt, of, culprit, exit, delay }));
            }
            Err(why) => {
                self.phase = Phase::Finished;
                self.timer = Timer::default();
                if let Some(why) = why {
                    effects.push(Effect::Note(Note::NotRestarting { why }));
                }
                effects.push(Effect::Finish(self.report(now, why)));
            }
        }
    }

    /// The attempt that has failed and the wait until the next one, or why there is none: nothing has
    /// failed or restarts are not asked for (`None`), or there was a reason against it.
    fn next_attempt(&mut self, now: Duration) -> Result<(AttemptReport, Duration), Option<NoRestart>> {
        let waiting = matches!(self.phase, Phase::Backoff(_));
        let reasons = self.reasons.filter(|r| r.first.is_failure() || waiting).ok_or(None)?;
        if self.restarts.are_off() {
            return Err(None);
        }
        match reasons.weightiest {
            StopReason::Done => Err(None),
            StopReason::StartFailed(_) => Err(Some(NoRestart::StartFailed)),
            // Who decides that is elsewhere.
            StopReason::Regroup => Err(None),
            StopReason::Asked(_) => Err(Some(NoRestart::Stopped)),
            StopReason::HostLost => Err(Some(NoRestart::HostLost)),
            StopReason::RankFailed(..) if self.children.iter().any(|c| c.state == State::Abandoned) => {
                Err(Some(NoRestart::Unkillable))
            }
            StopReason::RankFailed(culprit, exit) => {
                let delay = self.restarts.decide(now, self.attempt + 1, culprit, exit).map_err(Some)?;
                Ok((AttemptReport { culprit, exit, began: self.began, ended: now }, delay))
            }
        }
    }

    fn report(&self, now: Duration, no_restart: Option<NoRestart>) -> Report {
        let outcome = match self.reasons.map(|r| r.first) {
            None | Some(StopReason::Done) => Outcome::Completed,
            Some(StopReason::RankFailed(culprit, exit)) => Outcome::Failed { culprit, exit },
            Some(StopReason::StartFailed(local_rank)) => Outcome::NotStarted { local_rank },
            Some(StopReason::Regroup) => Outcome::Regrouped,
            Some(StopReason::Asked(signal)) => Outcome::Stopped { signal },
            Some(StopReason::HostLost) => Outcome::HostLost,
        };
        Report {
            outcome,
            ranks: self.children.iter().map(Child::report).collect(),
            attempts: self.attempts.clone(),
            restarts: self.attempt,
            no_restart,
            at: now,
        }
    }

    fn send(&mut self, rank: usize, signal: i32, effects: &mut Vec<Effect>) {
        let child = &mut self.children[rank];
        child.told = true;
        child.killed |= signal == libc::SIGKILL;
        effects.push(Effect::Kill { child: self.id(rank), signal });
    }

    fn each_living(&self, effects: &mut Vec<Effect>, effect: impl Fn(ChildId) -> Effect) {
        effects.extend(self.living().into_iter().map(|rank| effect(self.id(rank))));
    }

    fn id(&self, local_rank: usize) -> ChildId {
        ChildId { attempt: self.attempt, local_rank }
    }

    /// The child an event speaks of, if it is of this attempt and in the state the event presumes.
    fn child(&mut self, id: ChildId, state: &State) -> Option<&mut Child> {
        if id.attempt != self.attempt {
            return None;
        }
        self.children.get_mut(id.local_rank).filter(|c| c.state == *state)
    }
}
