//! The driver: waits for one thing to happen, hands it to the supervisor, does what it says. One
//! thread, epoll, pidfds, no tick: without an event nothing wakes up. No policy lives here.

use crate::model::Exit;
use crate::supervise::{ChildId, Effect, Event, Note, Part, Policy, Report, StopReason, Supervisor};
use crate::sys::child::Child;
use crate::sys::clock;
use crate::sys::pidfd;
use crate::sys::poll::Poll;
use std::collections::{BTreeSet, HashSet, VecDeque};
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

/// What the engine needs from whoever runs it.
pub trait Host {
    /// Starts a child. The error is text for people.
    fn start(&mut self, id: ChildId) -> Result<Arc<Child>, String>;
    /// Whether somebody else in the process group of a child, which was asked to stop and has ended, is still at it, and
    /// is to have the time that the child had: a shell dies of a signal at once, the program that it ran saves its work.
    fn lingers(&self, _pid: i32) -> bool {
        false
    }
    /// Whether the next attempt has to wait, however long its time has come.
    fn holds_up(&self) -> bool {
        false
    }
    /// A child that leads a session has ended.
    fn ended(&mut self, _end: &End<'_>) {}
    /// Its status has been collected.
    fn collected(&mut self, _id: ChildId, _child: &Child, _exit: Exit) {}
    /// Whether a child that has failed says that it did because another one was gone.
    fn lost_peer(&mut self, _id: ChildId) -> bool {
        false
    }
    /// Ends what is left of the job: a new attempt begins.
    fn sweep(&mut self) {}
    /// Says something to whoever watches.
    fn note(&mut self, note: Note);
}

/// The end of a child whose status has not been collected yet.
pub struct End<'a> {
    /// Whose.
    pub id: ChildId,
    /// Its process id: still the number of its session and of its process group.
    pub pid: i32,
    /// Whether SIGKILL was sent to its process group.
    pub killed: bool,
    /// The ids of all children that have not been collected.
    pub ranks: &'a [i32],
}

/// How often the group of a child that has ended is looked at.
const AGAIN: Duration = Duration::from_millis(5);

/// How long the end of the peer that a rank has lost is waited for. The kernel closes a process's sockets before it says
/// that the process has ended (exit_files before exit_notify in do_exit), and a busy machine may do other things between.
const OF_A_PEER: Duration = Duration::from_millis(50);

/// Tokens of the host's own descriptors start here; below are local ranks.
pub const HOST_TOKENS: u64 = 1 << 32;

/// Runs the ranks of one node.
pub struct Engine {
    poll: Arc<Poll>,
    supervisor: Supervisor,
    children: Vec<Option<Arc<Child>>>,
    /// The attempt that they belong to.
    attempt: u32,
    /// Those that were asked to stop.
    asked: HashSet<ChildId>,
    /// Those that were sent SIGKILL.
    killed: HashSet<ChildId>,
    /// Local ranks that have ended, and whose group has not.
    lingering: BTreeSet<usize>,
    report: Option<Report>,
}

impl Engine {
    /// For ranks that the engine starts itself, through its host; `parts` by local rank.
    pub fn new(parts: &[Part], policy: Policy) -> io::Result<Self> {
        Ok(Self {
            poll: Arc::new(Poll::new()?),
            supervisor: Supervisor::new(parts, policy),
            children: vec![None; parts.len()],
            attempt: 0,
            asked: HashSet::new(),
            killed: HashSet::new(),
            lingering: BTreeSet::new(),
            report: None,
        })
    }

    /// For ranks that have been started already.
    pub fn adopting(children: Vec<Arc<Child>>, policy: Policy) -> io::Result<Self> {
        let poll = Poll::new()?;
        for (rank, child) in children.iter().enumerate() {
            poll.readable(child.as_fd(), rank as u64)?;
        }
        let supervisor = Supervisor::adopting(children.len(), policy, clock::now());
        let children = children.into_iter().map(Some).collect();
        Ok(Self {
            poll: Arc::new(poll),
            supervisor,
            children,
            attempt: 0,
            asked: HashSet::new(),
            killed: HashSet::new(),
            lingering: BTreeSet::new(),
            report: None,
        })
    }

    /// The set the engine waits on; the host adds its own descriptors to it.
    pub fn poll(&self) -> &Arc<Poll> {
        &self.poll
    }

    /// How long until the supervisor wants a turn whatever happens; `None`: for ever.
    pub fn time_left(&self) -> Option<Duration> {
        self.supervisor.next_deadline().map(|at| at.saturating_sub(clock::now()))
    }

    /// Local ranks that are alive, as far as has been seen.
    pub fn living(&self) -> Vec<usize> {
        self.supervisor.living()
    }

    /// Whether this is a child that has not been collected yet.
    pub fn owns(&self, pid: i32) -> bool {
        self.children.iter().flatten().any(|child| child.pid() == pid)
    }

    /// Why the present attempt stops, if it does.
    pub fn reason(&self) -> Option<StopReason> {
        self.supervisor.reason()
    }

    /// Whether the job is on its way down.
    pub fn is_stopping(&self) -> bool {
        self.supervisor.is_stopping()
    }

    /// What remains, once it is over.
    pub fn report(&self) -> Option<&Report> {
        self.report.as_ref()
    }

    /// Waits for `limit` at most until something happens, and acts on it. Returns those tokens of the
    /// host's that are ready; empty also when a signal handler ran.
    pub fn turn(&mut self, limit: Option<Duration>, host: &mut dyn Host) -> io::Result<Vec<u64>> {
        let again = (!self.lingering.is_empty()).then_some(AGAIN);
        let time_left = self.time_left().filter(|_| !self.is_held_up(host));
        let timeout = [limit, time_left, again].into_iter().flatten().min();
        let mut tokens = self.poll.wait(timeout)?;
        tokens.extend(self.lingering.iter().map(|rank| *rank as u64));
        let mut ended = self.collect(&tokens, host)?;
        if ended.iter().any(|(_, exit)| !exit.is_success()) {
            // A rank that fails because its peer is gone may be seen before that peer, which died first.
            if ended.iter().all(|(id, exit)| exit.is_success() || host.lost_peer(*id)) {
                let living: Vec<_> = self.children.iter().flatten().map(|child| child.as_fd()).collect();
                pidfd::await_any(&living, OF_A_PEER);
            }
            let more = self.poll.wait(Some(Duration::ZERO))?;
            ended.extend(self.collect(&more, host)?);
            tokens.extend(more);
            if ended.len() > 1 {
                ended.sort_by_key(|(id, exit)| !exit.is_success() && host.lost_peer(*id));
            }
        }
        if !ended.is_empty() {
            self.send(Event::Exited(ended), host)?;
        }
        // Sorted, because what was ready at both looks is there twice.
        tokens.retain(|t| *t >= HOST_TOKENS);
        tokens.sort_unstable();
        tokens.dedup();
        let mut effects = Vec::new();
        if !self.is_held_up(host) {
            self.supervisor.handle_timeout(clock::now(), &mut effects);
        }
        self.act(effects, host)?;
        Ok(tokens)
    }

    /// Where somebody lives, the time that runs out is another.
    fn is_held_up(&self, host: &dyn Host) -> bool {
        host.holds_up() && self.supervisor.living().is_empty()
    }

    /// Hands an event from outside to the supervisor.
    pub fn send(&mut self, event: Event, host: &mut dyn Host) -> io::Result<()> {
        let mut effects = Vec::new();
        self.supervisor.handle(clock::now(), event, &mut effects);
        self.act(effects, host)
    }

    /// The ends of those children, among the tokens, that have ended.
    fn collect(&mut self, tokens: &[u64], host: &mut dyn Host) -> io::Result<Vec<(ChildId, Exit)>> {
        let mut ended = Vec::new();
        for &token in tokens.iter().filter(|t| **t < HOST_TOKENS) {
            ended.extend(self.look_at(token as usize, host)?);
        }
        Ok(ended)
    }

    fn look_at(&mut self, rank: usize, host: &mut dyn Host) -> io::Result<Option<(ChildId, Exit)>> {
        let Some(child) = self.children.get(rank).cloned().flatten() else { return Ok(None) };
        let id = ChildId { attempt: self.attempt, local_rank: rank };
        if child.leads_group() && child.has_ended()? {
            if self.asked.contains(&id) && !self.killed.contains(&id) && host.lingers(child.pid()) {
                if self.lingering.insert(rank) {
                    self.poll.forget(child.as_fd())?;
                }
                return Ok(None);
            }
            let ranks: Vec<i32> = self.children.iter().flatten().map(|c| c.pid()).collect();
            host.ended(&End { id, pid: child.pid(), killed: self.killed.contains(&id), ranks: &ranks });
        }
        let Some(exit) = child.try_exit()? else { return Ok(None) };
        self.forget(rank, &child)?;
        self.children[rank] = None;
        host.collected(id, &child, exit);
        Ok(Some((id, exit)))
    }

    fn forget(&mut self, rank: usize, child: &Child) -> io::Result<()> {
        if self.lingering.remove(&rank) { Ok(()) } else { self.poll.forget(child.as_fd()) }
    }

    fn act(&mut self, effects: Vec<Effect>, host: &mut dyn Host) -> io::Result<()> {
        let mut todo = VecDeque::from(effects);
        while let Some(effect) = todo.pop_front() {
            match effect {
                Effect::Spawn(id) => {
                    self.attempt = id.attempt;
                    let event = match host.start(id) {
                        Ok(child) => {
                            self.poll.readable(child.as_fd(), id.local_rank as u64)?;
                            self.children[id.local_rank] = Some(child);
                            Event::Spawned(id)
                        }
                        Err(why) => Event::SpawnFailed(id, why),
                    };
                    let mut more = Vec::new();
                    self.supervisor.handle(clock::now(), event, &mut more);
                    todo.extend(more);
                }
                Effect::Kill { child, signal } => {
                    if signal == libc::SIGKILL {
                        self.killed.insert(child);
                    } else {
                        self.asked.insert(child);
                    }
                    self.signal(child, |c| c.signal(signal));
                }
                Effect::Tell { child, signal } => self.signal(child, |c| c.signal_leader(signal)),
                Effect::Freeze(child) => self.signal(child, |c| c.signal(libc::SIGSTOP)),
                Effect::Thaw(child) => self.signal(child, |c| c.signal(libc::SIGCONT)),
                Effect::Abandon(id) => {
                    if let Some(child) = self.children.get_mut(id.local_rank).and_then(Option::take) {
                        self.forget(id.local_rank, &child)?;
                    }
                }
                Effect::Sweep => host.sweep(),
                Effect::Note(note) => host.note(note),
                Effect::Finish(report) => self.report = Some(report),
            }
        }
        Ok(())
    }

    /// A rank that may not be signalled (it has become another user's) ends by itself, or is abandoned
    /// when its time is over.
    fn signal(&self, id: ChildId, send: impl Fn(&Child) -> io::Result<()>) {
        if let Some(Some(child)) = self.children.get(id.local_rank) {
            let _ = send(child);
        }
    }
}

impl Drop for Engine {
    /// An engine that is given up half-way (an I/O error, a panic above) leaves no rank behind, unless
    /// the ranks are somebody else's to end.
    fn drop(&mut self) {
        for child in self.children.iter().flatten() {
            if self.report.is_none() && Arc::strong_count(child) == 1 {
                let _ = child.signal(libc::SIGKILL);
            }
        }
    }
}
