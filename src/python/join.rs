//! The join loop of `MultiprocessContext`: runs the command line's engine and supervisor during each call of `join`.

use super::errors::os_error;
use super::guardian::Guardian;
use super::rank::{Rank, seconds};
use super::wakeup::Wakeup;
use crate::probe::limits::refusal;
use crate::report::failure_report::{held_by_tracer, unkillable};
use crate::run::engine::{Engine, HOST_TOKENS, RankHost, RankStart, StartError};
use crate::run::sweep;
use crate::supervise::{ChildId, NodeOutcome, ProgressNote, SupervisionPolicy, SupervisorEvent};
use crate::sys::clock;
use crate::sys::io::fd;
use crate::sys::io::poll::Poller;
use crate::sys::process::child::Child;
use crate::sys::process::current::Creator;
use crate::sys::process::procfs;
use crate::sys::process::procfs::reader::LockedFileReader;
use crate::sys::process::procfs::snapshot::Snapshot;
use crate::sys::process::tree;
use crate::sys::process::tree::KeyPlaces;
use nix::sys::eventfd::{EfdFlags, EventFd};
use pyo3::exceptions::{PyAttributeError, PyOSError, PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyWeakrefMethods, PyWeakrefReference};
use std::collections::BTreeSet;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// A stop that lasts longer than this is announced.
const NOTICE_DELAY: Duration = Duration::from_secs(1);

/// The tokens of the host's descriptors.
const WAKEUP: u64 = HOST_TOKENS;
const OVER: u64 = HOST_TOKENS + 1;
const GUARDIAN: u64 = HOST_TOKENS + 2;

/// What the engine of a join acts on: it starts nothing and reports nothing.
struct JoinHost<'a>(&'a Joiner);

impl RankHost for JoinHost<'_> {
    fn start(&mut self, _: ChildId) -> Result<RankStart, StartError> {
        Err("a join starts nothing".into())
    }
    fn report_progress(&mut self, _: ProgressNote) {}
    /// Notes the job's processes: those of the failed rank may end by themselves during the stop, and then have no key.
    fn before_stop(&mut self) {
        if let Some((prefix, places)) = &self.0.key {
            let reader = LockedFileReader::for_event_loop();
            let found =
                tree::with_key_prefix(&reader, Snapshot::take().young(None), (sweep::KEY, prefix), *places).found;
            self.0.seen.lock().unwrap_or_else(PoisonError::into_inner).extend(found);
        }
    }
}

/// Waits for ranks and, when one fails, stops the others: SIGTERM, then SIGKILL after the grace period.
#[pyclass(frozen, module = "rlaunch._lib")]
pub struct Joiner {
    engine: Mutex<Engine>,
    pids: Vec<i32>,
    poll: Arc<Poller>,
    /// Readable once all ranks have ended, so that every waiting thread wakes up.
    over: EventFd,
    grace: Duration,
    /// What the keys of the ranks' processes start with, and where they are read.
    key: Option<(String, KeyPlaces)>,
    /// The processes of the job when a rank failed.
    seen: Mutex<BTreeSet<i32>>,
    /// Weak: a process that is forked off this one has to drop its guardian.
    guardian: Option<Py<PyWeakrefReference>>,
    creator: Creator,
}

#[pymethods]
impl Joiner {
    #[new]
    /// `guardian`: another one is started if it ends during a `join`.
    #[pyo3(signature = (ranks, grace, key=None, forked=true, guardian=None))]
    fn new(
        ranks: Vec<PyRef<'_, Rank>>,
        grace: f64,
        key: Option<&str>,
        forked: bool,
        guardian: Option<&Bound<'_, Guardian>>,
    ) -> PyResult<Self> {
        ranks.iter().try_for_each(|rank| rank.0.parent().check())?;
        let children: Vec<Arc<Child>> = ranks.iter().map(|rank| rank.0.clone()).collect();
        let pids = children.iter().map(|child| child.pid()).collect();
        let grace = Duration::from_secs_f64(grace);
        let engine = Engine::adopting(children, SupervisionPolicy::with_grace(grace)).map_err(os_error)?;
        let over = fd::eventfd(EfdFlags::EFD_NONBLOCK).map_err(os_error)?;
        engine.poll().readable(&over, OVER).map_err(os_error)?;
        let creator = Creator::this_process();
        let key = key.map(|key| (format!("{key}/"), KeyPlaces::of(forked)));
        let guardian = guardian.map(|guardian| PyWeakrefReference::new(guardian)).transpose()?.map(Bound::unbind);
        Ok(Self {
            pids,
            poll: engine.poll().clone(),
            over,
            engine: Mutex::new(engine),
            grace,
            key,
            seen: Mutex::default(),
            guardian,
            creator,
        })
    }

    /// Waits until a rank has ended, for at most `timeout` seconds (None: no limit); once a rank has failed, until all
    /// have ended, whatever the timeout. If a signal handler raises, all ranks are stopped first; if it raises again
    /// meanwhile, they are killed at once. `say` is called with a notice when stopping takes long.
    fn join(&self, py: Python<'_>, timeout: Option<f64>, say: &Bound<'_, PyAny>) -> PyResult<()> {
        let wakeup = Wakeup::begin(py)?;
        let watched = self.with(py, |engine| wakeup.fd().map_or(Ok(()), |fd| engine.poll().edge(fd, WAKEUP)));
        let waited = watched.and_then(|()| self.wait(py, timeout, say));
        let unwatched = self.with(py, |engine| {
            // Another thread may have computed its wait before a rank had ended that cannot be reaped yet.
            engine.stop_looking()?;
            wakeup.fd().map_or(Ok(()), |fd| engine.poll().forget(fd))
        });
        let ended = wakeup.end(py);
        waited.and(unwatched).and(ended)
    }

    /// Stops all ranks as after a failure, and waits until they have ended.
    fn stop(&self, py: Python<'_>, say: &Bound<'_, PyAny>) -> PyResult<()> {
        self.with(py, |engine| engine.send(SupervisorEvent::StopAgain(libc::SIGTERM), &mut JoinHost(self)))?;
        self.join(py, None, say)
    }

    /// The ranks that run, as of the last `join`.
    fn living(&self, py: Python<'_>) -> PyResult<Vec<usize>> {
        self.with(py, |engine| Ok(engine.living()))
    }

    /// The ranks that SIGKILL has not ended, with a line about each. Empty until the job is over.
    fn unkillable(&self, py: Python<'_>) -> PyResult<Vec<(usize, String)>> {
        self.with(py, |engine| {
            let ranks = engine.report().into_iter().flat_map(|report| report.ranks.iter().zip(&self.pids).enumerate());
            let line = |rank, pid| {
                let name = format!("rank {rank} (pid {pid})");
                match tracer_of_zombie(pid) {
                    Some(tracer) => held_by_tracer(&name, tracer),
                    None => unkillable(&name, tree::wait_channel(pid).as_deref()),
                }
            };
            let unkillable = ranks.filter(|(_, (report, _))| report.abandoned);
            Ok(unkillable.map(|(rank, (_, pid))| (rank, format!("rlaunch: error: {}", line(rank, *pid)))).collect())
        })
    }

    /// The processes of the job when a rank failed, by id, with the ranks that ran then.
    fn seen(&self) -> Vec<i32> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).iter().copied().collect()
    }

    /// The rank that failed first, or the first that was stopped by an interrupted wait: its number, its exit code (minus
    /// the signal for a signal) and a description of that. None until all have ended.
    fn failure(&self, py: Python<'_>) -> PyResult<Option<(usize, i32, String)>> {
        self.with(py, |engine| {
            let Some(report) = engine.report() else { return Ok(None) };
            let bad = |rank: usize| report.ranks[rank].exit.filter(|exit| !exit.is_success());
            let failed = match report.outcome {
                NodeOutcome::Failed(failed) => Some((failed.local_rank, failed.exit)),
                // An interrupted wait stopped them.
                _ => (0..report.ranks.len()).find_map(|rank| Some((rank, bad(rank)?))),
            };
            Ok(failed.map(|(rank, exit)| (rank, exit.returncode(), exit.to_string())))
        })
    }
}

impl Joiner {
    /// The body of `join`, once signals wake it.
    fn wait(&self, py: Python<'_>, timeout: Option<f64>, say: &Bound<'_, PyAny>) -> PyResult<()> {
        let deadline = seconds(timeout).map(|t| clock::now().saturating_add(t));
        let mut interrupted: Option<PyErr> = None;
        let mut stopping_since = None;
        let mut said = false;
        loop {
            let now = clock::now();
            let (stopping, living, over, next) = self.with(py, |engine| {
                let next = [engine.time_to_deadline(), engine.time_to_next_look()].into_iter().flatten().min();
                Ok((engine.is_stopping(), engine.living(), engine.report().is_some(), next))
            })?;
            if stopping {
                stopping_since.get_or_insert(now);
            }
            if over {
                break;
            }
            let overdue = stopping_since.map(|since| since + NOTICE_DELAY);
            if !said && overdue.is_some_and(|at| now >= at) {
                said = true;
                let names = living.iter().map(usize::to_string).collect::<Vec<_>>().join(", ");
                let line = format!(
                    "rlaunch: waiting up to {} s for rank(s) {names} to stop; Ctrl-C kills them at once",
                    self.grace.as_secs_f64()
                );
                if let Err(error) = say.call1((line,))
                    && !is_about_stderr(py, &error)
                {
                    interrupted.get_or_insert(error);
                    self.with(py, |engine| engine.send(SupervisorEvent::StopAgain(libc::SIGINT), &mut JoinHost(self)))?;
                }
            }
            let limit = match (stopping, said) {
                (true, true) => None,
                (true, false) => overdue.map(|at| at.saturating_sub(now)),
                (false, _) => deadline.map(|at| at.saturating_sub(now)),
            };
            let before = living.len();
            self.watch_guardian(py);
            // Without the engine's lock, so that another thread's wait does not delay this one.
            let limit = [limit, next].into_iter().flatten().min();
            py.detach(|| self.poll.ready(limit)).map_err(failed)?;
            let after = self.with(py, |engine| {
                engine.turn(Some(Duration::ZERO), &mut JoinHost(self))?;
                if engine.report().is_some() {
                    self.over.write(1)?;
                }
                Ok(engine.living().len())
            })?;
            if let Err(error) = py.check_signals() {
                if !self.creator.is_this_process() {
                    return Err(error); // The handler has forked.
                }
                interrupted.get_or_insert(error);
                self.with(py, |engine| engine.send(SupervisorEvent::StopAgain(libc::SIGINT), &mut JoinHost(self)))?;
                continue;
            }
            let stopping = self.with(py, |engine| Ok(engine.is_stopping()))?;
            let timed_out = deadline.is_some_and(|at| clock::now() >= at);
            if !stopping && (after < before || timed_out) {
                break;
            }
        }
        interrupted.map_or(Ok(()), Err)
    }

    /// Starts another guardian if it has ended, and has its end wake the wait.
    fn watch_guardian(&self, py: Python<'_>) {
        if let Some(guardian) = self.guardian.as_ref().and_then(|it| it.bind(py).upgrade())
            && let Ok(guardian) = guardian.cast_into::<Guardian>()
        {
            // If none can be started, the ranks run without one.
            if guardian.get().replace_if_ended() {
                guardian.get().watch(&self.poll, GUARDIAN);
            }
        }
    }

    /// Runs `body` on the engine without the GIL; two threads in `join` take turns. Fails in a fork of the creator: the epoll
    /// set is shared with it, and its threads may have held the lock.
    fn with<T: Send>(&self, py: Python<'_>, body: impl FnOnce(&mut Engine) -> io::Result<T> + Send) -> PyResult<T> {
        self.creator.check()?;
        py.detach(|| body(&mut self.engine.lock().unwrap_or_else(PoisonError::into_inner))).map_err(failed)
    }
}

/// The process that traces this zombie; `None` if it is no zombie, or none that this PID namespace has traces it.
fn tracer_of_zombie(pid: i32) -> Option<i32> {
    let status = String::from_utf8_lossy(&procfs::read(pid, "status").ok()?).into_owned();
    let field = |name| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    let is_zombie = field("State:")?.starts_with('Z');
    field("TracerPid:")?.parse().ok().filter(|tracer| is_zombie && *tracer > 0)
}

/// Whether an exception of `say` is about stderr, which may be closed or replaced; any other comes from a signal handler.
fn is_about_stderr(py: Python<'_>, error: &PyErr) -> bool {
    error.is_instance_of::<PyOSError>(py)
        || error.is_instance_of::<PyValueError>(py)
        || error.is_instance_of::<PyAttributeError>(py)
}

fn failed(error: io::Error) -> PyErr {
    PyRuntimeError::new_err(format!("waiting for ranks failed: {error}{}", refusal::reason(&error)))
}
