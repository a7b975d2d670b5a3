//! The guardian of `spawn`: a process that waits for the end of this one and then kills what the ranks left running.
//!
//! It is detached: it causes no SIGCHLD here, and a `wait()` of the host program does not see it.

use super::errors::os_error;
use crate::run::sweep;
use crate::run::sweep::Leftover;
use crate::run::sweep::no_sweep::NoSweep;
use crate::run::sweep::paddle_memory;
use crate::spec::no_sweep;
use crate::sys::clock;
use crate::sys::io::fd;
use crate::sys::io::poll::Poller;
use crate::sys::process::procfs::reader::LockedFileReader;
use crate::sys::process::procfs::snapshot::Snapshot;
use crate::sys::process::procfs::stat::ProcStat;
use crate::sys::process::spawn;
use crate::sys::process::spawn::{ProcessGroup, SpawnCommand, SpawnDescriptors};
use crate::sys::process::tree::KeyPlaces;
use crate::sys::process::{mark, procfs, tree};
use crate::sys::signals;
use nix::errno::Errno;
use nix::fcntl::{OFlag, open};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::stat::{Mode, fstat};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use std::collections::BTreeSet;
use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsFd, AsRawFd, IntoRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Run by a bare interpreter: loads this module and calls `guard`.
const CODE: &str = "\
import sys, importlib.util as util
spec = util.spec_from_file_location('rlaunch._lib', sys.argv[1])
module = util.module_from_spec(spec)
spec.loader.exec_module(module)
module.guard(int(sys.argv[2]), sys.argv[3], int(sys.argv[4]))";

/// A guardian that ends sooner after its start cannot run, or memory is short.
const SHORT_LIFE: Duration = Duration::from_secs(10);
/// How many of these in a row are replaced.
const MOST_SHORT_LIVED: u32 = 3;

/// The guardian of this process. It acts when this process has ended, or when the last reference to this object is gone. A process
/// that is forked off this one must drop its references at once.
#[pyclass(frozen, weakref, module = "rlaunch._lib")]
pub struct Guardian {
    program: CString,
    /// The arguments before and after the number of the pipe's read end.
    argv: [Vec<CString>; 2],
    envp: Vec<CString>,
    pipe: Mutex<GuardianPipe>,
}

/// The pipe that a guardian reads from.
struct GuardianPipe {
    /// Its write end.
    end: OwnedFd,
    /// Its inode: a program that becomes a daemon closes all descriptors, and the number may be another file's by now.
    inode: u64,
    started: Duration,
    /// How many guardians in a row have ended soon after their start.
    short_lived: u32,
}

#[pymethods]
impl Guardian {
    /// Starts it. `python`: the interpreter; `module`: this module's file; `key`: the job key of the ranks. Keeps the GIL for this
    /// millisecond: another thread could fork meanwhile, and the fork would keep the pipe open.
    #[new]
    fn new(python: Vec<u8>, module: Vec<u8>, environ: Vec<Vec<u8>>, key: &str) -> PyResult<Self> {
        let bad = |e: std::ffi::NulError| PyValueError::new_err(format!("embedded null byte: {e}"));
        // A guardian that replaces another one is younger than ranks.
        let began = ProcStat::of(std::process::id() as i32).map_or(0, |stat| stat.started);
        let before = [python.clone(), b"-I".to_vec(), b"-S".to_vec(), b"-c".to_vec(), CODE.into(), module];
        let argv = [
            spawn::c_strings(before).map_err(bad)?,
            spawn::c_strings([key.into(), began.to_string().into()]).map_err(bad)?,
        ];
        let (program, envp) = (CString::new(python).map_err(bad)?, spawn::c_strings(environ).map_err(bad)?);
        let pipe = GuardianPipe::start(&program, &argv, &envp, 0).map_err(os_error)?;
        Ok(Self { program, argv, envp, pipe: Mutex::new(pipe) })
    }

    /// The number of a descriptor that has POLLERR once the guardian has ended, for poll(2).
    fn fileno(&self) -> i32 {
        self.lock().end.as_raw_fd()
    }

    /// Starts another one if it has ended, as by the OOM killer, unless some in a row have ended at once. Returns whether one runs.
    /// Keeps the GIL, as `new` does.
    pub fn replace_if_ended(&self) -> bool {
        let mut pipe = self.lock();
        if pipe.has_reader() {
            return true;
        }
        let is_short_lived = clock::now().saturating_sub(pipe.started) < SHORT_LIFE;
        let short_lived = if is_short_lived { pipe.short_lived + 1 } else { 0 };
        if short_lived > MOST_SHORT_LIVED {
            return false;
        }
        let Ok(other) = GuardianPipe::start(&self.program, &self.argv, &self.envp, short_lived) else { return false };
        let before = std::mem::replace(&mut *pipe, other);
        if !before.is_own() {
            // Not to be closed.
            let _ = before.end.into_raw_fd();
        }
        true
    }
}

impl Guardian {
    /// Adds `fileno` to the set. An event comes once, and is no error to have been added before.
    pub fn watch(&self, poll: &Poller, token: u64) {
        // EEXIST, or a lack of memory: the next start of ranks sees the end of the guardian.
        let _ = poll.edge(&self.lock().end, token);
    }

    fn lock(&self) -> MutexGuard<'_, GuardianPipe> {
        self.pipe.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl GuardianPipe {
    fn start(program: &CStr, argv: &[Vec<CString>; 2], envp: &[CString], short_lived: u32) -> io::Result<Self> {
        let end = start(program, argv, envp)?;
        Ok(Self { inode: fstat(&end)?.st_ino, end, started: clock::now(), short_lived })
    }

    fn is_own(&self) -> bool {
        fstat(&self.end).is_ok_and(|file| file.st_ino == self.inode)
    }

    /// Whether a process has the read end: without one, the write end has POLLERR (poll(2)).
    fn has_reader(&self) -> bool {
        self.is_own() && poll(&mut [PollFd::new(self.end.as_fd(), PollFlags::empty())], PollTimeout::ZERO) == Ok(0)
    }
}

/// Starts a guardian. Returns the write end of its pipe.
fn start(program: &CStr, argv: &[Vec<CString>; 2], envp: &[CString]) -> io::Result<OwnedFd> {
    let (read, write) = fd::pipe(OFlag::empty())?;
    let null = open("/dev/null", OFlag::O_RDWR | OFlag::O_CLOEXEC, Mode::empty())?;
    let [before, after] = argv;
    let number = spawn::c_strings([read.as_raw_fd().to_string().into()])?;
    let start = SpawnCommand {
        program: program.to_owned(),
        argv: before.iter().chain(&number).chain(after).cloned().collect(),
        envp: envp.to_vec(),
        group: ProcessGroup::Session,
        cwd: None,
        detached: true,
        mask: spawn::current_mask(),
        nofile: None,
        affinity: None,
        default_sigpipe: true,
    };
    // Not the host's: a reader of the host's output must not wait for the guardian.
    let stdio = [Some(null.as_fd()); 3];
    let descriptors =
        SpawnDescriptors { stdio, keep: vec![(read.as_fd(), read.as_raw_fd())], ..SpawnDescriptors::default() };
    match spawn::start(&start, &descriptors) {
        Ok(_) => Ok(write),
        Err(error) => Err(io::Error::from_raw_os_error(error.errno)),
    }
}

/// The guardian's body: waits until the other end of `fd` is closed, then kills all processes with the key that have started since
/// this time (clock ticks since boot).
#[pyfunction]
pub fn guard(py: Python<'_>, fd: i32, key: &str, since: u64) -> PyResult<()> {
    let end = fd::take_inherited(fd).map_err(os_error)?;
    py.detach(|| {
        let _blocked = signals::block_all();
        loop {
            let mut fds = [PollFd::new(end.as_fd(), PollFlags::POLLIN)];
            match poll(&mut fds, PollTimeout::NONE) {
                Err(Errno::EINTR) => {}
                _ => break,
            }
        }
        // The host is gone: nothing is left to report the swept processes to.
        let key = (key, KeyPlaces::EnvironmentAndMemory);
        sweep::by_key(key, &NoSweep::default(), &BTreeSet::new(), Some(since)).map(drop)
    })
    .map_err(|error| os_error(error.source))
}

/// The ids and names of processes.
type Processes = Vec<(i32, String)>;

/// The names and sizes of shared memory.
type Memory = Vec<(String, u64)>;

/// Kills all processes whose key begins with `key` and a slash, and removes their shared memory and that of `failed`, ranks that
/// have ended. `forked`: whether ranks may have been forked without an execve. Returns the processes that were killed, those
/// that no sweep ends, and the names and sizes of the memory.
#[pyfunction]
pub fn sweep_leftovers(
    py: Python<'_>,
    key: &str,
    failed: Vec<i32>,
    forked: bool,
) -> PyResult<(Processes, Processes, Memory)> {
    let failed = failed.into_iter().collect();
    let places = KeyPlaces::of(forked);
    let swept = py.detach(|| sweep::by_key((key, places), &NoSweep::default(), &failed, None));
    let swept = swept.map_err(|error| os_error(error.source))?;
    let memory = swept.memory.into_iter().map(|memory| (memory.name, memory.size)).collect();
    let listed = |found: Vec<Leftover>| found.into_iter().map(|leftover| (leftover.pid, leftover.name)).collect();
    Ok((listed(swept.killed), listed(swept.left), memory))
}

/// The ids of processes whose key begins with `key` and a slash.
#[pyfunction]
pub fn find_leftovers(key: &str) -> Vec<i32> {
    let (reader, prefix) = (LockedFileReader::default(), format!("{key}/"));
    let places = KeyPlaces::EnvironmentAndMemory;
    tree::with_key_prefix(&reader, Snapshot::take().young(None), (sweep::KEY, &prefix), places)
        .found
        .into_iter()
        .collect()
}

/// Whether a process id in the name of shared memory of this user can only be that of a process of this PID namespace.
#[pyfunction]
pub fn is_shared_memory_private(py: Python<'_>) -> bool {
    py.detach(paddle_memory::is_private)
}

/// The line that says what is not found where processes cannot be looked up in /proc; None where they can, and after the
/// first call.
#[pyfunction]
pub fn procfs_line() -> Option<String> {
    static SAID: AtomicBool = AtomicBool::new(false);
    let unusable = procfs::verify().err()?;
    let is_first = !SAID.swap(true, Ordering::Relaxed);
    is_first.then(|| {
        format!("{unusable}: processes that ranks leave are neither found nor ended; mount /proc in this namespace")
    })
}

/// Marks the memory of this process with its key, so that the processes it forks are found. Errors are ignored: then
/// only processes started by execve are found.
#[pyfunction]
pub fn mark_memory(key: &str) {
    let _ = mark::mark_memory(key);
}

/// The line that says what was swept: `swept 2 leftover processes of the job (sleep)`.
#[pyfunction]
pub fn swept_line(names: Vec<String>) -> String {
    crate::report::failure_report::sweep(names.len(), &[], &names)
}

/// The line that says what still runs: `left running by RLAUNCH_NO_SWEEP: uploader (pid 4242)`.
#[pyfunction]
pub fn left_line(processes: Vec<(i32, String)>) -> String {
    let processes: Vec<_> = processes.iter().map(|(pid, name)| (*pid, name.as_str())).collect();
    crate::report::failure_report::left_running(no_sweep::VARIABLE, &processes)
}
