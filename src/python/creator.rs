//! The process that created an object, for Python code that has to do nothing in a fork of it.

use crate::sys::process::current;
use pyo3::prelude::*;

/// The process that created this object.
#[pyclass(frozen, name = "Creator", module = "rlaunch._lib")]
pub struct PyCreator(current::Creator);

#[pymethods]
impl PyCreator {
    #[new]
    fn new() -> Self {
        Self(current::Creator::this_process())
    }

    /// Whether it is this process, and not one that this process was forked from.
    fn is_this_process(&self) -> bool {
        self.0.is_this_process()
    }

    /// Fails in a process that was forked from the creator (AssertionError, as multiprocessing's).
    fn check(&self) -> PyResult<()> {
        Ok(self.0.check()?)
    }
}
