//! Wakes a native wait when Python has a signal to handle (`signal.set_wakeup_fd`).
//!
//! The descriptor is set and restored here: in Python, a signal handler may raise between any two steps.

use super::errors::os_error;
use super::rank::seconds;
use crate::sys::clock;
use crate::sys::io::fd;
use crate::sys::io::poll::Poller;
use crate::sys::process::current::Creator;
use nix::errno::Errno;
use nix::fcntl::OFlag;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

/// Readable once Python has a signal to handle. Empty on other threads than the main one, which handle no signals.
pub struct Wakeup(Option<WakeupFd>);

struct WakeupFd {
    read: OwnedFd,
    _write: OwnedFd,
    /// The wake-up descriptor before (asyncio sets one); -1 for none.
    before: i32,
    creator: Creator,
}

impl Wakeup {
    /// Makes signals write to a new pipe.
    pub fn begin(py: Python<'_>) -> PyResult<Self> {
        let (read, write) = fd::pipe(OFlag::O_NONBLOCK).map_err(os_error)?;
        match set(py, write.as_raw_fd(), false) {
            Ok(before) => Ok(Self(Some(WakeupFd { read, _write: write, before, creator: Creator::this_process() }))),
            // "set_wakeup_fd only works in main thread of the main interpreter".
            Err(error) if error.is_instance_of::<PyValueError>(py) => Ok(Self(None)),
            Err(error) => Err(error),
        }
    }

    /// The end to wait on.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.0.as_ref().map(|set| set.read.as_fd())
    }

    /// Restores the descriptor before, and passes on the bytes that were written meanwhile.
    pub fn end(self, py: Python<'_>) -> PyResult<()> {
        let Some(WakeupFd { read, before, creator, .. }) = self.0 else { return Ok(()) };
        if set(py, before, true).is_err() {
            // Its owner closed it without taking it back.
            return set(py, -1, true).map(drop);
        }
        if !creator.is_this_process() {
            return Ok(()); // A signal handler has forked; the bytes are for the other process.
        }
        // A copy, because its owner may close it meanwhile.
        let Ok(owner) = fd::duplicate_number(before) else { return Ok(()) };
        let mut bytes = [0; 4096];
        match nix::unistd::read(&read, &mut bytes) {
            // A full pipe has a byte already, and a closed one needs none.
            Ok(count) => drop(nix::unistd::write(owner, &bytes[..count])),
            Err(Errno::EAGAIN) => {}
            Err(error) => return Err(os_error(error)),
        }
        Ok(())
    }
}

/// Sets the descriptor, and returns the one before it.
fn set(py: Python<'_>, fd: i32, warn_on_full_buffer: bool) -> PyResult<i32> {
    let options = PyDict::new(py);
    options.set_item("warn_on_full_buffer", warn_on_full_buffer)?;
    py.import("signal")?.call_method("set_wakeup_fd", (fd,), Some(&options))?.extract()
}

/// Waits until one of these descriptors is readable or has hung up, for at most `timeout` seconds (None: no limit), and
/// returns those that are. A signal handler that raises ends the wait.
#[pyfunction]
#[pyo3(signature = (fds, timeout=None))]
pub fn await_readable(py: Python<'_>, fds: Vec<i32>, timeout: Option<f64>) -> PyResult<Vec<i32>> {
    let deadline = seconds(timeout).map(|t| clock::now().saturating_add(t));
    let poll = Poller::new().map_err(os_error)?;
    let wakeup = Wakeup::begin(py)?;
    let waited = (|| {
        if let Some(pipe) = wakeup.fd() {
            poll.edge(pipe, 0).map_err(os_error)?;
        }
        loop {
            // For a signal from before the pipe was set.
            py.check_signals()?;
            let left = deadline.map(|at| at.saturating_sub(clock::now()));
            let indices = py.detach(|| poll.ready_beside(&fds, left)).map_err(os_error)?;
            let ready: Vec<i32> = indices.iter().filter_map(|index| fds.get(*index).copied()).collect();
            if !ready.is_empty() || left == Some(Duration::ZERO) {
                return Ok(ready);
            }
        }
    })();
    let ended = wakeup.end(py);
    waited.and_then(|ready| ended.map(|()| ready))
}
