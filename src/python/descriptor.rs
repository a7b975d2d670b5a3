//! File descriptors as Python objects that own them, so that no exception (a signal handler that raises) leaks one.

use super::errors::os_error;
use crate::sys::io::fd;
use nix::fcntl::OFlag;
use nix::sys::eventfd::{EfdFlags, EventFd};
use pyo3::prelude::*;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// An open descriptor, close-on-exec; closed with the object.
#[pyclass(frozen, module = "rlaunch._lib")]
pub struct Descriptor(Mutex<Option<OwnedFd>>);

impl Descriptor {
    /// An object that owns this descriptor.
    pub fn new(fd: OwnedFd) -> Self {
        Self(Mutex::new(Some(fd)))
    }

    fn lock(&self) -> MutexGuard<'_, Option<OwnedFd>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[pymethods]
impl Descriptor {
    /// Shared memory (memfd_create(2)).
    #[staticmethod]
    fn memory(name: &str) -> PyResult<Self> {
        Ok(Self::new(fd::memory(name).map_err(os_error)?))
    }

    /// A counter to poll (eventfd(2)), non-blocking, at 0.
    #[staticmethod]
    fn eventfd() -> PyResult<Self> {
        Ok(Self::new(fd::eventfd(EfdFlags::EFD_NONBLOCK).map_err(os_error)?.into()))
    }

    /// A pipe: its read end and its write end.
    #[staticmethod]
    fn pipe() -> PyResult<(Self, Self)> {
        let (read, write) = fd::pipe(OFlag::empty()).map_err(os_error)?;
        Ok((Self::new(read), Self::new(write)))
    }

    /// A copy of a descriptor with another owner.
    #[staticmethod]
    fn copy_of(number: i32) -> PyResult<Self> {
        Ok(Self::new(fd::duplicate_number(number).map_err(os_error)?))
    }

    /// Takes over a descriptor that was inherited by its number. OSError: it has an owner in this process.
    #[staticmethod]
    fn take(number: i32) -> PyResult<Self> {
        Ok(Self::new(fd::take_inherited(number).map_err(os_error)?))
    }

    /// Its number, or -1 once it has been closed.
    fn fileno(&self) -> i32 {
        self.lock().as_ref().map_or(-1, AsRawFd::as_raw_fd)
    }

    /// Closes it. A second call does nothing.
    fn close(&self) {
        self.lock().take();
    }
}

/// Fails if the process cannot open `count` more descriptors.
#[pyfunction]
pub fn need_descriptors(count: usize) -> PyResult<()> {
    let taken: Result<Vec<EventFd>, _> = (0..count).map(|_| fd::eventfd(EfdFlags::empty())).collect();
    match taken {
        Err(error) if error.raw_os_error() == Some(libc::EMFILE) => Err(os_error(error)),
        _ => Ok(()),
    }
}
