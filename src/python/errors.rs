//! Converts Rust errors to the Python exceptions that the public API names.

use crate::probe::limits::refusal;
use crate::spec::spawn::options::SpawnError;
use crate::sys::process::current::UsedInFork;
use crate::sys::process::spawn::SpawnStepError;
use pyo3::exceptions::{PyAssertionError, PyIndexError, PyOSError, PyRuntimeError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyInt;
use std::io;

/// The OSError for a system error; Python picks the subclass by errno.
pub fn os_error(error: impl Into<io::Error>) -> PyErr {
    let error = error.into();
    match error.raw_os_error() {
        Some(errno) => {
            let text = format!("{}{}", nix::errno::Errno::from_raw(errno).desc(), refusal::of_denial(&error));
            PyOSError::new_err((errno, text))
        }
        None => PyOSError::new_err(error.to_string()),
    }
}

/// The OSError for a process that could not be started.
pub fn step_error(error: &SpawnStepError) -> PyErr {
    let reason = refusal::reason(&io::Error::from_raw_os_error(error.errno));
    PyOSError::new_err((error.errno, format!("{error}{reason}")))
}

/// multiprocessing, too, raises an AssertionError for a process object in a fork of its creator.
impl From<UsedInFork> for PyErr {
    fn from(error: UsedInFork) -> Self {
        PyAssertionError::new_err(error.to_string())
    }
}

/// The Python exception for an error of `spawn`.
pub fn to_python(error: SpawnError) -> PyErr {
    match error {
        SpawnError::Value(text) => PyValueError::new_err(text),
        SpawnError::Runtime(text) => PyRuntimeError::new_err(text),
        SpawnError::Index(text) => PyIndexError::new_err(text),
        SpawnError::NotInt(text) => Python::attach(|py| match py.get_type::<PyInt>().call1((&text,)) {
            Err(error) => error,
            // Python accepts digits of other scripts; rlaunch does not.
            Ok(_) => PyValueError::new_err(format!("{text} is not written in the digits 0 to 9")),
        }),
        SpawnError::NoneForInt(_) => Python::attach(|py| match py.get_type::<PyInt>().call1((py.None(),)) {
            Err(python) => PyTypeError::new_err(format!("{}: {error}", python.value(py))),
            Ok(_) => PyTypeError::new_err(error.to_string()),
        }),
        SpawnError::Assertion(text) => PyAssertionError::new_err(text),
    }
}
