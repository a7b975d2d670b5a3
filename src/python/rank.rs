//! The processes that `rlaunch.spawn` starts, and the thread that starts them.

use super::errors::{os_error, step_error};
use crate::model::Exit;
use crate::sys::io::fd;
use crate::sys::io::ports::PortLease;
use crate::sys::process::affinity::CpuMask;
use crate::sys::process::child::Child;
use crate::sys::process::current::{self, Creator};
use crate::sys::process::lifeline;
use crate::sys::process::lifeline::{KillScope, Lifeline};
use crate::sys::process::pidfd;
use crate::sys::process::spawn;
use crate::sys::process::spawn::{ProcessGroup, SpawnCommand, SpawnDescriptors, SpawnStepError, SpawnedProcess};
use crate::sys::signals::{self, BLOCKED_AT_START, BLOCKED_IN_LAUNCHER};
use crossbeam_channel::{Receiver, Sender, bounded};
use pyo3::exceptions::{PyOSError, PyValueError};
use pyo3::prelude::*;
use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Ports that the ranks will listen on, reserved until `release`.
#[pyclass(frozen, weakref, module = "rlaunch._lib")]
pub struct PortLeases(Mutex<Vec<PortLease>>);

impl PortLeases {
    /// Holds these leases.
    pub fn new(leases: Vec<PortLease>) -> Self {
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

/// The descriptors of a command, by the numbers that Python code has them under.
#[derive(Default)]
pub struct NumberedDescriptors {
    /// As in `SpawnDescriptors`.
    pub stdio: [Option<i32>; 3],
    /// As in `SpawnDescriptors`.
    pub keep: Vec<i32>,
    /// As in `SpawnDescriptors`.
    pub cgroup: Option<i32>,
    /// As in `SpawnDescriptors`.
    pub lifeline: Option<(i32, KillScope)>,
}

impl NumberedDescriptors {
    /// Copies of them. An error if one is closed, or the lifeline is a standard descriptor.
    pub fn duplicate(&self) -> Result<DescriptorCopies, SpawnStepError> {
        let duplicate = || -> nix::Result<DescriptorCopies> {
            // First: a copy may get the number of one that is closed.
            let all = self.stdio.iter().flatten().chain(&self.keep).chain(&self.cgroup).copied();
            all.chain(self.lifeline.map(|(number, _)| number)).try_for_each(fd::check_open)?;
            let [stdin, stdout, stderr] = self.stdio.map(|number| number.map(fd::duplicate_number).transpose());
            let keep = self.keep.iter().map(|&number| Ok((fd::duplicate_number(number)?, number)));
            let lifeline = self
                .lifeline
                .map(|(number, scope)| Ok((fd::duplicate_number_above_stdio(number)?, number, scope)))
                .transpose()?;
            Ok(DescriptorCopies {
                stdio: [stdin?, stdout?, stderr?],
                keep: keep.collect::<nix::Result<_>>()?,
                cgroup: self.cgroup.map(fd::duplicate_number).transpose()?,
                lifeline,
            })
        };
        duplicate().map_err(|errno| SpawnStepError { step: "descriptors", errno: errno as i32 })
    }
}

/// Copies of the descriptors of a command: Python code may close its own while another thread starts the process.
pub struct DescriptorCopies {
    stdio: [Option<OwnedFd>; 3],
    keep: Vec<(OwnedFd, RawFd)>,
    cgroup: Option<OwnedFd>,
    lifeline: Option<(OwnedFd, RawFd, KillScope)>,
}

impl DescriptorCopies {
    /// The copies; the program inherits `keep` and the lifeline under the numbers that Python code has.
    pub fn borrow(&self) -> SpawnDescriptors<'_> {
        let lifeline = self.lifeline.as_ref();
        let keep = self.keep.iter().map(|(fd, number)| (fd.as_fd(), *number));
        SpawnDescriptors {
            stdio: self.stdio.each_ref().map(|fd| fd.as_ref().map(AsFd::as_fd)),
            keep: keep.chain(lifeline.map(|(fd, number, _)| (fd.as_fd(), *number))).collect(),
            cgroup: self.cgroup.as_ref().map(AsFd::as_fd),
            lifeline: lifeline.map(|(fd, _, scope)| (fd.as_fd(), *scope)),
        }
    }
}

type SpawnRequest = (Box<(SpawnCommand, DescriptorCopies)>, Sender<Result<SpawnedProcess, SpawnStepError>>);

/// Starts programs from a thread of its own, because the kernel ties a child's parent-death signal to the thread that started
/// it (prctl(2), PR_SET_PDEATHSIG), and a user's thread may end at any time. The first such start creates the thread; ranks
/// that are forked need none, and the host stays single-threaded. The thread ends when the spawner is dropped; Python keeps
/// it as long as a rank.
#[pyclass(frozen, weakref, module = "rlaunch._lib")]
pub struct Spawner {
    requests: Mutex<Option<Sender<SpawnRequest>>>,
    lifelines: Mutex<Vec<Lifeline>>,
    /// The processes that were started, until `forget`. If a signal handler raises while Python starts ranks, it finds
    /// those that already run here.
    ranks: Mutex<Vec<Arc<Child>>>,
    ends: Mutex<Vec<OwnedFd>>,
    creator: Creator,
}

fn run_spawner(requests: &Receiver<SpawnRequest>) {
    for (start, reply) in requests {
        let (command, copies) = &*start;
        let started = spawn::start(command, &copies.borrow());
        // Before the reply: the caller may count its descriptors.
        drop(start);
        let _ = reply.send(started);
    }
}

/// Creates the thread. It ends when all copies of the sender have been dropped.
fn start_spawner_thread() -> io::Result<Sender<SpawnRequest>> {
    let (requests, inbox) = bounded::<SpawnRequest>(0);
    // The host's signal handlers must not run on this thread: it starts with all signals blocked.
    let blocked = signals::block_all();
    let started = std::thread::Builder::new()
        .name("rlaunch-spawner".into())
        .stack_size(256 * 1024)
        .spawn(move || run_spawner(&inbox));
    drop(blocked);
    started.map(|_| requests)
}

#[pymethods]
impl Spawner {
    #[new]
    fn new() -> PyResult<Self> {
        Ok(Self {
            requests: Mutex::default(),
            lifelines: Mutex::default(),
            ranks: Mutex::default(),
            ends: Mutex::default(),
            creator: Creator::this_process(),
        })
    }

    #[expect(clippy::too_many_arguments, reason = "a Python signature")]
    /// Starts a program; the kernel kills it when this process ends. `keep`: descriptors that it inherits; `output`: its
    /// stdout and stderr, -1 for this process's.
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
            SpawnCommand {
                group: ProcessGroup::Inherited,
                mask: spawn::current_mask(),
                default_sigpipe: false,
                ..SpawnCommand::new(program, argv, environ).map_err(null)?
            },
            NumberedDescriptors {
                stdio: [None, output, output],
                keep,
                lifeline: Some((lifeline, KillScope::Process)),
                ..NumberedDescriptors::default()
            },
        )
    }

    #[expect(clippy::too_many_arguments, reason = "a Python signature")]
    /// Starts the command-line launcher; the kernel kills it when this process ends or the spawner is dropped. `record`:
    /// the write end of its status pipe; `output`: its stdout and stderr, -1 for this process's; `own_group`: whether it
    /// leads a process group. SIGINT and SIGTERM stay pending until it handles them.
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
            SpawnCommand {
                group: if own_group { ProcessGroup::Own } else { ProcessGroup::Inherited },
                cwd: cwd.map(c_string).transpose()?,
                mask: spawn::current_mask_and(&[BLOCKED_AT_START.as_slice(), &BLOCKED_IN_LAUNCHER].concat()),
                ..SpawnCommand::new(program, argv, environ).map_err(null)?
            },
            NumberedDescriptors {
                stdio: [None, given(output.0), given(output.1)],
                keep: vec![record],
                ..NumberedDescriptors::default()
            },
        )
    }

    /// Forks by `os.fork`, so that Python's hooks run: None in the child, which has armed this end of the lifeline. If the
    /// main thread forks, the child dies with it, too; another thread may end while its ranks run. The
    /// child continues once its parent has its pidfd: if it ended before, a `waitpid(-1)` of the host, or SIGCHLD ignored,
    /// would leave no process to open a pidfd of.
    fn fork(&self, py: Python<'_>, lifeline: i32) -> PyResult<Option<Rank>> {
        self.creator.check()?;
        let named = fd::ForkGate::new().map_err(os_error)?;
        let (parent, is_main_thread) = (std::process::id(), current::is_main_thread());
        let pid: i32 = py.import("os")?.call_method0("fork")?.extract()?;
        if pid == 0 {
            let end = fd::duplicate_number_above_stdio(lifeline).map_err(os_error)?;
            lifeline::arm(end.as_fd()).map_err(os_error)?;
            if is_main_thread {
                current::die_with_parent(parent).map_err(os_error)?;
            }
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

    /// Takes over a child of multiprocessing's fork server, which writes its exit code to `status`. Keeps a copy of that
    /// descriptor.
    fn enter_of_fork_server(&self, pid: i32, status: i32) -> PyResult<Rank> {
        self.creator.check()?;
        let copy = fd::duplicate_number(status).map_err(os_error)?;
        Ok(self.enter(Child::of_fork_server(pid, copy).map_err(os_error)?))
    }

    /// The ranks that were started here, since `forget`; none in a fork of this process.
    fn ranks(&self) -> Vec<Rank> {
        self.lock().iter().filter(|rank| rank.parent().is_this_process()).cloned().map(Rank).collect()
    }

    /// Forgets the processes that were started here: the caller manages them now.
    fn forget(&self) {
        self.lock().clear();
    }

    /// The read end of a new lifeline, for one rank to arm. It stays open until `close_end`.
    fn open_end(&self) -> PyResult<i32> {
        let (lifeline, end) = Lifeline::open().map_err(os_error)?;
        let fd = end.as_raw_fd();
        self.lifelines.lock().unwrap_or_else(PoisonError::into_inner).push(lifeline);
        self.ends.lock().unwrap_or_else(PoisonError::into_inner).push(end);
        Ok(fd)
    }

    /// Closes a read end in this process.
    fn close_end(&self, fd: i32) {
        self.ends.lock().unwrap_or_else(PoisonError::into_inner).retain(|end| end.as_raw_fd() != fd);
    }

    /// For a process forked from this one: closes its copies of the ranks' lifelines.
    fn abandon(&self) {
        self.lifelines.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}

fn null(error: std::ffi::NulError) -> PyErr {
    PyValueError::new_err(format!("embedded null byte: {error}"))
}

fn c_string(bytes: Vec<u8>) -> PyResult<CString> {
    CString::new(bytes).map_err(null)
}

impl Spawner {
    fn begin(&self, py: Python<'_>, start: SpawnCommand, numbers: NumberedDescriptors) -> PyResult<Rank> {
        self.creator.check()?;
        let failed = |error: SpawnStepError| step_error(&error);
        let copies = numbers.duplicate().map_err(failed)?;
        let requests = self.requests()?;
        let (reply, answer) = bounded(1);
        let started = py.detach(|| match requests.send((Box::new((start, copies)), reply)) {
            Ok(()) => answer.recv().map_err(|_| ()),
            Err(_) => Err(()),
        });
        match started {
            Ok(Ok(started)) => Ok(self.enter(Child::new(started.pid, started.pidfd, false))),
            Ok(Err(error)) => Err(failed(error)),
            Err(()) => Err(PyOSError::new_err((libc::EAGAIN, "the thread that starts ranks has ended"))),
        }
    }

    /// The way to the thread, which is created if there is none.
    fn requests(&self) -> PyResult<Sender<SpawnRequest>> {
        let mut requests = self.requests.lock().unwrap_or_else(PoisonError::into_inner);
        let requests = match requests.take() {
            Some(present) => requests.insert(present),
            None => requests.insert(start_spawner_thread().map_err(os_error)?),
        };
        Ok(requests.clone())
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

impl Drop for Spawner {
    /// A fork of this process has no such thread, and the thread may have held the channel's lock during the fork.
    fn drop(&mut self) {
        if !self.creator.is_this_process() {
            std::mem::forget(self.requests.get_mut().unwrap_or_else(PoisonError::into_inner).take());
        }
    }
}

/// One rank's process.
#[pyclass(frozen, module = "rlaunch._lib")]
pub struct Rank(pub Arc<Child>);

/// A timeout in seconds from Python; negative values become zero.
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

    /// The exit code (minus the signal for a signal), or None while it runs.
    fn poll(&self) -> PyResult<Option<i32>> {
        Ok(self.0.try_exit().map_err(os_error)?.map(Exit::returncode))
    }

    /// Waits for the end, `timeout` seconds at most (None: for ever); the exit code or None.
    #[pyo3(signature = (timeout=None))]
    fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Option<i32>> {
        self.0.parent().check()?;
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
        self.0.parent().check()?;
        self.0.signal(signal).map_err(os_error)
    }
}

/// Sets up a rank that was forked from a zygote. `stdio`: its first three descriptors, -1 to keep one; `session`: whether
/// it becomes a session leader; `lifeline`: a read end, -1 for none, armed for its whole group if `session`; `parent`: its
/// parent process, with which it ends; `cwd`, `nofile` (soft limit), `cpus`: None to keep its own.
///
/// OSError: the text names the step that failed.
#[pyfunction]
pub fn set_up_rank_process(
    stdio: (i32, i32, i32),
    session: bool,
    lifeline: i32,
    parent: i32,
    cwd: Option<Vec<u8>>,
    nofile: Option<u64>,
    cpus: Option<Vec<u16>>,
) -> PyResult<()> {
    let given = |fd: i32| (fd >= 0).then_some(fd);
    let scope = if session { KillScope::Group } else { KillScope::Process };
    let start = SpawnCommand {
        group: if session { ProcessGroup::Session } else { ProcessGroup::Inherited },
        cwd: cwd.map(c_string).transpose()?,
        mask: spawn::current_mask(),
        nofile,
        affinity: cpus.map(|cpus| CpuMask::of(&cpus.into_iter().collect())),
        default_sigpipe: false,
        ..SpawnCommand::new("", Vec::new(), Vec::new())?
    };
    let numbers = NumberedDescriptors {
        stdio: [given(stdio.0), given(stdio.1), given(stdio.2)],
        lifeline: given(lifeline).map(|fd| (fd, scope)),
        ..NumberedDescriptors::default()
    };
    let applied = numbers.duplicate().and_then(|copies| spawn::apply_settings(&start, &copies.borrow(), parent));
    applied.map_err(|error| step_error(&error))
}
