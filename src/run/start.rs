//! Starting the ranks of a plan, and what is done about each of them: its log, its lifeline, the sweep
//! after its end, its lines in the journal.

use super::console::Follower;
use super::engine::{End, Host};
use super::journal::{Journal, What};
use super::launch::{Launch, Listener, ZYGOTE};
use super::logs;
use super::membership::Membership;
use super::output;
use super::preflight::limits_of_store;
use super::rotate::Rotation;
use super::screens::Screens;
use super::store::Served;
use super::sweep::{self, Leftover, Patience};
use super::temporary;
use super::zygote::News;
use crate::log::{blame, lost_peer};
use crate::model::{Exit, Who};
use crate::plan::Output;
use crate::rendezvous::agree::{Failure, Stops};
use crate::supervise::{ChildId, Event, Note, Part, StopReason};
use crate::sys::affinity::Mask;
use crate::sys::cgroup::Folder;
use crate::sys::child::Child;
use crate::sys::lifeline::{Lifeline, Scope};
use crate::sys::poll::Poll;
use crate::sys::spawn::{self, Group, Start, Started};
use nix::errno::Errno;
use std::ffi::CString;
use std::io;
use std::net::TcpListener;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStringExt;
use std::path::Path;
use std::sync::Arc;

/// How much of a log is looked at for what its rank died of.
pub const TAIL_BYTES: u64 = 64 * 1024;

/// How much of it tells whether that was the loss of a peer.
const LAST_WORDS: u64 = 4 * 1024;

/// What is known of one rank's present process.
#[derive(Clone, Debug, Default)]
pub struct Process {
    /// Its id; `None` if it has not run.
    pub pid: Option<i32>,
    /// Which restart it belongs to.
    pub attempt: u32,
    /// Where in its log file its output starts. While its log is kept short: where that was before its
    /// beginning was taken away.
    pub log_start: u64,
    /// The most memory it had, in bytes, children that it waited for included.
    pub peak_memory: u64,
}

/// The ranks of a plan, as the engine's host.
pub struct Ranks<'a> {
    launch: &'a Launch<'a>,
    lifeline: Lifeline,
    base: Vec<(Vec<u8>, Vec<u8>)>,
    mask: libc::sigset_t,
    /// The folder of the cgroup that they start in.
    cgroup: Option<Folder>,
    /// By local rank.
    pub processes: Vec<Process>,
    /// What each of them left behind in all attempts, all of it killed; by local rank.
    pub swept: Vec<Vec<Leftover>>,
    /// What was below the supervisor between two attempts, and known to be of no rank; all of it killed.
    pub strays: Vec<Leftover>,
    just_swept: usize,
    patience: Patience,
    /// Where ranks find each other, if the launcher serves it.
    store: Served<'a>,
    /// What keeps the logs short, if that is wanted.
    rotation: Option<Rotation>,
    /// What people see of the logs, and files for lines that somebody looks for.
    screens: Screens<'a>,
    poll: Arc<Poll>,
    /// What is written down.
    pub journal: Journal,
    listener: &'a dyn Listener,
}

impl<'a> Ranks<'a> {
    /// Nobody is started yet. `store`: where theirs is served; `tokens`: the first of those in `poll` that are for the followers, two for each.
    pub fn new(
        launch: &'a Launch<'a>,
        store: &'a [TcpListener],
        poll: Arc<Poll>,
        tokens: u64,
        journal: Journal,
        listener: &'a dyn Listener,
    ) -> io::Result<Self> {
        Ok(Self {
            launch,
            lifeline: Lifeline::new()?,
            base: launch.base.iter().map(|(n, v)| (n.clone().into_vec(), v.clone().into_vec())).collect(),
            mask: spawn::current_mask(),
            cgroup: launch.cgroup.as_ref().and_then(|cgroup| match launch.policy.first_attempt {
                0 => cgroup.create().ok(),
                // What ran before with other nodes has been killed there.
                _ => cgroup.renew(sweep::LAST).ok(),
            }),
            processes: vec![Process::default(); launch.plan.ranks.len()],
            swept: vec![Vec::new(); launch.plan.ranks.len()],
            strays: Vec::new(),
            just_swept: 0,
            store: Served::start(store, limits_of_store(launch.plan.ranks.len()))?,
            patience: Patience::default(),
            rotation: launch.rotation.map(|spec| Rotation::new(spec, launch.plan.ranks.len())).transpose()?,
            screens: Screens::new(launch, poll.clone(), tokens),
            poll,
            journal,
            listener,
        })
    }

    /// What follows the logs.
    pub fn followers(&mut self) -> impl Iterator<Item = &mut Follower> {
        self.screens.followers()
    }

    /// One of these, by its number.
    pub fn follower(&mut self, number: usize) -> Option<&mut Follower> {
        self.screens.follower(number)
    }

    /// Bytes of the logs that nobody could follow.
    pub fn unshown(&self) -> u64 {
        self.screens.unshown()
    }

    fn who(&self, id: ChildId) -> Who {
        self.launch.plan.ranks[id.local_rank].who()
    }

    /// Nothing is written to the logs any more.
    pub fn settle_logs(&mut self) {
        let gone = self.rotation.as_mut().map(Rotation::settle).unwrap_or_default();
        for (process, gone) in self.processes.iter_mut().zip(gone) {
            process.log_start = process.log_start.saturating_sub(gone);
        }
    }

    /// What the other nodes are told at once of a stop that begins here.
    pub fn why_they_stop(&mut self, reason: StopReason, membership: &Membership) -> Option<Stops> {
        let (local_rank, exit) = match reason {
            StopReason::Asked(signal) => return Some(Stops::Signal { signal }),
            StopReason::RankFailed(local_rank, exit) => (local_rank, exit),
            _ => return None,
        };
        let process = &self.processes[local_rank];
        let id = ChildId { attempt: process.attempt, local_rank };
        let log = self.launch.last_words(local_rank, process.attempt);
        let last = log.map(|log| logs::tail(&log, process.log_start, TAIL_BYTES)).unwrap_or_default();
        let words = blame(&last, exit).map(|blame| blame.fault.in_a_line()).unwrap_or_default();
        let (host, node) = (membership.offer().host.clone(), membership.round().map_or(0, |(_, own)| own));
        let (who, how) = (self.who(id).to_string(), exit.to_string());
        let (status, lost_peer) = (exit.shell_status(), self.lost_peer(id));
        let again = membership.offer().rules.are_asked_again(status);
        Some(Stops::Failure {
            failure: Failure { host, node, who, how, words, status, lost_peer, again, ..Failure::default() },
        })
    }

    /// A process that was forked from the zygote, where there is one.
    fn forked(&self, start: &Start) -> Result<Option<Started>, String> {
        let Some(zygote) = &self.launch.zygote else { return Ok(None) };
        match zygote.start(start) {
            Err(why) if zygote.is_given_up() => {
                self.listener.without_zygote(&why);
                Ok(None)
            }
            other => other,
        }
    }

    /// Hears of the zygote what there is to be heard.
    pub fn hear_zygote(&mut self, poll: &Poll) -> io::Result<()> {
        let Some(zygote) = &self.launch.zygote else { return Ok(()) };
        // What else it may be is said when a rank is to be started.
        if let Some(News::Ready { pid, seconds }) = zygote.look(poll)? {
            self.journal.write(What::ZygoteReady { pid, seconds, modules: zygote.modules() });
            if zygote.was_told() {
                self.listener.imported(&zygote.names(), seconds);
            }
        }
        Ok(())
    }

    /// While nobody else is there to be put to sleep, the zygote is.
    pub fn pass_on_sleep(&self, event: &Event) {
        let Some(zygote) = self.launch.zygote.as_ref().filter(|zygote| zygote.is_importing()) else { return };
        match event {
            Event::Suspend => zygote.freeze(libc::SIGSTOP),
            Event::Resume => zygote.freeze(libc::SIGCONT),
            _ => {}
        }
    }

    fn start_one(&mut self, id: ChildId) -> Result<Arc<Child>, String> {
        let rank = &self.launch.plan.ranks[id.local_rank];
        let name = |what: &str| format!("{} ({}): {what}", rank.who(), self.launch.program.display());
        let in_step = |step: &str, error: io::Error| {
            let errno = error.raw_os_error().map_or(String::new(), |n| format!(" ({:?})", Errno::from_raw(n)));
            name(&format!("{step}: {}{errno}", logs::plain(&error)))
        };
        self.store.check().map_err(|e| name(&e))?;
        // What an earlier attempt wrote has been put aside.
        let overwrite = self.launch.log_overwrite && id.attempt == 0;
        let opened = output::open(&self.launch.log_dir, rank, id.attempt, overwrite)
            .map_err(|(path, e)| in_step(&path.display().to_string(), e))?;
        let [stdout, stderr] = opened.descriptors();
        let mut short = None;
        if let (Some(rotation), Some(log)) = (&mut self.rotation, opened.written.iter().find(|log| log.rotates)) {
            let added = rotation.add(id.local_rank, &log.path, overwrite);
            short = Some(added.map_err(|e| in_step("--log_max_size", e))?);
        }
        let end = self.lifeline.open_end().map_err(|e| in_step("lifeline", e))?;
        let mut env = rank.env_of(id.attempt);
        env.set(sweep::KEY, sweep::key_of_rank(&self.launch.key, id.attempt, id.local_rank));
        let env = env.apply(&self.base).into_iter().map(|(name, value)| [name, value].join(&b'='));
        let strings = |items: Vec<Vec<u8>>| spawn::c_strings(items).map_err(|e| name(&e.to_string()));
        let start = Start {
            program: c_path(&self.launch.program).map_err(|e| name(&e))?,
            argv: strings(rank.argv.iter().map(|a| a.clone().into_vec()).collect())?,
            envp: strings(env.collect())?,
            stdio: [None, stdout, stderr],
            keep: Vec::new(),
            group: Group::Session,
            cgroup: self.cgroup.as_ref().map(|folder| folder.as_raw_fd()),
            cwd: None,
            detached: false,
            lifeline: Some((end.as_raw_fd(), Scope::Group)),
            mask: self.mask,
            nofile: self.launch.nofile,
            affinity: rank.cpus.as_ref().map(Mask::of),
            default_sigpipe: true,
        };
        let started = match self.forked(&start).map_err(|e| format!("{} from a zygote: {e}", rank.who()))? {
            Some(started) => started,
            None => spawn::start(&start).map_err(|e| in_step(e.step, io::Error::from_raw_os_error(e.errno)))?,
        };
        let log_start = opened.written.first().map_or(0, |log| log.start);
        self.processes[id.local_rank] =
            Process { pid: Some(started.pid), attempt: id.attempt, log_start, ..Process::default() };
        for log in &opened.written {
            self.screens.follow(id, log, short.as_ref());
        }
        Ok(Arc::new(Child::new(started.pid, started.pidfd, true)))
    }
}

impl Host for Ranks<'_> {
    fn start(&mut self, id: ChildId) -> Result<Arc<Child>, String> {
        let started = self.start_one(id);
        if let Ok(child) = &started {
            self.listener.started(id, child.pid());
        }
        let (Who { role, number: rank }, attempt) = (self.who(id), id.attempt);
        self.journal.write(match &started {
            Ok(child) => What::RankStarted { role, rank, local_rank: id.local_rank, attempt, pid: child.pid() },
            Err(why) => What::RankNotStarted { role, rank, local_rank: id.local_rank, attempt, why },
        });
        started
    }

    fn lingers(&self, pid: i32) -> bool {
        self.launch.policy.forwards && sweep::is_group_alive(pid)
    }

    fn holds_up(&self) -> bool {
        self.launch.zygote.as_ref().is_some_and(|zygote| zygote.is_importing())
    }

    fn ended(&mut self, end: &End<'_>) {
        let key = sweep::key_of_rank(&self.launch.key, end.id.attempt, end.id.local_rank);
        // If nobody can be looked for now, the sweep of the whole job finds them.
        let found = sweep::after_rank(end, &key, &mut self.patience).unwrap_or_default();
        self.just_swept = found.len();
        self.swept[end.id.local_rank].extend(found);
    }

    fn collected(&mut self, id: ChildId, child: &Child, exit: Exit) {
        let process = &mut self.processes[id.local_rank];
        process.peak_memory = child.peak_memory();
        let (pid, swept, peak_memory_bytes) = (child.pid(), self.just_swept, process.peak_memory);
        let (Who { role, number: rank }, attempt) = (self.who(id), id.attempt);
        self.journal.write(What::RankEnded {
            role,
            rank,
            local_rank: id.local_rank,
            attempt,
            pid,
            exit: exit.into(),
            swept,
            peak_memory_bytes,
        });
    }

    fn lost_peer(&mut self, id: ChildId) -> bool {
        let start = self.processes[id.local_rank].log_start;
        let log = self.rotation.as_ref().and_then(|rotation| rotation.log(id.local_rank));
        let start = log.map_or(start, |log| log.offset(start));
        // Only its last words: it may have lost a connection before, and got over it.
        let last = self.launch.last_words(id.local_rank, id.attempt);
        last.is_some_and(|log| lost_peer(&logs::tail(&log, start, LAST_WORDS)).is_some())
    }

    fn sweep(&mut self) {
        let swept = sweep::everybody(&self.launch.elders(), self.launch.cgroup.as_ref());
        self.strays.extend(swept.map(|swept| swept.killed).unwrap_or_default());
        self.cgroup = self.launch.cgroup.as_ref().and_then(|cgroup| cgroup.renew(sweep::LAST).ok());
        let attempt = self.processes.iter().map(|p| p.attempt).max().unwrap_or(0);
        self.screens.attempt_over();
        self.settle_logs();
        let backups = self.launch.rotation.map_or(0, |rotation| rotation.backups);
        let ranks = &self.launch.plan.ranks;
        let is_first = |local: usize| Part::of(ranks[local].role) == Part::First;
        let has_run = |local: usize| self.processes[local].pid.is_some() && self.processes[local].attempt == attempt;
        // What has run first and well, as others ran after it, is not run again: its log stays.
        let began = (0..ranks.len()).any(|local| !is_first(local) && has_run(local));
        for local in (0..ranks.len()).filter(|&local| has_run(local) && !(began && is_first(local))) {
            if let Output::Together(log) = &ranks[local].output {
                // Where it cannot be put aside, the next attempt appends to it.
                let _ = logs::put_aside(&self.launch.log_dir, log, attempt, backups);
            }
        }
        // What they have told each other is not for those that come.
        self.store.renew();
        // What its processes have left there for each other is over, too.
        if let Some(folder) = &self.launch.temporary {
            temporary::empty(folder);
        }
    }

    fn note(&mut self, note: Note) {
        if let (Note::Restarting { .. }, Some(zygote)) = (&note, &self.launch.zygote) {
            // If it has been lost, there is another by then; where it cannot be heard of, the start will fail.
            let _ = zygote.begin_anew(self.launch, &self.poll, ZYGOTE);
        }
        self.journal.note(&note, |local| self.launch.plan.ranks[local].who());
        self.listener.noted(&note);
    }
}

fn c_path(path: &Path) -> Result<CString, String> {
    CString::new(path.as_os_str().as_encoded_bytes()).map_err(|e| e.to_string())
}
