//! torchrun's namespace as `rlaunch.run` parses it, for comparison with torchrun's own parser.

use crate::cli::torchrun::parse;
use crate::cli::torchrun::parse::TorchrunArgs;
use crate::python::texts;
use crate::spec::options::EnvVars;
use crate::spec::torchrun::namespace::{self, PythonValue};
use crate::spec::torchrun::options::merge;
use pyo3::IntoPyObjectExt;
use pyo3::exceptions::{PySystemExit, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::collections::BTreeMap;
use std::ffi::OsString;

/// The namespace that torchrun's parser would return for these arguments. ValueError if they cannot be parsed,
/// SystemExit if they only ask for a text.
#[pyfunction]
pub fn parse_run<'py>(
    py: Python<'py>,
    args: Vec<OsString>,
    environ: BTreeMap<OsString, OsString>,
) -> PyResult<Bound<'py, PyDict>> {
    let (flags, rest) = match parse::parse(&args).map_err(value_error)? {
        TorchrunArgs::Job { flags, rest, .. } => (flags, rest),
        TorchrunArgs::Print(_) => return Err(PySystemExit::new_err(0)),
    };
    let (script, args) = rest.split_first().ok_or_else(|| value_error(parse::NO_SCRIPT))?;
    let vars: EnvVars = texts(environ);
    let values = merge(&flags, &vars, true);
    let attributes = PyDict::new(py);
    for (name, value) in namespace::attributes(&values).map_err(value_error)? {
        let value = match value {
            PythonValue::None => py.None().into_bound(py),
            PythonValue::Text(text) => text.into_bound_py_any(py)?,
            PythonValue::Int(number) => number.into_bound_py_any(py)?,
            PythonValue::Float(number) => number.into_bound_py_any(py)?,
            PythonValue::Flag(yes) => yes.into_bound_py_any(py)?,
            PythonValue::List(texts) => texts.into_bound_py_any(py)?,
        };
        attributes.set_item(name, value)?;
    }
    attributes.set_item("training_script", script)?;
    attributes.set_item("training_script_args", args)?;
    Ok(attributes)
}

fn value_error(error: impl std::fmt::Display) -> PyErr {
    PyValueError::new_err(error.to_string())
}
