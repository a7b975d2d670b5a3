//! Running a plan from the command line: signals, logs, console, and the engine between them.

use super::console::{Follower, Shown};
use super::engine::{Engine, HOST_TOKENS};
use super::front::Supervisor;
use super::journal::{Journal, What};
use super::request::{Requests, Way};
use super::start::{Process, Ranks};
use super::sweep::{self, Leftover, Swept};
use crate::plan::{Plan, RankPlan};
use crate::spec::rotation::Rotation;
use crate::supervise::{Event, Note, Outcome, Part, Policy, Report};
use crate::sys::cgroup::JobGroup;
use crate::sys::clock;
use crate::sys::console::Console;
use crate::sys::signals::{STOP, Signals};
use crate::sys::tree;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::io;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::time::Duration;

const SIGNALS: u64 = HOST_TOKENS;
const GROWTH: u64 = HOST_TOKENS + 1;
const CONSOLE: u64 = HOST_TOKENS + 2;
const FRONT: u64 = HOST_TOKENS + 3;
const REQUESTS: u64 = HOST_TOKENS + 4;

/// How long a console that takes nothing is waited for once all ranks have ended.
const CONSOLE_PATIENCE: Duration = Duration::from_secs(5);
/// How long the console is waited for in all once a job has been stopped: whoever stops it waits for its end.
const STOPPED_PATIENCE: Duration = Duration::from_millis(500);

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
    /// How they are kept short, if they are.
    pub rotation: Option<Rotation>,
    /// Local ranks whose logs the console shows, and what stands before their lines.
    pub shown: BTreeMap<usize, Option<String>>,
    /// Whether people want colours, where there is a terminal (NO_COLOR).
    pub colour: bool,
    /// How the job is stopped, and when the ranks are started again.
    pub policy: Policy,
    /// Signals that are passed on to the ranks and never stop the job.
    pub notify: BTreeSet<i32>,
    /// The soft limit of open files that ranks get back, if ours was raised.
    pub nofile: Option<u64>,
    /// By which the job's processes are known.
    pub key: String,
    /// What the ranks are started in, as far as it can be made: by the supervisor, so that the front outlives it.
    pub cgroup: Option<JobGroup>,
    /// A folder that is there while the job runs.
    pub temporary: Option<PathBuf>,
    /// Says that a process runs: its pid, and its local rank.
    pub announce: fn(i32, usize),
}

/// What remains of a launch.
pub struct Launched {
    /// The verdict.
    pub report: Report,
    /// The last attempt's processes, by local rank.
    pub processes: Vec<Process>,
    /// What each local rank left behind in all attempts, all of it killed.
    pub swept: Vec<Vec<Leftover>>,
    /// How much of the ranks' output the console has shown.
    pub shown: Shown,
    /// What else was below the supervisor, in the end and between attempts.
    pub rest: Swept,
    /// Where the end is written down.
    pub journal: Journal,
}

/// Runs the plan to its end, once in the life of a process. `say` gets the notes.
pub fn run(
    launch: &Launch<'_>,
    supervisor: &Supervisor,
    signals: &Signals,
    journal: Journal,
    say: &mut dyn FnMut(&Note),
) -> io::Result<Launched> {
    let part = |rank: &RankPlan| match Part::of(rank.role) {
        Part::Server if launch.plan.servers_end => Part::Main,
        part => part,
    };
    let parts: Vec<Part> = launch.plan.ranks.iter().map(part).collect();
    let mut engine = Engine::new(&parts, launch.policy.clone())?;
    engine.poll().readable(signals, SIGNALS)?;
    engine.poll().readable(&supervisor.front, FRONT)?;
    engine.poll().readable(&supervisor.requests, REQUESTS)?;
    let mut requests = Requests::default();
    let console = Console::open(1).ok().filter(|_| !launch.shown.is_empty());
    let follower =
        console.and_then(|console| Follower::new(console, launch.colour, engine.poll(), (GROWTH, CONSOLE)).ok());
    let mut ranks = Ranks::new(launch, follower, journal, say)?;
    engine.send(Event::Start, &mut ranks)?;
    while engine.report().is_none() {
        let busy = ranks.follower.as_ref().is_some_and(Follower::has_more);
        let due = ranks.follower.as_ref().and_then(Follower::due).map(|at| at.saturating_sub(clock::now()));
        let tokens = engine.turn(if busy { Some(Duration::ZERO) } else { due }, &mut ranks)?;
        if let Some(follower) = &mut ranks.follower {
            follower.show_held(engine.poll())?;
            if busy {
                follower.copy(engine.poll())?;
            }
        }
        for token in tokens {
            match (token, &mut ranks.follower) {
                (SIGNALS, _) => {
                    for signal in signals.drain() {
                        if let Some(event) = requests.event(signal, Way::Directly, &launch.notify) {
                            ranks.journal.write(What::Signal { signal });
                            engine.send(event, &mut ranks)?;
                        }
                    }
                    // Ranks are collected by their pidfds; those that came from below them, here.
                    tree::reap_strays(|pid| engine.owns(pid));
                }
                (REQUESTS, _) => match supervisor.asked() {
                    Some(asked) => {
                        for signal in asked {
                            if let Some(event) = requests.event(signal, Way::Asked, &launch.notify) {
                                ranks.journal.write(What::Signal { signal });
                                engine.send(event, &mut ranks)?;
                            }
                        }
                    }
                    None => engine.poll().forget(&supervisor.requests)?,
                },
                (FRONT, _) => {
                    engine.poll().forget(&supervisor.front)?;
                    ranks.journal.write(What::FrontLost);
                    engine.send(Event::HostLost, &mut ranks)?;
                }
                (GROWTH, Some(follower)) => follower.grown(engine.poll())?,
                (CONSOLE, Some(follower)) => follower.writable(engine.poll())?,
                _ => {}
            }
        }
    }
    let mut rest = sweep::everybody(&BTreeSet::new(), launch.cgroup.as_ref())?;
    rest.killed.append(&mut ranks.strays);
    let stop = |signal: &i32| STOP.contains(signal) && !launch.notify.contains(signal);
    let mut impatient = || signals.drain().iter().any(stop) || supervisor.asked().is_none_or(|s| s.iter().any(stop));
    let lost = engine.report().is_some_and(|report| report.outcome == Outcome::HostLost);
    let limit = if lost || requests.is_stopped() { STOPPED_PATIENCE } else { Duration::MAX };
    let wake = [signals.as_fd(), supervisor.requests.as_fd()];
    let shown = match &mut ranks.follower {
        Some(follower) => follower.finish(CONSOLE_PATIENCE, limit, &wake, &mut impatient)?,
        None => Shown::Nothing,
    };
    ranks.settle_logs();
    let Some(report) = engine.report().cloned() else { return Err(io::Error::other("the job ended without a report")) };
    let Ranks { processes, swept, journal, .. } = ranks;
    Ok(Launched { report, processes, swept, shown, rest, journal })
}
