//! Running a plan from the command line: signals, logs, console, and the engine between them.

use super::console::Shown;
use super::engine::{Engine, HOST_TOKENS};
use super::front::Supervisor;
use super::journal::{Journal, What};
use super::membership::Membership;
use super::request::{Requests, Way};
use super::start::{Process, Ranks};
use super::sweep::{self, Leftover, Swept};
use super::together::{self, Parting};
use super::zygote::Zygote;
use crate::model::exit::signal_label;
use crate::plan::{Filter, Plan, RankPlan, Stream};
use crate::rendezvous::torch_static::Nodes;
use crate::spec::rotation::Rotation;
use crate::supervise::{ChildId, Event, Note, Outcome, Part, Policy, Report};
use crate::sys::cgroup::JobGroup;
use crate::sys::clock;
use crate::sys::signals::{STOP, Signals};
use crate::sys::tree;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::io;
use std::net::TcpListener;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

const SIGNALS: u64 = HOST_TOKENS;
const FRONT: u64 = HOST_TOKENS + 1;
const REQUESTS: u64 = HOST_TOKENS + 2;
const NODES: u64 = HOST_TOKENS + 3;
/// What it says, and its end.
pub(super) const ZYGOTE: (u64, u64) = (HOST_TOKENS + 4, HOST_TOKENS + 5);
/// Two for each stream: growth of a log, room on the console.
const FOLLOWERS: u64 = HOST_TOKENS + 6;

/// How long a console that takes nothing is waited for once all ranks have ended.
const CONSOLE_PATIENCE: Duration = Duration::from_secs(5);
/// How long the console is waited for in all once a job has been stopped: whoever stops it waits for its end.
const STOPPED_PATIENCE: Duration = Duration::from_millis(500);

/// Local ranks and their streams, and what stands before their lines.
pub type Screens = BTreeMap<(usize, Stream), Option<String>>;

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
    /// Where ranks find each other (torch's TCPStore), for the launcher to serve; anew in every attempt.
    /// Taken by the process that does, and closed by the other: the next job may want the port.
    pub store: RefCell<Vec<TcpListener>>,
    /// Whether logs are emptied first.
    pub log_overwrite: bool,
    /// How they are kept short, if they are.
    pub rotation: Option<Rotation>,
    /// Local ranks and the streams of theirs that the console shows, on the same stream of its own, and what stands
    /// before their lines; `None`: shown byte for byte.
    pub shown: Screens,
    /// Files for the lines that somebody looks for.
    pub filters: Vec<Filter>,
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
    /// From which process the ranks are forked, if from any. It is the supervisor's, through all rounds.
    pub zygote: Option<Rc<Zygote>>,
    /// A folder that is there while the job runs.
    pub temporary: Option<PathBuf>,
    /// A folder that is kept only if the job does not end well.
    pub disposable: Option<PathBuf>,
}

impl Launch<'_> {
    /// The same with another plan, for a round of the job; `attempt`: how many rounds have run here before.
    pub fn of_round<'b>(&self, plan: &'b Plan, shown: Screens, store: Vec<TcpListener>, attempt: u32) -> Launch<'b> {
        Launch {
            plan,
            program: self.program.clone(),
            base: self.base.clone(),
            log_dir: self.log_dir.clone(),
            store: store.into(),
            log_overwrite: self.log_overwrite,
            rotation: self.rotation,
            shown,
            filters: self.filters.clone(),
            colour: self.colour,
            policy: Policy { first_attempt: attempt, ..self.policy.clone() },
            notify: self.notify.clone(),
            nofile: self.nofile,
            key: self.key.clone(),
            cgroup: self.cgroup.clone(),
            zygote: self.zygote.clone(),
            temporary: self.temporary.clone(),
            disposable: self.disposable.clone(),
        }
    }

    /// Who below the supervisor is none of the job's.
    pub fn elders(&self) -> BTreeSet<i32> {
        self.zygote.iter().filter_map(|zygote| zygote.pid()).collect()
    }

    /// The file in which a rank's last words of an attempt are, if they are in any.
    pub fn last_words(&self, local_rank: usize, attempt: u32) -> Option<PathBuf> {
        Some(self.log_dir.join(self.plan.ranks[local_rank].output.last_words(attempt)?))
    }
}

/// Who is told what happens while ranks run.
pub trait Listener {
    /// A process runs.
    fn started(&self, id: ChildId, pid: i32);
    /// Something happens on the way down, or up again.
    fn noted(&self, note: &Note);
    /// These modules take long to be imported for all ranks.
    fn importing(&self, _modules: &str) {}
    /// They have been, after so many seconds.
    fn imported(&self, _modules: &str, _seconds: f64) {}
    /// Every rank imports for itself, for this reason.
    fn without_zygote(&self, _why: &str) {}
    /// The round is over before the ranks have ended: they are stopped now.
    fn halted(&self, _parting: &Parting) {}
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
    /// How this node parted from the others.
    pub parting: Parting,
    /// Where the end is written down.
    pub journal: Journal,
    /// How the job has ended, where that is more than this node's part: one word, and a line for people.
    pub job_end: Option<(&'static str, String)>,
}

/// The other nodes of a job.
pub enum Others<'a> {
    /// There are none, or nothing is heard of them.
    None,
    /// They meet once, at node 0's store.
    AtStore(Nodes),
    /// They run this round together, and may run others.
    InRounds(&'a mut Membership),
}

/// Runs the plan to its end, or to that of the round.
pub fn run(
    launch: &Launch<'_>,
    others: Others<'_>,
    supervisor: &Supervisor,
    (signals, requests): (&Signals, &mut Requests),
    journal: Journal,
    listener: &dyn Listener,
) -> io::Result<Launched> {
    let role = |rank: &RankPlan| match Part::of(rank.role) {
        Part::Server if launch.plan.servers_end => Part::Main,
        part => part,
    };
    let parts: Vec<Part> = launch.plan.ranks.iter().map(role).collect();
    let mut engine = Engine::new(&parts, launch.policy.clone())?;
    engine.poll().readable(signals, SIGNALS)?;
    engine.poll().readable(&supervisor.front, FRONT)?;
    engine.poll().readable(&supervisor.requests, REQUESTS)?;
    let mut parting = Parting::Well;
    let (mut nodes, mut membership) = match others {
        Others::None => (None, None),
        Others::AtStore(nodes) => (Some(nodes), None),
        Others::InRounds(membership) => (None, Some(membership)),
    };
    if let Some(membership) = &membership {
        engine.poll().readable(&**membership, NODES)?;
    }
    if let Some(nodes) = &mut nodes {
        nodes.go_on()?;
        engine.poll().readable(&*nodes, NODES)?;
    }
    let store = launch.store.take();
    let mut ranks = Ranks::new(launch, &store, engine.poll().clone(), FOLLOWERS, journal, listener)?;
    let zygote = launch.zygote.as_deref();
    if let Some(zygote) = zygote {
        zygote.begin(launch, engine.poll(), ZYGOTE)?;
    }
    let (mut begun, mut told, mut cut_off) = (false, false, false);
    while engine.report().is_none() {
        if !begun && !zygote.is_some_and(Zygote::is_importing) {
            begun = true;
            engine.send(Event::Start, &mut ranks)?;
            continue;
        }
        let busy = ranks.followers().any(|follower| follower.has_more());
        let due = ranks.followers().filter_map(|follower| follower.due()).min();
        let alone_at = membership.as_ref().and_then(|membership| membership.due()).filter(|_| !cut_off);
        let long_at = zygote.and_then(Zygote::long_at);
        let due = alone_at.into_iter().chain(due).chain(long_at).min();
        let due = due.map(|at| at.saturating_sub(clock::now()));
        let tokens = engine.turn(if busy { Some(Duration::ZERO) } else { due }, &mut ranks)?;
        if let Some(zygote) = zygote.filter(|zygote| zygote.takes_long()) {
            listener.importing(&zygote.names());
        }
        for follower in ranks.followers() {
            follower.handle_timeout(engine.poll())?;
            if follower.has_more() {
                follower.copy(engine.poll())?;
            }
        }
        if let Some(membership) = &mut membership {
            // Whoever waits hears the roll; here nobody does.
            membership.hear();
            if !told && let Some(stops) = engine.reason().and_then(|reason| ranks.why_they_stop(reason, membership)) {
                told = true;
                membership.stops(stops);
            }
            if let Some(halt) = membership.halt().filter(|_| parting == Parting::Well) {
                parting = Parting::Halted(halt);
                listener.halted(&parting);
                engine.send(Event::Regroup { within: None }, &mut ranks)?;
            }
            // Others may soon begin without this node, whatever its ranks were asked to stop for.
            if !cut_off && let Some((_, within)) = membership.out_of_contact() {
                cut_off = true;
                engine.send(Event::Regroup { within }, &mut ranks)?;
            }
        }
        for token in tokens {
            match token {
                SIGNALS => {
                    for signal in signals.drain() {
                        if let Some(event) = requests.event(signal, Way::Directly, &launch.notify) {
                            ranks.journal.write(What::Signal { signal });
                            ranks.pass_on_sleep(&event);
                            engine.send(event, &mut ranks)?;
                        }
                    }
                    // Ranks are collected by their pidfds; those that came from below them, here.
                    tree::reap_strays(|pid| engine.owns(pid) || launch.elders().contains(&pid));
                }
                REQUESTS => match supervisor.asked() {
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
                FRONT => {
                    engine.poll().forget(&supervisor.front)?;
                    ranks.journal.write(What::FrontLost);
                    engine.send(Event::HostLost, &mut ranks)?;
                }
                token if token == ZYGOTE.0 || token == ZYGOTE.1 => ranks.hear_zygote(engine.poll())?,
                // Of a membership it has been heard above.
                NODES => {
                    if let Some(nodes) = &mut nodes
                        && together::heard(nodes)
                    {
                        engine.poll().forget(&*nodes)?;
                        if !engine.is_stopping() {
                            parting = Parting::StoreGone;
                            engine.send(Event::Stop(libc::SIGTERM), &mut ranks)?;
                        }
                    }
                }
                _ => {
                    let at = token.saturating_sub(FOLLOWERS);
                    if let Some(follower) = ranks.follower(at as usize / 2) {
                        if at % 2 == 0 { follower.grown(engine.poll())? } else { follower.writable(engine.poll())? }
                    }
                }
            }
        }
    }
    // Other rounds may follow.
    if let Some(zygote) = zygote.filter(|_| membership.is_none()) {
        zygote.end();
    }
    let mut rest = sweep::everybody(&launch.elders(), launch.cgroup.as_ref())?;
    rest.killed.append(&mut ranks.strays);
    let stop = |signal: &i32| STOP.contains(signal) && !launch.notify.contains(signal);
    let mut impatient = || signals.drain().iter().any(stop) || supervisor.asked().is_none_or(|s| s.iter().any(stop));
    // Whose peers have gone may fail before that is seen here.
    if let Some(nodes) = &mut nodes
        && parting == Parting::Well
        && engine.poll().wait(Some(Duration::ZERO))?.contains(&NODES)
    {
        together::heard(nodes);
    }
    let waits = nodes.as_mut().is_some_and(|nodes| part(nodes, engine.report(), launch));
    let lost = engine.report().is_some_and(|report| report.outcome == Outcome::HostLost);
    let limit = if lost || requests.is_stopped() { STOPPED_PATIENCE } else { Duration::MAX };
    let wake = [signals.as_fd(), supervisor.requests.as_fd()];
    let mut shown = Shown::Nothing;
    for follower in ranks.followers() {
        shown = shown.and(follower.finish(CONSOLE_PATIENCE, limit, &wake, &mut impatient)?);
    }
    ranks.settle_logs();
    if let bytes @ 1.. = ranks.unshown() {
        shown = shown.and(Shown::AllBut(bytes));
    }
    if let Some(nodes) = nodes.as_mut().filter(|_| waits) {
        parting = together::await_others(nodes, supervisor, signals, requests, &launch.notify)?;
    }
    let Some(report) = engine.report().cloned() else { return Err(io::Error::other("the job ended without a report")) };
    let Ranks { processes, swept, journal, .. } = ranks;
    Ok(Launched { report, processes, swept, shown, rest, parting, journal, job_end: None })
}

/// Tells the others how it has ended here. Whether they are to be waited for.
fn part(nodes: &mut Nodes, report: Option<&Report>, launch: &Launch<'_>) -> bool {
    let why = match report.map(|report| &report.outcome) {
        Some(Outcome::Completed) => return nodes.ended_well(),
        Some(Outcome::Failed { culprit, exit }) => format!("{}: {exit}", launch.plan.ranks[*culprit].who()),
        Some(Outcome::NotStarted { local_rank }) => {
            format!("{} could not be started", launch.plan.ranks[*local_rank].who())
        }
        Some(Outcome::Stopped { signal }) => format!("stopped by {}", signal_label(*signal)),
        Some(Outcome::HostLost | Outcome::Regrouped) | None => return false,
    };
    nodes.failed(&why);
    false
}
