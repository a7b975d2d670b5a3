//! The driver of the supervisor: waits for one event, passes it to the supervisor and carries out the effects. One thread,
//! epoll, pidfds and no tick: without an event nothing wakes up. Children are started one a turn, so that events are handled
//! between any two starts. Signals to children are sent before anything is reported. No policy lives here.

mod host;

pub use host::{AttemptState, PendingExit, RankHost, RankStart, StartError};

use crate::model::Exit;
use crate::supervise::{
    ChildId, Effect, Lifecycle, NodeReport, Recipients, StopReason, SupervisionPolicy, Supervisor, SupervisorEvent,
};
use crate::sys::clock;
use crate::sys::io::poll::Poller;
use crate::sys::process::child::Child;
use crate::sys::process::pidfd;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

/// How often the process group of an ended child is checked, beside each SIGCHLD: a process may leave the group without one.
const GROUP_INTERVAL: Duration = Duration::from_millis(50);

/// How long the engine waits for the end of the peer that a failed rank has lost. The kernel closes the sockets of a process
/// before it reports its end (exit_files before exit_notify in do_exit), and a busy machine may run others in between.
const PEER_PATIENCE: Duration = Duration::from_millis(200);

/// How long the leftovers of a rank that a stop signal has ended are left alone, although the job does not stop: who signals all
/// processes of a job reaches this one too, maybe later (systemd.kill(5), `KillMode=control-group`).
const SENDER_PATIENCE: Duration = Duration::from_millis(200);

/// Signals by which senders stop jobs. SIGABRT is how programs fail.
const SENDER_SIGNALS: [i32; 4] = [libc::SIGTERM, libc::SIGINT, libc::SIGHUP, libc::SIGQUIT];

fn is_senders(exit: Exit) -> bool {
    matches!(exit, Exit::Signal(signal) if SENDER_SIGNALS.contains(&signal))
}

/// The first token of the host's own descriptors; smaller tokens are local ranks.
pub const HOST_TOKENS: u64 = 1 << 32;

/// The start of one child at a time.
#[derive(Default)]
enum NextStart {
    /// No child is to be started.
    #[default]
    None,
    /// This child is started in the next turn.
    Due(ChildId),
    /// The host has begun to start this child.
    Pending(ChildId),
}

/// Runs the ranks of one node.
pub struct Engine {
    poll: Arc<Poller>,
    supervisor: Supervisor,
    children: Vec<Option<Arc<Child>>>,
    next_start: NextStart,
    /// The attempt of these children.
    attempt: u32,
    /// Children that were asked to stop, and the signal.
    asked: HashMap<ChildId, i32>,
    /// Children that were sent SIGKILL.
    killed: HashSet<ChildId>,
    /// Children whose leftovers have no more time.
    expired: HashSet<ChildId>,
    /// Local ranks that have ended and are not reaped yet: members of their process group live, or a debugger that traces them
    /// has not waited for them (ptrace(2), "Death under ptrace").
    lingering: BTreeSet<usize>,
    /// Those among them that a stop signal has ended although they were not asked to stop: until when a stop may come that
    /// explains it.
    unexplained: BTreeMap<usize, Duration>,
    report: Option<NodeReport>,
}

impl Engine {
    /// For ranks that the host starts; `lifecycles` by local rank.
    pub fn new(lifecycles: &[Lifecycle], policy: SupervisionPolicy) -> io::Result<Self> {
        Ok(Self {
            poll: Arc::new(Poller::new()?),
            supervisor: Supervisor::new(lifecycles, policy),
            children: vec![None; lifecycles.len()],
            next_start: NextStart::None,
            attempt: 0,
            asked: HashMap::new(),
            killed: HashSet::new(),
            expired: HashSet::new(),
            lingering: BTreeSet::new(),
            unexplained: BTreeMap::new(),
            report: None,
        })
    }

    /// For ranks that run already.
    pub fn adopting(children: Vec<Arc<Child>>, policy: SupervisionPolicy) -> io::Result<Self> {
        let poll = Poller::new()?;
        for (rank, child) in children.iter().enumerate() {
            poll.readable(child.as_fd(), rank as u64)?;
        }
        let supervisor = Supervisor::adopting(children.len(), policy, clock::now());
        let children = children.into_iter().map(Some).collect();
        Ok(Self {
            poll: Arc::new(poll),
            supervisor,
            children,
            next_start: NextStart::None,
            attempt: 0,
            asked: HashMap::new(),
            killed: HashSet::new(),
            expired: HashSet::new(),
            lingering: BTreeSet::new(),
            unexplained: BTreeMap::new(),
            report: None,
        })
    }

    /// The epoll set that the engine waits on; the host adds its own descriptors.
    pub fn poll(&self) -> &Arc<Poller> {
        &self.poll
    }

    /// Time until the supervisor's next deadline; `None`: no limit.
    pub fn time_to_deadline(&self) -> Option<Duration> {
        self.supervisor.next_deadline().map(|at| at.saturating_sub(clock::now()))
    }

    /// Time that is left to ranks that stop, or to what else the supervisor waits for; `None`: no limit.
    pub fn time_left(&self) -> Option<Duration> {
        self.supervisor.phase_end().map(|at| at.saturating_sub(clock::now()))
    }

    /// Time until the next look at ranks that have ended and are not reaped; `None`: there are none.
    pub fn time_to_next_look(&self) -> Option<Duration> {
        (!self.lingering.is_empty()).then_some(GROUP_INTERVAL)
    }

    /// Whether a stop that may have come would explain the end of a rank.
    pub fn expects_stop(&self) -> bool {
        !self.unexplained.is_empty()
    }

    /// Local ranks that are alive as far as the supervisor knows.
    pub fn living(&self) -> Vec<usize> {
        self.supervisor.living()
    }

    /// Whether this is a child that has not been reaped yet.
    pub fn owns(&self, pid: i32) -> bool {
        self.children.iter().flatten().any(|child| child.pid() == pid)
    }

    /// Why the present attempt stops, if it does: the first reason.
    pub fn reason(&self) -> Option<StopReason> {
        self.supervisor.reason()
    }

    /// Whether the present attempt is being stopped.
    pub fn is_stopping(&self) -> bool {
        self.supervisor.is_stopping()
    }

    /// Whether the present attempt is being stopped, and another one may follow.
    pub fn may_restart(&self) -> bool {
        self.supervisor.may_restart()
    }

    /// Whether another attempt follows where a user asks for it now.
    pub fn takes_restart(&self) -> bool {
        self.supervisor.takes_restart()
    }

    /// The attempt whose ranks run, unless they are stopped or suspended by the user.
    pub fn running_attempt(&self) -> Option<u32> {
        let is_running = !self.is_stopping() && !self.is_suspended() && !self.living().is_empty();
        is_running.then_some(self.attempt)
    }

    /// Whether the user has suspended the job.
    pub fn is_suspended(&self) -> bool {
        self.supervisor.is_suspended()
    }

    fn attempt_state(&self) -> AttemptState {
        match (self.supervisor.is_killing(), self.is_stopping()) {
            (true, _) => AttemptState::Killing,
            (false, true) => AttemptState::Stopping,
            (false, false) => AttemptState::Running,
        }
    }

    /// Whether ranks of the present attempt were sent SIGKILL.
    pub fn is_killing(&self) -> bool {
        self.killed.iter().any(|child| child.attempt == self.attempt)
    }

    /// The report, once all ranks have ended.
    pub fn report(&self) -> Option<&NodeReport> {
        self.report.as_ref()
    }

    /// Waits for an event, at most for `limit` and not at all while a child is to be started, and acts on it. Returns the host's
    /// tokens that are ready; empty also when a signal handler ran.
    pub fn turn(&mut self, limit: Option<Duration>, host: &mut dyn RankHost) -> io::Result<Vec<u64>> {
        let tokens = self.wait(limit, host)?;
        self.handle(tokens, host)
    }

    /// The first half of a turn: waits. Returns the tokens that are ready.
    pub fn wait(&mut self, limit: Option<Duration>, host: &dyn RankHost) -> io::Result<Vec<u64>> {
        let start_in = match self.next_start {
            NextStart::None => None,
            NextStart::Due(_) => Some(Duration::ZERO),
            NextStart::Pending(_) => host.start_due().map(|at| at.saturating_sub(clock::now())),
        };
        let until = self.delayed_until(host);
        let time_left = until.map_or_else(|| self.time_to_deadline(), |until| Some(until.saturating_sub(clock::now())));
        let timeout = [limit, start_in, time_left, self.time_to_next_look()].into_iter().flatten().min();
        self.poll.wait(timeout)
    }

    /// The second half: acts on these tokens and on deadlines. Returns the host's tokens.
    pub fn handle(&mut self, mut tokens: Vec<u64>, host: &mut dyn RankHost) -> io::Result<Vec<u64>> {
        tokens.extend(self.lingering.iter().map(|rank| *rank as u64));
        let mut ended = self.reap(&tokens, host)?;
        if ended.iter().any(|(_, exit)| !exit.is_success()) {
            // Ranks whose end no stop has explained ended before. A sender ends others of the same job too.
            if !ended.iter().all(|(_, exit)| exit.is_success() || is_senders(*exit)) {
                let earlier: Vec<_> = self.unexplained.keys().map(|rank| *rank as u64).collect();
                self.unexplained.values_mut().for_each(|until| *until = Duration::ZERO);
                ended.splice(0..0, self.reap(&earlier, host)?);
            }
            // The end of a rank that failed because of a lost peer may arrive before the end of that peer.
            if ended.iter().all(|(id, exit)| exit.is_success() || host.has_lost_peer(*id)) {
                let living: Vec<_> = self.children.iter().flatten().map(|child| child.as_fd()).collect();
                pidfd::await_any(&living, PEER_PATIENCE);
            }
            if !self.is_stopping() {
                host.before_stop();
            }
            let more = self.poll.wait(Some(Duration::ZERO))?;
            ended.extend(self.reap(&more, host)?);
            tokens.extend(more);
            // A peer that died without a word is no less the first than the one that names it.
            ended.sort_by_key(|(id, exit)| !exit.is_success() && host.has_lost_peer(*id));
        }
        if !ended.is_empty() {
            self.send(SupervisorEvent::Exited(ended), host)?;
        }
        // Descriptors that were ready at both waits are listed twice.
        tokens.retain(|t| *t >= HOST_TOKENS);
        tokens.sort_unstable();
        tokens.dedup();
        let mut effects = Vec::new();
        if self.delayed_until(host).is_none() {
            self.supervisor.handle_timeout(clock::now(), &mut effects);
        }
        self.act(effects, host)?;
        Ok(tokens)
    }

    /// Starts the next child, unless its attempt stops by now, or continues its start. To be called once a turn, after the host
    /// has handled its tokens. Returns whether the start of a child is over.
    pub fn start_next(&mut self, host: &mut dyn RankHost) -> io::Result<bool> {
        let is_stopping = self.is_stopping();
        let (id, start) = match std::mem::take(&mut self.next_start) {
            NextStart::None => return Ok(false),
            NextStart::Due(id) if is_stopping => (id, None),
            NextStart::Due(id) => {
                self.attempt = id.attempt;
                (id, Some(host.start(id)))
            }
            NextStart::Pending(id) => (id, Some(host.continue_start(id, self.attempt_state()))),
        };
        let event = match start {
            Some(Ok(RankStart::Pending)) => {
                self.next_start = NextStart::Pending(id);
                return Ok(false);
            }
            Some(Ok(RankStart::Started(child))) => {
                self.poll.readable(child.as_fd(), id.local_rank as u64)?;
                self.children[id.local_rank] = Some(child);
                SupervisorEvent::Spawned(id)
            }
            Some(Err(error)) if !is_stopping => SupervisorEvent::SpawnFailed(id, error.to_string()),
            // The attempt stops for another reason.
            Some(Err(_)) | None => SupervisorEvent::SpawnCancelled(id),
        };
        self.send(event, host)?;
        Ok(true)
    }

    /// Whether a child is being started that this process does not know yet, and must not reap.
    pub fn is_starting(&self) -> bool {
        matches!(self.next_start, NextStart::Pending(_))
    }

    /// Until when the supervisor's deadline, the start of the next attempt, has to wait, if it has. While ranks live, the
    /// deadline is another one.
    fn delayed_until(&self, host: &dyn RankHost) -> Option<Duration> {
        if self.supervisor.living().is_empty() { host.delays_restart() } else { None }
    }

    /// Passes an event from outside to the supervisor.
    pub fn send(&mut self, event: SupervisorEvent, host: &mut dyn RankHost) -> io::Result<()> {
        let mut effects = Vec::new();
        self.supervisor.handle(clock::now(), event, &mut effects);
        self.act(effects, host)
    }

    /// Reaps the children among the tokens that have ended.
    fn reap(&mut self, tokens: &[u64], host: &mut dyn RankHost) -> io::Result<Vec<(ChildId, Exit)>> {
        let mut ended = Vec::new();
        for &token in tokens.iter().filter(|t| **t < HOST_TOKENS) {
            ended.extend(self.reap_rank(token as usize, host)?);
        }
        Ok(ended)
    }

    fn reap_rank(&mut self, rank: usize, host: &mut dyn RankHost) -> io::Result<Option<(ChildId, Exit)>> {
        let Some(child) = self.children.get(rank).cloned().flatten() else { return Ok(None) };
        let id = ChildId { attempt: self.attempt, local_rank: rank };
        if let Some(exit) = child.exit_of_zombie().filter(|_| child.leads_group()) {
            if self.awaits_stop(id, (&child, exit), host) {
                self.linger(rank, &child)?;
                return Ok(None);
            }
            if self.leftovers_have_time(id, &child, host) {
                self.linger(rank, &child)?;
                self.send(SupervisorEvent::MainProcessEnded(id), host)?;
                return Ok(None);
            }
            let unreaped: BTreeSet<i32> = self.children.iter().flatten().map(|c| c.pid()).collect();
            let killed = self.killed.contains(&id);
            host.before_reap(&PendingExit { id, pid: child.pid(), killed, unreaped: &unreaped });
        }
        let Some(exit) = child.try_exit()? else {
            self.linger(rank, &child)?;
            return Ok(None);
        };
        self.forget(rank, &child)?;
        self.children[rank] = None;
        let signalled = self.asked.contains_key(&id) || self.killed.contains(&id);
        host.reaped(id, &child, exit, signalled);
        Ok(Some((id, exit)))
    }

    /// Whether the request to stop that explains this end may be still to come, and matters to other processes of the group.
    fn awaits_stop(&mut self, id: ChildId, (child, exit): (&Child, Exit), host: &dyn RankHost) -> bool {
        let was_signalled = self.asked.contains_key(&id) || self.killed.contains(&id);
        if !is_senders(exit) || was_signalled || !host.group_lingers(child.pid()) {
            return false;
        }
        let now = clock::now();
        now < *self.unexplained.entry(id.local_rank).or_insert(now + SENDER_PATIENCE)
    }

    /// Whether other processes of the group of a child that has ended are waited for.
    fn leftovers_have_time(&mut self, id: ChildId, child: &Child, host: &dyn RankHost) -> bool {
        let Some(signal) = self.asked.get(&id) else { return false };
        let is_over = self.killed.contains(&id) || self.expired.contains(&id);
        let is_known = self.unexplained.remove(&id.local_rank).is_none() && self.lingering.contains(&id.local_rank);
        !is_over && host.group_lingers(child.pid()) && (is_known || host.group_heeds(child.pid(), *signal))
    }

    /// Looks at a rank at intervals from now on: its descriptor is readable, and would wake each wait at once. If it is no longer
    /// readable, it is waited for again.
    fn linger(&mut self, rank: usize, child: &Child) -> io::Result<()> {
        let is_readable = pidfd::await_any(&[child.as_fd()], Duration::ZERO);
        match (is_readable, self.lingering.contains(&rank)) {
            (true, false) => {
                self.poll.forget(child.as_fd())?;
                self.lingering.insert(rank);
            }
            (false, true) => {
                self.poll.readable(child.as_fd(), rank as u64)?;
                self.lingering.remove(&rank);
            }
            (true, true) | (false, false) => {}
        }
        Ok(())
    }

    /// Stops looking at ranks at intervals. Until the next turn, those that have ended wake each wait at once: also that of
    /// another thread which waits on `poll` without a limit.
    pub fn stop_looking(&mut self) -> io::Result<()> {
        for rank in std::mem::take(&mut self.lingering) {
            if let Some(child) = self.children.get(rank).and_then(Option::as_ref) {
                self.poll.readable(child.as_fd(), rank as u64)?;
            }
        }
        Ok(())
    }

    fn forget(&mut self, rank: usize, child: &Child) -> io::Result<()> {
        self.unexplained.remove(&rank);
        if self.lingering.remove(&rank) { Ok(()) } else { self.poll.forget(child.as_fd()) }
    }

    fn act(&mut self, effects: Vec<Effect>, host: &mut dyn RankHost) -> io::Result<()> {
        let groups = self.groups_to_kill(&effects);
        // A note may be written to a slow disk or terminal.
        let mut notes = Vec::new();
        let mut judged = None;
        let mut is_first_kill = true;
        for effect in effects {
            match effect {
                Effect::Spawn(id) => self.next_start = NextStart::Due(id),
                Effect::Kill { child, signal, to } => {
                    // Stopped children have been resumed by now.
                    if std::mem::take(&mut is_first_kill) {
                        host.before_kill(&groups);
                    }
                    if signal == libc::SIGKILL {
                        self.killed.insert(child);
                    } else {
                        self.asked.insert(child, signal);
                    }
                    match to {
                        Recipients::MainProcessFirst => self.ask_to_stop(child, signal, host),
                        Recipients::Rest => self.signal(child, |c| host.signal_rest(c, signal)),
                        Recipients::Group => self.signal(child, |c| host.signal(c, signal)),
                    }
                }
                Effect::EndLeftovers(child) => drop(self.expired.insert(child)),
                Effect::ForwardSignal { child, signal } => self.signal(child, |c| c.signal_leader(signal)),
                Effect::Suspend(child) => self.signal(child, |c| c.signal(libc::SIGSTOP)),
                Effect::Resume(child) => self.signal(child, |c| c.signal(libc::SIGCONT)),
                Effect::Abandon(id) => {
                    if let Some(child) = self.children.get_mut(id.local_rank).and_then(Option::take) {
                        self.forget(id.local_rank, &child)?;
                    }
                }
                Effect::Judge(rank, exit) => judged = Some(host.judge((rank, exit))),
                Effect::Sweep => host.sweep_job(),
                Effect::Note(note) => notes.push(note),
                Effect::Finish(report) => self.report = Some(report),
            }
        }
        notes.into_iter().for_each(|note| host.report_progress(note));
        judged.map_or(Ok(()), |culprit| self.send(SupervisorEvent::Judged(culprit), host))
    }

    fn ask_to_stop(&mut self, id: ChildId, signal: i32, host: &mut dyn RankHost) {
        let Some(child) = self.children.get(id.local_rank).and_then(Option::as_ref) else { return };
        if let Some(main) = host.ask_to_stop(child, signal) {
            // An answer without effects.
            self.supervisor.handle(clock::now(), SupervisorEvent::SignalledAlone(id, main), &mut Vec::new());
        }
    }

    /// The process groups that these effects kill.
    fn groups_to_kill(&self, effects: &[Effect]) -> Vec<i32> {
        let killed = effects.iter().filter_map(|effect| match effect {
            Effect::Kill { child, .. } => self.children.get(child.local_rank)?.as_ref(),
            _ => None,
        });
        killed.filter(|child| child.leads_group()).map(|child| child.pid()).collect()
    }

    /// A rank that may not be signalled (it changed its user) ends by itself, or is abandoned after the grace period.
    fn signal(&self, id: ChildId, mut send: impl FnMut(&Child) -> io::Result<()>) {
        if let Some(Some(child)) = self.children.get(id.local_rank) {
            let _ = send(child);
        }
    }
}

impl Drop for Engine {
    /// Kills the ranks of an engine that is dropped before its end (an I/O error, a panic), unless another owner has them.
    fn drop(&mut self) {
        for child in self.children.iter().flatten() {
            if self.report.is_none() && Arc::strong_count(child) == 1 {
                let _ = child.signal(libc::SIGKILL);
            }
        }
    }
}
