//! Floor 4: what happens next. A pure machine: events go in, effects come out, time is an argument.
//! Nothing here reads a clock, starts a process or sends a signal; `run::engine` does what it says.
//!
//! ```text
//!            Start            last rank ended well
//!  Pending ────────► Running ─────────────────────────► Finished
//!                       │ a rank failed, a start failed,      ▲
//!                       │ a stop signal                       │ last rank ended
//!                       ▼            grace over, 2nd signal   │
//!                    Stopping ─────────────────► Killing ─────┤
//!                       └─────────────────────────────────────┘
//! ```

mod event;
mod report;
mod stop;

pub use event::{ChildId, Effect, Event, Note};
pub use report::{Outcome, RankReport, Report};
pub use stop::StopReason;

use crate::model::Exit;
use std::time::Duration;

/// Where the job stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Pending,
    Running,
    Stopping { reason: StopReason, kill_at: Duration },
    Killing,
    Finished,
}

/// What is known of one child.
#[derive(Clone, Debug)]
struct Child {
    state: State,
    /// The launcher has signalled it: what becomes of it then is no failure of its own.
    told: bool,
    started: Duration,
    ended: Duration,
}

#[derive(Clone, Debug, PartialEq)]
enum State {
    Waiting,
    Starting,
    Alive,
    Ended(Exit),
    NotStarted(String),
}

/// Supervises the ranks of one node, one attempt.
#[derive(Debug)]
pub struct Supervisor {
    phase: Phase,
    /// The first stop reason in time, which takes the blame. A weightier one may come later.
    cause: Option<StopReason>,
    attempt: u32,
    grace: Duration,
    children: Vec<Child>,
}

impl Supervisor {
    /// For `ranks` children that it is to start, one after another. `grace`: time between asking to
    /// stop and killing.
    pub fn new(ranks: usize, grace: Duration) -> Self {
        let child = Child { state: State::Waiting, told: false, started: Duration::ZERO, ended: Duration::ZERO };
        Self { phase: Phase::Pending, cause: None, attempt: 0, grace, children: vec![child; ranks] }
    }

    /// For `ranks` children that somebody else has started already.
    pub fn adopting(ranks: usize, grace: Duration, now: Duration) -> Self {
        let mut machine = Self::new(ranks, grace);
        machine.phase = Phase::Running;
        for child in &mut machine.children {
            child.state = State::Alive;
            child.started = now;
        }
        machine
    }

    /// When `handle_timeout` wants to be called; `None`: never.
    pub fn next_deadline(&self) -> Option<Duration> {
        match self.phase {
            Phase::Stopping { kill_at, .. } => Some(kill_at),
            _ => None,
        }
    }

    /// Local ranks that are alive now.
    pub fn living(&self) -> Vec<usize> {
        (0..self.children.len()).filter(|&i| self.children[i].state == State::Alive).collect()
    }

    /// Whether the job is on its way down.
    pub fn is_stopping(&self) -> bool {
        matches!(self.phase, Phase::Stopping { .. } | Phase::Killing)
    }

    /// Takes in one event. The only transition function beside `handle_timeout`.
    pub fn handle(&mut self, now: Duration, event: Event, effects: &mut Vec<Effect>) {
        match event {
            Event::Start if self.phase == Phase::Pending => {
                self.phase = Phase::Running;
                self.start_next(now, effects);
            }
            Event::Start => {}
            Event::Spawned(id) => self.spawned(now, id, effects),
            Event::SpawnFailed(id, why) => self.spawn_failed(now, id, why, effects),
            Event::Exited(id, exit) => self.exited(now, id, exit, effects),
            Event::Stop(signal) => self.stop_asked(now, signal, effects),
            Event::Notify(signal) => self.tell_living(signal, effects),
        }
    }

    /// The deadline of `next_deadline` has come (or not yet: then nothing happens).
    pub fn handle_timeout(&mut self, now: Duration, effects: &mut Vec<Effect>) {
        if let Phase::Stopping { kill_at, .. } = self.phase
            && now >= kill_at
        {
            self.kill(effects);
        }
    }

    fn spawned(&mut self, now: Duration, id: ChildId, effects: &mut Vec<Effect>) {
        let Some(child) = self.child(id, &State::Starting) else { return };
        child.state = State::Alive;
        child.started = now;
        match self.phase {
            Phase::Running => self.start_next(now, effects),
            // A stop came while it was being started: it has to be told as well.
            Phase::Stopping { .. } => self.send(id.local_rank, libc::SIGTERM, effects),
            Phase::Killing => self.send(id.local_rank, libc::SIGKILL, effects),
            Phase::Pending | Phase::Finished => {}
        }
    }

    fn spawn_failed(&mut self, now: Duration, id: ChildId, why: String, effects: &mut Vec<Effect>) {
        let Some(child) = self.child(id, &State::Starting) else { return };
        child.state = State::NotStarted(why);
        self.stop(now, StopReason::StartFailed(id.local_rank), effects);
    }

    fn exited(&mut self, now: Duration, id: ChildId, exit: Exit, effects: &mut Vec<Effect>) {
        let Some(child) = self.child(id, &State::Alive) else { return };
        child.state = State::Ended(exit);
        child.ended = now;
        if !exit.is_success() && !child.told {
            self.stop(now, StopReason::RankFailed(id.local_rank), effects);
        } else {
            self.finish_if_over(now, effects);
        }
    }

    fn stop_asked(&mut self, now: Duration, signal: i32, effects: &mut Vec<Effect>) {
        match self.phase {
            Phase::Pending | Phase::Running => self.stop(now, StopReason::Asked(signal), effects),
            // Asked while a failure is being cleaned up counts as the first time, else as the second.
            Phase::Stopping { reason, kill_at } if reason < StopReason::Asked(signal) => {
                self.phase = Phase::Stopping { reason: StopReason::Asked(signal), kill_at };
                effects.push(Effect::Note(Note::Stopping { signal, living: self.living() }));
            }
            Phase::Stopping { .. } => {
                effects.push(Effect::Note(Note::Forced { living: self.living() }));
                self.kill(effects);
            }
            Phase::Killing | Phase::Finished => {}
        }
    }

    /// Begins to stop, once. A reason that does not outrank the present one changes nothing.
    fn stop(&mut self, now: Duration, reason: StopReason, effects: &mut Vec<Effect>) {
        if matches!(self.phase, Phase::Pending | Phase::Running) {
            self.cause = Some(reason);
            self.phase = Phase::Stopping { reason, kill_at: now.saturating_add(self.grace) };
            if let StopReason::Asked(signal) = reason {
                effects.push(Effect::Note(Note::Stopping { signal, living: self.living() }));
            }
            for rank in self.living() {
                self.send(rank, libc::SIGTERM, effects);
            }
        }
        self.finish_if_over(now, effects);
    }

    fn kill(&mut self, effects: &mut Vec<Effect>) {
        self.phase = Phase::Killing;
        effects.push(Effect::Note(Note::Killing { living: self.living() }));
        for rank in self.living() {
            self.send(rank, libc::SIGKILL, effects);
        }
    }

    fn send(&mut self, rank: usize, signal: i32, effects: &mut Vec<Effect>) {
        self.children[rank].told = true;
        effects.push(Effect::Kill { child: self.id(rank), signal });
    }

    fn tell_living(&self, signal: i32, effects: &mut Vec<Effect>) {
        for rank in self.living() {
            effects.push(Effect::Tell { child: self.id(rank), signal });
        }
    }

    fn start_next(&mut self, now: Duration, effects: &mut Vec<Effect>) {
        match self.children.iter().position(|c| c.state == State::Waiting) {
            Some(rank) => {
                self.children[rank].state = State::Starting;
                effects.push(Effect::Spawn(self.id(rank)));
            }
            None => self.finish_if_over(now, effects),
        }
    }

    fn finish_if_over(&mut self, now: Duration, effects: &mut Vec<Effect>) {
        let busy = |c: &Child| matches!(c.state, State::Alive | State::Starting);
        if self.phase == Phase::Finished || self.children.iter().any(busy) {
            return;
        }
        if self.cause.is_none() && self.children.iter().any(|c| c.state == State::Waiting) {
            return;
        }
        self.phase = Phase::Finished;
        effects.push(Effect::Finish(self.report(now)));
    }

    fn report(&self, now: Duration) -> Report {
        let ended = |c: &Child| if let State::Ended(exit) = c.state { Some(exit) } else { None };
        let ranks = self.children.iter().map(|c| RankReport {
            exit: ended(c),
            not_started: if let State::NotStarted(why) = &c.state { Some(why.clone()) } else { None },
            told: c.told,
            lived: ended(c).map(|_| c.ended.saturating_sub(c.started)),
        });
        let outcome = match self.cause {
            None => Outcome::Completed,
            Some(StopReason::RankFailed(culprit)) => {
                Outcome::Failed { culprit, exit: ended(&self.children[culprit]).unwrap_or(Exit::Lost) }
            }
            Some(StopReason::StartFailed(local_rank)) => Outcome::NotStarted { local_rank },
            Some(StopReason::Asked(signal)) => Outcome::Stopped { signal },
        };
        Report { outcome, ranks: ranks.collect(), at: now }
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
