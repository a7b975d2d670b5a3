//! Running a plan from the command line: signals, logs, console, and the engine between them.

use super::console::{Follower, Shown};
use super::engine::{End, Engine, HOST_TOKENS, Host};
use super::logs;
use super::sweep::{self, Leftover, Swept};
use crate::plan::Plan;
use crate::supervise::{ChildId, Event, Note, Policy, Report, RestartPolicy};
use crate::sys::child::Child;
use crate::sys::console::Console;
use crate::sys::lifeline::{Lifeline, Scope};
use crate::sys::signals::{NOTIFY, STOP, Signals};
use crate::sys::spawn::{self, Start};
use crate::sys::tree;
use nix::errno::Errno;
use std::collections::BTreeSet;
use std::ffi::{CString, OsString};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

const SIGNALS: u64 = HOST_TOKENS;
const GROWTH: u64 = HOST_TOKENS + 1;
const CONSOLE: u64 = HOST_TOKENS + 2;
const FRONT: u64 = HOST_TOKENS + 3;

/// How long a console that takes nothing is waited for once all ranks have ended.
const CONSOLE_PATIENCE: Duration = Duration::from_secs(5);

/// What the ranks are started with, beside the plan.
pub struct Launch<'a> {
    /// The plan.
    pub plan: &'a Plan,
    /// The program behind `argv[0]` of every rank.
    pub program: PathBuf,
    /// This process's environment.
    pub base: Vec<(OsString, OsString)>,
    /// Folder of the logs.
    pub log_dir: PathBuf,
    /// Whether logs are emptied first.
    pub log_overwrite: bool,
    /// Time between asking to stop and killing.
    pub grace: Duration,
    /// When the ranks are started again.
    pub restart: RestartPolicy,
    /// The soft limit of open files that ranks get back, if ours was raised.
    pub nofile: Option<u64>,
    /// By which the job's processes are known.
    pub key: String,
}

/// What remains of a launch.
pub struct Launched {
    /// The verdict.
    pub report: Report,
    /// Process ids by local rank, of those that ran.
    pub pids: Vec<Option<i32>>,
    /// Where in its log file each rank's output starts.
    pub log_starts: Vec<u64>,
    /// How much of local rank 0's output the console has shown.
    pub shown: Shown,
    /// What each local rank left behind, all of it killed.
    pub swept: Vec<Vec<Leftover>>,
    /// What else was below the supervisor in the end.
    pub rest: Swept,
}

/// Runs the plan to its end. `front`: a pidfd of the process whose end is to end the job. `say` gets the
/// notes.
pub fn run(launch: &Launch<'_>, front: &OwnedFd, signals: &Signals, say: &mut dyn FnMut(Note)) -> io::Result<Launched> {
    let lifeline = Lifeline::new()?;
    let policy = Policy { restart: launch.restart.clone(), ..Policy::with_grace(launch.grace) };
    let mut engine = Engine::new(launch.plan.ranks.len(), policy)?;
    engine.poll().readable(signals, SIGNALS)?;
    engine.poll().readable(front, FRONT)?;
    let ranks = launch.plan.ranks.len();
    let mut starter = Starter {
        launch,
        lifeline: &lifeline,
        base: launch.base.iter().map(|(n, v)| (n.clone().into_vec(), v.clone().into_vec())).collect(),
        mask: spawn::current_mask(),
        pids: vec![None; ranks],
        log_starts: vec![0; ranks],
        swept: vec![Vec::new(); ranks],
        say,
    };
    let mut follower = None;
    if let Some(first) = launch.plan.ranks.first() {
        let path = launch.log_dir.join(&first.log);
        let log = logs::open(&path, launch.log_overwrite)?;
        let start = log.metadata()?.len();
        // A launcher inside a rank may share its log: what it copied there it would copy again.
        if let Some(console) = Console::open(1).ok().filter(|console| !console.is(&log)) {
            follower = Follower::new(&path, start, console, engine.poll(), (GROWTH, CONSOLE)).ok();
        }
    }
    engine.send(Event::Start, &mut starter)?;
    while engine.report().is_none() {
        let busy = follower.as_ref().is_some_and(Follower::has_more);
        let tokens = engine.turn(busy.then_some(Duration::ZERO), &mut starter)?;
        if busy && let Some(follower) = &mut follower {
            follower.copy(engine.poll())?;
        }
        for token in tokens {
            match (token, &mut follower) {
                (SIGNALS, _) => {
                    for signal in signals.drain() {
                        let event = match signal {
                            libc::SIGCHLD => continue,
                            libc::SIGTSTP => Event::Suspend,
                            libc::SIGCONT => Event::Resume,
                            signal if NOTIFY.contains(&signal) => Event::Notify(signal),
                            signal => Event::Stop(signal),
                        };
                        engine.send(event, &mut starter)?;
                    }
                    // Ranks are collected by their pidfds; those that came from below them, here.
                    tree::reap_strays(|pid| engine.owns(pid));
                }
                (FRONT, _) => {
                    engine.poll().forget(front)?;
                    engine.send(Event::HostLost, &mut starter)?;
                }
                (GROWTH, Some(follower)) => follower.grown(engine.poll())?,
                (CONSOLE, Some(follower)) => follower.writable(engine.poll())?,
                _ => {}
            }
        }
    }
    let rest = sweep::everybody(&BTreeSet::new())?;
    let mut impatient = || signals.drain().iter().any(|signal| STOP.contains(signal));
    let shown = match &mut follower {
        Some(follower) => follower.finish(CONSOLE_PATIENCE, &mut impatient)?,
        None => Shown::Nothing,
    };
    let Some(report) = engine.report().cloned() else { return Err(io::Error::other("the job ended without a report")) };
    let Starter { pids, log_starts, swept, .. } = starter;
    Ok(Launched { report, pids, log_starts, shown, swept, rest })
}

/// Starts the ranks of a plan.
struct Starter<'a> {
    launch: &'a Launch<'a>,
    lifeline: &'a Lifeline,
    base: Vec<(Vec<u8>, Vec<u8>)>,
    mask: libc::sigset_t,
    pids: Vec<Option<i32>>,
    log_starts: Vec<u64>,
    swept: Vec<Vec<Leftover>>,
    say: &'a mut dyn FnMut(Note),
}

impl Host for Starter<'_> {
    fn start(&mut self, id: ChildId) -> Result<Arc<Child>, String> {
        let rank = &self.launch.plan.ranks[id.local_rank];
        let name = |what: &str| format!("rank {} ({}): {what}", rank.identity.rank, self.launch.program.display());
        let in_step = |step: &str, error: io::Error| {
            let errno = error.raw_os_error().map_or(String::new(), |n| format!(" ({:?})", Errno::from_raw(n)));
            name(&format!("{step}: {}{errno}", logs::plain(&error)))
        };
        let path = self.launch.log_dir.join(&rank.log);
        // Local rank 0's log was opened (and emptied) before the console began to follow it.
        let overwrite = self.launch.log_overwrite && id.local_rank != 0;
        let log = logs::open(&path, overwrite).map_err(|e| in_step(&path.display().to_string(), e))?;
        self.log_starts[id.local_rank] = log.metadata().map_or(0, |m| m.len());
        let end = self.lifeline.open_end().map_err(|e| in_step("lifeline", e))?;
        let mut env = rank.env.clone();
        env.set(sweep::KEY, sweep::key_of_rank(&self.launch.key, id.attempt, id.local_rank));
        let env = env.apply(&self.base).into_iter().map(|(name, value)| [name, value].join(&b'='));
        let strings = |items: Vec<Vec<u8>>| spawn::c_strings(items).map_err(|e| name(&e.to_string()));
        let start = Start {
            program: c_path(&self.launch.program).map_err(|e| name(&e))?,
            argv: strings(rank.argv.iter().map(|a| a.clone().into_vec()).collect())?,
            envp: strings(env.collect())?,
            stdio: [None, Some(log.as_raw_fd()), Some(log.as_raw_fd())],
            keep: Vec::new(),
            new_session: true,
            lifeline: Some((end.as_raw_fd(), Scope::Group)),
            mask: self.mask,
            nofile: self.launch.nofile,
            default_sigpipe: true,
        };
        let started = spawn::start(&start).map_err(|e| {
            let why = io::Error::from_raw_os_error(e.errno);
            in_step(e.step, why)
        })?;
        self.pids[id.local_rank] = Some(started.pid);
        Ok(Arc::new(Child::new(started.pid, started.pidfd, true)))
    }

    fn ended(&mut self, end: &End<'_>) {
        let key = sweep::key_of_rank(&self.launch.key, end.id.attempt, end.id.local_rank);
        // If nobody can be looked for now, the sweep of the whole job finds them.
        let found = sweep::after_rank(end, &key).unwrap_or_default();
        self.swept[end.id.local_rank].extend(found);
    }

    fn note(&mut self, note: Note) {
        (self.say)(note);
    }
}

fn c_path(path: &Path) -> Result<CString, String> {
    CString::new(path.as_os_str().as_encoded_bytes()).map_err(|e| e.to_string())
}
