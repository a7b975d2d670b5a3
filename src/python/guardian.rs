//! The guardian of `spawn`: a process that waits for the end of this one and then kills what the ranks left running.
//!
//! It is detached: it causes no SIGCHLD here, and a `wait()` of the host program does not see it.

use super::descriptor::Descriptor;
use super::errors::os_error;
use crate::run::sweep;
use crate::run::sweep::Leftover;
use crate::run::sweep::no_sweep::NoSweep;
use crate::spec::no_sweep;
use crate::sys::io::fd;
use crate::sys::process::procfs::reader::LockedFileReader;
use crate::sys::process::procfs::snapshot::Snapshot;
use crate::sys::process::spawn;
use crate::sys::process::spawn::{ProcessGroup, SpawnCommand, SpawnDescriptors};
use crate::sys::process::tree::KeyPlaces;
use crate::sys::process::{mark, procfs, tree};
use crate::sys::signals;
use nix::errno::Errno;
use nix::fcntl::{OFlag, open};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::stat::Mode;
use pyo3::exceptions::{PyOSError, PyValueError};
use pyo3::prelude::*;
use std::collections::BTreeSet;
use std::ffi::CString;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::{AtomicBool, Ordering};

/// Run by a bare interpreter: loads this module and calls `guard`.
const CODE: &str = "\
import sys, importlib.util as util
spec = util.spec_from_file_location('rlaunch._lib', sys.argv[1])
module = util.module_from_spec(spec)
spec.loader.exec_module(module)
module.guard(int(sys.argv[2]), sys.argv[3])";

/// Starts a guardian. `python`: the interpreter; `module`: this module's file; `key`: the job key of the ranks. It acts
/// when the returned descriptor and all copies of it are closed.
#[pyfunction]
pub fn start_guardian(
    py: Python<'_>,
    python: Vec<u8>,
    module: Vec<u8>,
    environ: Vec<Vec<u8>>,
    key: &str,
) -> PyResult<Descriptor> {
    let (read, write) = fd::pipe(OFlag::empty()).map_err(os_error)?;
    let null = open("/dev/null", OFlag::O_RDWR | OFlag::O_CLOEXEC, Mode::empty()).map_err(os_error)?;
    let silent = Some(null.as_fd());
    let argv = [
        python.clone(),
        b"-I".to_vec(),
        b"-S".to_vec(),
        b"-c".to_vec(),
        CODE.into(),
        module,
        read.as_raw_fd().to_string().into(),
        key.into(),
    ];
    let bad = |e: std::ffi::NulError| PyValueError::new_err(format!("embedded null byte: {e}"));
    let start = SpawnCommand {
        program: CString::new(python).map_err(bad)?,
        argv: spawn::c_strings(argv).map_err(bad)?,
        envp: spawn::c_strings(environ).map_err(bad)?,
        group: ProcessGroup::Session,
        cwd: None,
        detached: true,
        mask: spawn::current_mask(),
        nofile: None,
        affinity: None,
        default_sigpipe: true,
    };
    // Not the host's: a reader of the host's output must not wait for the guardian.
    let stdio = [silent, silent, silent];
    let descriptors =
        SpawnDescriptors { stdio, keep: vec![(read.as_fd(), read.as_raw_fd())], ..SpawnDescriptors::default() };
    match py.detach(|| spawn::start(&start, &descriptors)) {
        Ok(_) => Ok(Descriptor::new(write)),
        Err(error) => Err(PyOSError::new_err((error.errno, error.to_string()))),
    }
}

/// The guardian's body: waits until the other end of `fd` is closed, then kills all processes with the key.
#[pyfunction]
pub fn guard(py: Python<'_>, fd: i32, key: &str) -> PyResult<()> {
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
        sweep::by_key((key, KeyPlaces::EnvironmentAndMemory), &NoSweep::default(), &BTreeSet::new()).map(drop)
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
    let swept = py.detach(|| sweep::by_key((key, places), &NoSweep::default(), &failed));
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
    tree::all_with_key(&reader, &Snapshot::take(), (sweep::KEY, &prefix), places).found.into_iter().collect()
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
