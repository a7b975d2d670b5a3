//! From Rust errors to the Python exceptions that the contract names. The one place.

use crate::spec::spawn::SpawnError;
use pyo3::PyErr;
use pyo3::exceptions::{PyAssertionError, PyRuntimeError, PyValueError};

/// The Python exception for an error of `spawn`.
pub fn to_python(error: SpawnError) -> PyErr {
    match error {
        SpawnError::Value(text) => PyValueError::new_err(text),
        SpawnError::Runtime(text) => PyRuntimeError::new_err(text),
        SpawnError::Assertion(text) => PyAssertionError::new_err(text),
    }
}
