//! State machine that supervises the ranks of one node. A stop signal (SIGTERM, SIGINT, ...) reaches the launcher process, which
//! passes it to this process (`run/launcher_process.rs`); `run/stop_requests.rs` makes it an event. It
//! sends SIGTERM to every living rank (`groups.rs`: to which of its processes, and when); what lives after the grace period
//! (`--grace_period`, 30 s) gets SIGKILL, and after `KILL_PATIENCE` more is reported as unkillable. A second stop signal ends the
//! grace period.

mod aborts;
mod attempt_end;
mod groups;
mod stragglers;
mod user_requests;

use super::child::{AbortedRank, ChildState, GroupState, SupervisedChild};
use super::event::{ChildId, Effect, ProgressNote, RankStop, Recipients, SupervisorEvent};
use super::lifecycle::{Lifecycle, effective_lifecycles};
use super::policy::SupervisionPolicy;
use super::report::AttemptReport;
use super::restart::RestartCounter;
use super::stop::{KILL_PATIENCE, Reasons, StopReason, last_call};
use super::timer::Timer;
use crate::model::Exit;
use std::time::Duration;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SupervisorPhase {
    Pending,
    /// The timer, if it is armed, is `straggler_timeout`.
    Running,
    /// Only awaited servers are alive; the timer is `server_timeout`.
    AwaitingServers,
    /// The stop signal has been sent; the timer is the grace period.
    Stopping,
    /// SIGKILL has been sent; the timer is `KILL_PATIENCE`.
    Killing,
    /// No child is alive; the timer is the delay before the next attempt.
    Backoff(AttemptReport),
    Finished,
}

/// Supervises the ranks of one node through all their attempts.
#[derive(Debug)]
pub struct Supervisor {
    phase: SupervisorPhase,
    timer: Timer,
    /// Armed while the stop signal is held back from the process group of a rank: it gets it then.
    last_call: Timer,
    /// Why the current attempt stops.
    reasons: Option<Reasons>,
    attempt: u32,
    began: Duration,
    children: Vec<SupervisedChild>,
    grace: Duration,
    stop_by: Option<Duration>,
    server_timeout: Option<Duration>,
    straggler_timeout: Option<Duration>,
    /// The first `Main` child of the attempt that has exited successfully.
    first_done: Option<usize>,
    /// Whether the time of the others has begun.
    are_stragglers_limited: bool,
    aborted: Vec<AbortedRank>,
    repeats_signal: bool,
    in_rounds: bool,
    forbids_restarts: bool,
    restarts: RestartCounter,
    /// The attempts that were followed by another.
    attempts: Vec<AttemptReport>,
}

impl Supervisor {
    /// Supervises children that it starts one after another; `lifecycles` is by local rank.
    pub fn new(lifecycles: &[Lifecycle], policy: SupervisionPolicy) -> Self {
        Self {
            phase: SupervisorPhase::Pending,
            timer: Timer::default(),
            last_call: Timer::default(),
            reasons: None,
            attempt: policy.first_attempt,
            began: Duration::ZERO,
            children: effective_lifecycles(lifecycles).map(SupervisedChild::new).collect(),
            grace: policy.grace,
            stop_by: policy.stop_by,
            server_timeout: policy.server_timeout,
            // Servers alone never end by themselves.
            straggler_timeout: policy.straggler_timeout.filter(|_| lifecycles.contains(&Lifecycle::Main)),
            first_done: None,
            are_stragglers_limited: false,
            aborted: Vec::new(),
            repeats_signal: policy.repeats_signal,
            in_rounds: policy.in_rounds,
            forbids_restarts: false,
            restarts: RestartCounter::new(policy.restart),
            attempts: Vec::new(),
        }
    }

    /// Supervises `ranks` children that already run, all of them `Lifecycle::Main`.
    pub fn adopting(ranks: usize, policy: SupervisionPolicy, now: Duration) -> Self {
        let alive = SupervisedChild { state: ChildState::Alive, started: now, ..SupervisedChild::new(Lifecycle::Main) };
        let machine = Self::new(&[], policy);
        Self { phase: SupervisorPhase::Running, began: now, children: vec![alive; ranks], ..machine }
    }

    /// When `handle_timeout` is due; `None`: not before the next event.
    pub fn next_deadline(&self) -> Option<Duration> {
        let aborted = self.aborted.iter().map(|rank| rank.timer.due());
        let leftovers = self.children.iter().filter_map(SupervisedChild::leftover_due).map(Some);
        aborted.chain(leftovers).chain([self.timer.due(), self.last_call.due()]).flatten().min()
    }

    /// When the grace period or another time of the phase ends; `None`: not before the next event.
    pub fn phase_end(&self) -> Option<Duration> {
        self.timer.due()
    }

    /// Local ranks that are alive.
    pub fn living(&self) -> Vec<usize> {
        (0..self.children.len()).filter(|&i| self.children[i].state == ChildState::Alive).collect()
    }

    /// The first reason for which the current attempt stops.
    pub fn reason(&self) -> Option<StopReason> {
        self.reasons.map(|reasons| reasons.first)
    }

    /// Whether the current attempt stops.
    pub fn is_stopping(&self) -> bool {
        matches!(self.phase, SupervisorPhase::Stopping | SupervisorPhase::Killing)
    }

    /// Whether the ranks of the current attempt are killed: its grace period is over.
    pub fn is_killing(&self) -> bool {
        self.phase == SupervisorPhase::Killing
    }

    /// Whether the user has suspended the job.
    pub fn is_suspended(&self) -> bool {
        self.timer.is_paused()
    }

    /// Handles one event. Only this and `handle_timeout` change the state.
    pub fn handle(&mut self, now: Duration, event: SupervisorEvent, effects: &mut Vec<Effect>) {
        match event {
            SupervisorEvent::Start => self.start(now, effects),
            SupervisorEvent::Spawned(id) => self.spawned(now, id, effects),
            SupervisorEvent::SpawnFailed(id, why) => self.spawn_failed(now, id, why, effects),
            SupervisorEvent::SpawnCancelled(id) => self.spawn_cancelled(now, id, effects),
            SupervisorEvent::Exited(ended) => self.exited(now, &ended, effects),
            SupervisorEvent::Judged(culprit) => self.judged(now, culprit, effects),
            SupervisorEvent::SignalledAlone(id, main) => self.signalled_alone(now, id, main),
            SupervisorEvent::MainProcessEnded(id) => self.main_process_ended(now, id, effects),
            SupervisorEvent::Stop(signal) => self.stop_signalled(now, signal, effects),
            SupervisorEvent::StopAgain(signal) => self.stop_again(now, signal, effects),
            SupervisorEvent::Regroup(stop) => self.regroup(now, stop, effects),
            SupervisorEvent::ForwardSignal(signal) => {
                self.for_each_living(effects, |child| Effect::ForwardSignal { child, signal })
            }
            SupervisorEvent::Abort { ranks, reason } => self.abort_requested(now, &ranks, reason, effects),
            SupervisorEvent::LimitGrace(grace) => self.limit_grace(now, grace),
            SupervisorEvent::Restart { grace } => self.restart_requested(now, grace, effects),
            SupervisorEvent::ForbidRestarts => self.forbids_restarts = true,
            SupervisorEvent::Suspend => self.suspend(now, effects),
            SupervisorEvent::Resume => self.resume(now, effects),
            SupervisorEvent::LauncherKilled => self.launcher_killed(now, effects),
        }
    }

    /// Handles the deadline of `next_deadline`; before that time it does nothing.
    pub fn handle_timeout(&mut self, now: Duration, effects: &mut Vec<Effect>) {
        self.end_leftovers(now, effects);
        self.make_last_call(now, effects);
        if self.end_aborted(now, effects) || self.timer.due().is_none_or(|at| now < at) {
            return;
        }
        self.timer.disarm();
        match self.phase {
            SupervisorPhase::AwaitingServers => self.finish_work(now, effects),
            SupervisorPhase::Stopping => self.kill(now, effects),
            SupervisorPhase::Killing => self.abandon(now, effects),
            SupervisorPhase::Backoff(ended) => self.restart(now, ended, effects),
            SupervisorPhase::Running => self.abort_stragglers(now, effects),
            SupervisorPhase::Pending | SupervisorPhase::Finished => {}
        }
    }

    fn start(&mut self, now: Duration, effects: &mut Vec<Effect>) {
        if self.phase == SupervisorPhase::Pending {
            self.phase = SupervisorPhase::Running;
            self.began = now;
            self.proceed(now, effects);
        }
    }

    /// Continues after an event without a failure: starts the next child, or ends the attempt.
    fn proceed(&mut self, now: Duration, effects: &mut Vec<Effect>) {
        if !self.is_running() {
            self.restart_or_finish(now, effects);
        } else if self.is_done() {
            self.finish_work(now, effects);
        } else if let Some(rank) = self.next_to_start() {
            self.children[rank].state = ChildState::Starting;
            effects.push(Effect::Spawn(self.id(rank)));
        } else if self.phase != SupervisorPhase::AwaitingServers && self.only_servers_are_left() {
            self.phase = SupervisorPhase::AwaitingServers;
            self.timer.disarm();
            if let Some(limit) = self.server_timeout {
                self.timer.arm(now, limit);
            }
            let (living, limit) = (self.living(), self.server_timeout);
            effects.push(Effect::Note(ProgressNote::AwaitingServers { living, limit }));
        }
    }

    /// The work is done: servers that are alive are signalled.
    fn finish_work(&mut self, now: Duration, effects: &mut Vec<Effect>) {
        let living = self.living();
        if !living.is_empty() {
            effects.push(Effect::Note(ProgressNote::Finishing { living }));
        }
        self.stop(now, StopReason::Done, effects);
    }

    fn is_running(&self) -> bool {
        matches!(self.phase, SupervisorPhase::Running | SupervisorPhase::AwaitingServers)
    }

    /// All children have been started, and all but servers have exited successfully.
    fn only_servers_are_left(&self) -> bool {
        self.children.iter().all(|c| match c.lifecycle {
            Lifecycle::Server | Lifecycle::AwaitedServer => !matches!(c.state, ChildState::Starting),
            Lifecycle::First | Lifecycle::Main => c.exited_successfully(),
        })
    }

    /// Children start one at a time, and none starts while a `First` runs.
    fn next_to_start(&self) -> Option<usize> {
        let blocks_starts = |c: &SupervisedChild| {
            c.state == ChildState::Starting || c.lifecycle == Lifecycle::First && c.state == ChildState::Alive
        };
        let waiting = (0..self.children.len()).filter(|&i| self.children[i].state == ChildState::Waiting);
        let next = waiting.min_by_key(|&i| self.children[i].lifecycle != Lifecycle::First);
        next.filter(|_| !self.children.iter().any(blocks_starts))
    }

    /// All children but the servers have exited successfully.
    fn is_done(&self) -> bool {
        self.children.iter().all(|c| c.lifecycle == Lifecycle::Server || c.exited_successfully())
    }

    fn spawned(&mut self, now: Duration, id: ChildId, effects: &mut Vec<Effect>) {
        let Some(child) = self.child(id, &ChildState::Starting) else { return };
        child.state = ChildState::Alive;
        child.started = now;
        match self.phase {
            _ if self.is_running() => {
                self.limit_stragglers(now);
                self.proceed(now, effects);
            }
            // A stop came while the child was being started, so it has not been signalled yet.
            SupervisorPhase::Stopping => self.ask_to_stop(id.local_rank, effects),
            SupervisorPhase::Killing => {
                self.send(id.local_rank, libc::SIGKILL, Recipients::Group, effects);
                self.timer.arm(now, KILL_PATIENCE);
            }
            _ => {}
        }
        if self.timer.is_paused() {
            effects.push(Effect::Suspend(id));
        }
    }

    fn spawn_failed(&mut self, now: Duration, id: ChildId, why: String, effects: &mut Vec<Effect>) {
        let Some(child) = self.child(id, &ChildState::Starting) else { return };
        child.state = ChildState::NotStarted(why);
        self.stop(now, StopReason::StartFailed(id.local_rank), effects);
    }

    fn spawn_cancelled(&mut self, now: Duration, id: ChildId, effects: &mut Vec<Effect>) {
        let Some(child) = self.child(id, &ChildState::Starting) else { return };
        child.state = ChildState::Waiting;
        self.proceed(now, effects);
    }

    fn exited(&mut self, now: Duration, ended: &[(ChildId, Exit)], effects: &mut Vec<Effect>) {
        let (mut any_ended, mut failed) = (false, None);
        for &(id, exit) in ended {
            let Some(child) = self.child(id, &ChildState::Alive) else { continue };
            any_ended = true;
            child.state = ChildState::Ended { exit, lived: now.saturating_sub(child.started) };
            if !exit.is_success() && !child.signalled {
                failed.get_or_insert(StopReason::RankFailed(id.local_rank, exit));
            }
        }
        self.forget_ended_aborted();
        match failed {
            // When the work is done, a server may fail because its clients have exited.
            Some(reason) if !self.is_done() => self.stop(now, reason, effects),
            _ if any_ended => {
                self.note_first_done(now, ended);
                self.proceed(now, effects);
            }
            _ => {}
        }
    }

    fn regroup(&mut self, now: Duration, stop: RankStop, effects: &mut Vec<Effect>) {
        match stop {
            _ if self.phase == SupervisorPhase::Finished => {}
            RankStop::WithGrace => self.stop(now, StopReason::Regroup, effects),
            RankStop::AtOnce => self.kill_for(now, StopReason::Regroup, effects),
        }
    }

    /// Ranks that a signal stops keep their grace period: platforms kill the launcher soon after it (IPython after half a second).
    fn launcher_killed(&mut self, now: Duration, effects: &mut Vec<Effect>) {
        match self.phase {
            SupervisorPhase::Finished => {}
            SupervisorPhase::Stopping if self.is_stopped_by_signal() => {
                self.resume(now, effects);
                self.add_reason(StopReason::LauncherKilled);
            }
            _ => self.kill_for(now, StopReason::LauncherKilled, effects),
        }
    }

    /// Kills what runs, without a grace period.
    fn kill_for(&mut self, now: Duration, reason: StopReason, effects: &mut Vec<Effect>) {
        self.resume(now, effects);
        self.add_reason(reason);
        if self.is_running() || self.phase == SupervisorPhase::Stopping {
            self.kill(now, effects);
        }
        self.restart_or_finish(now, effects);
    }

    /// A suspended process does not handle SIGTERM, so every stop ends the suspension first.
    fn suspend(&mut self, now: Duration, effects: &mut Vec<Effect>) {
        if !self.timer.is_paused() && !matches!(self.phase, SupervisorPhase::Pending | SupervisorPhase::Finished) {
            self.last_call.pause(now);
            self.timers().for_each(|timer| timer.pause(now));
            self.for_each_living(effects, Effect::Suspend);
        }
    }

    fn resume(&mut self, now: Duration, effects: &mut Vec<Effect>) {
        if self.timer.is_paused() {
            // The deadline from outside is not suspended.
            let latest = self.stop_by.filter(|_| self.phase == SupervisorPhase::Stopping);
            let last_call = latest.map(|at| at.saturating_sub(last_call(self.grace)));
            self.last_call.resume(now, last_call);
            self.timers().for_each(|timer| timer.resume(now, latest));
            self.for_each_living(effects, Effect::Resume);
        }
    }

    /// All but `last_call`.
    fn timers(&mut self) -> impl Iterator<Item = &mut Timer> {
        let leftovers = self.children.iter_mut().filter_map(|child| match &mut child.group {
            GroupState::Leftover(timer) => Some(timer),
            _ => None,
        });
        self.aborted.iter_mut().map(|rank| &mut rank.timer).chain(leftovers).chain([&mut self.timer])
    }

    fn add_reason(&mut self, reason: StopReason) {
        self.reasons = Some(Reasons::with(self.reasons, reason));
    }

    /// Begins to stop, once. A later reason changes neither the culprit nor the end of the grace period.
    fn stop(&mut self, now: Duration, reason: StopReason, effects: &mut Vec<Effect>) {
        self.stop_within(now, reason, self.grace, effects);
    }

    fn stop_within(&mut self, now: Duration, reason: StopReason, grace: Duration, effects: &mut Vec<Effect>) {
        self.add_reason(reason);
        if self.phase == SupervisorPhase::Pending || self.is_running() {
            self.resume(now, effects);
            let limit = self.time_to_end(now, grace);
            self.phase = SupervisorPhase::Stopping;
            self.timer.arm(now, limit);
            self.aborted.clear();
            for rank in self.living() {
                self.ask_to_stop(rank, effects);
            }
        }
        self.restart_or_finish(now, effects);
    }

    /// How long ranks have to end, from now on, in a stop with this grace period: none prolongs the time that they have already.
    fn time_to_end(&self, now: Duration, grace: Duration) -> Duration {
        let left = |due: Option<Duration>| due.map(|at| at.saturating_sub(now));
        let limit = match self.phase {
            SupervisorPhase::Stopping => Some(left(self.timer.due()).unwrap_or_default()),
            _ => self.time_left_to_aborted(now),
        };
        [limit, left(self.stop_by)].into_iter().flatten().fold(grace, Duration::min)
    }

    /// The signal that asks a rank to end.
    fn stop_signal(&self) -> i32 {
        match self.reasons {
            Some(Reasons { first: StopReason::Signal(signal), .. }) if self.repeats_signal => signal,
            _ => libc::SIGTERM,
        }
    }

    fn kill(&mut self, now: Duration, effects: &mut Vec<Effect>) {
        self.phase = SupervisorPhase::Killing;
        self.timer.arm(now, KILL_PATIENCE);
        self.last_call.disarm();
        self.aborted.clear();
        effects.push(Effect::Note(ProgressNote::Killing { living: self.living() }));
        for rank in self.living() {
            self.send(rank, libc::SIGKILL, Recipients::Group, effects);
        }
    }

    fn abandon(&mut self, now: Duration, effects: &mut Vec<Effect>) {
        let living = self.living();
        if !living.is_empty() {
            effects.push(Effect::Note(ProgressNote::Unkillable { living: living.clone() }));
        }
        self.for_each_living(effects, Effect::Abandon);
        for rank in living {
            self.children[rank].state = ChildState::Abandoned;
        }
        self.restart_or_finish(now, effects);
    }

    fn restart(&mut self, now: Duration, ended: AttemptReport, effects: &mut Vec<Effect>) {
        self.attempts.push(ended);
        self.attempt += 1;
        self.began = now;
        for child in &mut self.children {
            if child.lifecycle != Lifecycle::First || !child.exited_successfully() || child.signalled {
                *child = SupervisedChild::new(child.lifecycle);
            }
        }
        self.phase = SupervisorPhase::Running;
        self.first_done = None;
        self.are_stragglers_limited = false;
        effects.push(Effect::Sweep);
        self.proceed(now, effects);
    }

    fn ask_to_stop(&mut self, rank: usize, effects: &mut Vec<Effect>) {
        self.send(rank, self.stop_signal(), Recipients::MainProcessFirst, effects);
    }

    fn send(&mut self, rank: usize, signal: i32, to: Recipients, effects: &mut Vec<Effect>) {
        let child = &mut self.children[rank];
        child.signalled = true;
        child.killed |= signal == libc::SIGKILL;
        child.group = GroupState::Reached;
        effects.push(Effect::Kill { child: self.id(rank), signal, to });
    }

    fn for_each_living(&self, effects: &mut Vec<Effect>, effect: impl Fn(ChildId) -> Effect) {
        effects.extend(self.living().into_iter().map(|rank| effect(self.id(rank))));
    }

    fn id(&self, local_rank: usize) -> ChildId {
        ChildId { attempt: self.attempt, local_rank }
    }

    /// The child of an event, if it belongs to the current attempt and is in this state.
    fn child(&mut self, id: ChildId, state: &ChildState) -> Option<&mut SupervisedChild> {
        if id.attempt != self.attempt {
            return None;
        }
        self.children.get_mut(id.local_rank).filter(|c| c.state == *state)
    }
}
