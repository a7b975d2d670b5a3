//! Ranks of a Python program: started by one long-lived thread of ours, named by pidfds.

use super::errors::os_error;
use crate::model::Exit;
use crate::sys::affinity::Mask;
use crate::sys::child::Child;
use crate::sys::fd;
use crate::sys::lifeline::{self, Lifeline, Scope};
use crate::sys::pidfd;
use crate::sys::ports::Lease;
use crate::sys::signals::{self, HELD_AT_START, HELD_IN_FRONT};
use crate::sys::spawn::{self, Group, Start, StartError, Started};
use crossbeam_channel::{Receiver, Sender, bounded};
use pyo3::exceptions::{PyOSError, PyValueError};
use pyo3::prelude::*;
use std::ffi::CString;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Ports that the ranks will listen on, held until `release`.
#[pyclass(frozen, weakref, module = "rlaunch._lib")]
pub struct PortLeases(Mutex<Vec<Lease>>);

impl PortLeases {
    /// Holds these leases.
    pub fn new(leases: Vec<Lease>) -> Self {
        Self(Mutex::new(leases))
    }
}

#[pymethods]
impl PortLeases {
    /// Gives the ports back.
    fn release(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}

type Request = (Box<Start>, Sender<Result<Started, StartError>>);

/// Starts ranks from a thread of its own, because the kernel ties a child's parent-death signal to the
/// thread that started it (prctl(2), PR_SET_PDEATHSIG), and a user's thread may end at any time. The
/// thread ends when the nursery is dropped: each rank holds it.
#[pyclass(frozen, weakref, module = "rlaunch._lib")]
pub struct Nursery {
    requests: Sender<Request>,
    lifeline: Lifeline,
    /// All that were started here, until `forget`: an exception may come from anywhere at any moment
    /// (a signal handler that raises), and whoever starts ranks has to find them then.
    ranks: Mutex<Vec<Arc<Child>>>,
    ends: Mutex<Vec<OwnedFd>>,
}

fn nursery_thread(requests: &Receiver<Request>) {
    for (start, reply) in requests {
        let _ = reply.send(spawn::start(&start));
    }
}

#[pymethods]
impl Nursery {
    #[new]
    fn new() -> PyResult<Self> {
        let lifeline = Lifeline::new().map_err(os_error)?;
        let (requests, inbox) = bounded::<Request>(0);
        // The host's signal handlers are not to run on this thread: it starts with all blocked.
        let held = signals::hold();
        let started = std::thread::Builder::new()
            .name("rlaunch-nursery".into())
            .stack_size(256 * 1024)
            .spawn(move || nursery_thread(&inbox));
        drop(held);
        started.map_err(os_error)?;
        Ok(Self { requests, lifeline, ranks: Mutex::default(), ends: Mutex::default() })
    }

    #[expect(clippy::too_many_arguments, reason = "a Python signature; each is one thing the child is given")]
    /// Starts a program; the kernel kills it when this process is gone. `keep`: descriptors that it
    /// inherits; `output`: what its stdout and stderr become, -1 for ours.
    fn start(
        &self,
        py: Python<'_>,
        program: Vec<u8>,
        argv: Vec<Vec<u8>>,
        environ: Vec<Vec<u8>>,
        keep: Vec<i32>,
        output: i32,
        lifeline: i32,
    ) -> PyResult<Rank> {
        let output = (output >= 0).then_some(output);
        self.begin(
            py,
            Start {
                program: c_string(program)?,
                argv: c_strings(argv)?,
                envp: c_strings(environ)?,
                stdio: [None, output, output],
                keep,
                detached: false,
                group: Group::Inherited,
                cgroup: None,
                cwd: None,
                lifeline: Some((lifeline, Scope::Process)),
                mask: spawn::current_mask(),
                nofile: None,
                affinity: None,
                default_sigpipe: false,
            },
        )
    }

    #[expect(clippy::too_many_arguments, reason = "a Python signature; each is one thing the child is given")]
    /// Starts the command-line launcher; the kernel kills it when this process is gone, or the nursery.
    /// `record`: the descriptor that it inherits; `output`: what its stdout and stderr become, -1 for
    /// ours; `own_group`: whether it leads a process group. Until it handles SIGINT and SIGTERM, they wait.
    fn start_launcher(
        &self,
        py: Python<'_>,
        program: Vec<u8>,
        argv: Vec<Vec<u8>>,
        environ: Vec<Vec<u8>>,
        cwd: Option<Vec<u8>>,
        record: i32,
        output: (i32, i32),
        own_group: bool,
    ) -> PyResult<Rank> {
        let given = |fd: i32| (fd >= 0).then_some(fd);
        self.begin(
            py,
            Start {
                program: c_string(program)?,
                argv: c_strings(argv)?,
                envp: c_strings(environ)?,
                stdio: [None, given(output.0), given(output.1)],
                keep: vec![record],
                detached: false,
                group: if own_group { Group::Own } else { Group::Inherited },
                cgroup: None,
                cwd: cwd.map(c_string).transpose()?,
                lifeline: None,
                mask: spawn::current_mask_and(&[HELD_AT_START.as_slice(), &HELD_IN_FRONT].concat()),
                nofile: None,
                affinity: None,
                default_sigpipe: true,
            },
        )
    }

    /// Forks by Python's own `os.fork`, so that its hooks run: None in the child, which has armed this
    /// end of the lifeline. The child goes on when its parent has a name for it: it may be quick to end,
    /// and a `waitpid(-1)` of the host, or SIGCHLD ignored, would leave nothing to open a pidfd of.
    fn fork(&self, py: Python<'_>, lifeline: i32) -> PyResult<Option<Rank>> {
        let named = fd::Gate::new().map_err(os_error)?;
        let pid: i32 = py.import("os")?.call_method0("fork")?.extract()?;
        if pid == 0 {
            lifeline::arm(lifeline).map_err(os_error)?;
            named.pass().map_err(os_error)?;
            return Ok(None);
        }
        match Child::adopt(pid) {
            Ok(child) => {
                let rank = self.enter(child);
                named.open().map_err(os_error)?;
                Ok(Some(rank))
            }
            Err(error) => {
                pidfd::end_nameless_child(pid);
                Err(os_error(error))
            }
        }
    }

    /// Takes over a child of multiprocessing's fork server, which writes its exit code to `status`; a
    /// copy of that descriptor is kept.
    fn enter_of_fork_server(&self, pid: i32, status: i32) -> PyResult<Rank> {
        let copy = fd::duplicate(status).map_err(os_error)?;
        Ok(self.enter(Child::of_fork_server(pid, copy).map_err(os_error)?))
    }

    /// The ranks that were started here, since `forget`.
    fn ranks(&self) -> Vec<Rank> {
        self.lock().iter().cloned().map(Rank).collect()
    }

    /// Forgets who was started here: somebody else looks after them now.
    fn forget(&self) {
        self.lock().clear();
    }

    /// A read end of the lifeline, for one rank to arm. Kept open until `close_end`.
    fn open_end(&self) -> PyResult<i32> {
        let end = self.lifeline.open_end().map_err(os_error)?;
        let fd = end.as_raw_fd();
        self.ends.lock().unwrap_or_else(PoisonError::into_inner).push(end);
        Ok(fd)
    }

    /// Closes a read end in this process.
    fn close_end(&self, fd: i32) {
        self.ends.lock().unwrap_or_else(PoisonError::into_inner).retain(|end| end.as_raw_fd() != fd);
    }

    /// For a process forked off this one: lets go of the lifeline, which is its parent's.
    fn abandon(&self) {
        self.lifeline.close_write_end();
    }
}

fn null(error: std::ffi::NulError) -> PyErr {
    PyValueError::new_err(format!("embedded null byte: {error}"))
}

fn c_string(bytes: Vec<u8>) -> PyResult<CString> {
    CString::new(bytes).map_err(null)
}

fn c_strings(list: Vec<Vec<u8>>) -> PyResult<Vec<CString>> {
    spawn::c_strings(list).map_err(null)
}

impl Nursery {
    fn begin(&self, py: Python<'_>, start: Start) -> PyResult<Rank> {
        let (reply, answer) = bounded(1);
        let started = py.detach(|| match self.requests.send((Box::new(start), reply)) {
            Ok(()) => answer.recv().map_err(|_| ()),
            Err(_) => Err(()),
        });
        match started {
            Ok(Ok(started)) => Ok(self.enter(Child::new(started.pid, started.pidfd, false))),
            Ok(Err(error)) => Err(PyOSError::new_err((error.errno, error.to_string()))),
            Err(()) => Err(PyOSError::new_err((libc::EAGAIN, "the thread that starts ranks is gone"))),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Arc<Child>>> {
        self.ranks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn enter(&self, child: Child) -> Rank {
        let child = Arc::new(child);
        self.lock().push(child.clone());
        Rank(child)
    }
}

/// One rank's process.
#[pyclass(frozen, module = "rlaunch._lib")]
pub struct Rank(pub Arc<Child>);

/// Seconds from Python, negative ones being no wait at all.
pub fn seconds(timeout: Option<f64>) -> Option<Duration> {
    timeout.map(|t| Duration::try_from_secs_f64(t.max(0.0)).unwrap_or(Duration::MAX))
}

#[pymethods]
impl Rank {
    /// The process id.
    #[getter]
    fn pid(&self) -> i32 {
        self.0.pid()
    }

    /// A descriptor that is readable once the process has ended.
    fn fileno(&self) -> i32 {
        self.0.fd()
    }

    /// The exit code (minus the signal for a signal), or None while it lives.
    fn poll(&self) -> PyResult<Option<i32>> {
        Ok(self.0.try_exit().map_err(os_error)?.map(Exit::returncode))
    }

    /// Waits for the end, `timeout` seconds at most (None: for ever); the exit code or None.
    #[pyo3(signature = (timeout=None))]
    fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Option<i32>> {
        let deadline = seconds(timeout).map(|t| crate::sys::clock::now().saturating_add(t));
        loop {
            let left = deadline.map(|at| at.saturating_sub(crate::sys::clock::now()));
            if let Some(exit) = py.detach(|| self.0.wait(left)).map_err(os_error)? {
                return Ok(Some(exit.returncode()));
            }
            py.check_signals()?;
            if left == Some(Duration::ZERO) {
                return Ok(None);
            }
        }
    }

    /// Sends a signal, unless the process has been reaped.
    fn signal(&self, signal: i32) -> PyResult<()> {
        self.0.signal(signal).map_err(os_error)
    }
}

#[expect(clippy::too_many_arguments, reason = "a Python signature; each is one thing the rank is given")]
/// For a rank that was forked off a zygote: takes its place. `stdio`: what its first three descriptors become, -1 for what
/// they are; `session`: whether it leads one; `lifeline`: a read end, -1 for none, armed for its whole group if `group`;
/// `parent`: who must be its parent by now, and whose death it shares; `cwd`, `nofile` (soft limit), `cpus`: None for what
/// it has.
///
/// OSError: whose text names the step.
#[pyfunction]
pub fn settle_rank(
    stdio: (i32, i32, i32),
    session: bool,
    lifeline: i32,
    group: bool,
    parent: i32,
    cwd: Option<Vec<u8>>,
    nofile: Option<u64>,
    cpus: Option<Vec<u16>>,
) -> PyResult<()> {
    let given = |fd: i32| (fd >= 0).then_some(fd);
    let start = Start {
        program: CString::default(),
        argv: Vec::new(),
        envp: Vec::new(),
        stdio: [given(stdio.0), given(stdio.1), given(stdio.2)],
        keep: Vec::new(),
        detached: false,
        group: if session { Group::Session } else { Group::Inherited },
        cgroup: None,
        cwd: cwd.map(c_string).transpose()?,
        lifeline: given(lifeline).map(|fd| (fd, if group { Scope::Group } else { Scope::Process })),
        mask: spawn::current_mask(),
        nofile,
        affinity: cpus.map(|cpus| Mask::of(&cpus.into_iter().collect())),
        default_sigpipe: false,
    };
    spawn::settle(&start, parent).map_err(|error| PyOSError::new_err((error.errno, error.to_string())))
}
