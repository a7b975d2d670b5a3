//! File descriptors as Python objects that own them, so that no exception (a signal handler that raises) leaks one.

use super::errors::os_error;
use crate::sys::io::fd;
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::memfd::{MFdFlags, memfd_create};
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
        Ok(Self::new(memfd_create(name, MFdFlags::MFD_CLOEXEC).map_err(os_error)?))
    }

    /// A counter to poll (eventfd(2)), non-blocking, at 0.
    #[staticmethod]
    fn eventfd() -> PyResult<Self> {
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        Ok(Self::new(EventFd::from_flags(flags).map_err(os_error)?.into()))
    }

    /// Takes over a descriptor that was inherited by its number.
    #[staticmethod]
    fn take(number: i32) -> PyResult<Self> {
        Ok(Self::new(fd::take(number).map_err(os_error)?))
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
    let taken: Result<Vec<OwnedFd>, _> = (0..count).map(|_| fd::duplicate(0)).collect();
    match taken {
        Err(error) if error.raw_os_error() == Some(libc::EMFILE) => Err(os_error(error)),
        _ => Ok(()),
    }
}
