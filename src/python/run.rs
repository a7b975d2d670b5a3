//! The native part of `rlaunch.run`, torchrun's command line.

use super::texts;
use crate::cli::common::interpreter::Interpreter;
use crate::cli::torchrun::frontend;
use crate::cli::torchrun::parse;
use crate::spec::options::{Opt, OptKind};
use crate::spec::torchrun::namespace::{attribute, is_list};
use crate::spec::torchrun::options::{OPTIONS, is_torchs, merge};
use crate::spec::torchrun::values;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;

/// Runs `python -m rlaunch.run` with these arguments (without the program name) and returns its exit status. `interpreter`,
/// `record`: as in `main`; `from_pet`: whether PET_ variables supply options that the arguments leave out.
#[pyfunction]
pub fn run_main(
    py: Python<'_>,
    args: Vec<OsString>,
    interpreter: (OsString, String, Vec<PathBuf>),
    record: i32,
    from_pet: bool,
) -> i32 {
    py.detach(|| frontend::main(&args, &Interpreter::from(interpreter), record, from_pet))
}

/// The options, for an argparse parser: `name`, `short`, `attribute`, `kind` (text, int,
/// seconds, flag, list), `choices`, `default` (text, bool or None, with the variable's value), `help`, `ours` (not
/// torchrun's).
#[pyfunction]
pub fn run_options(py: Python<'_>, environ: BTreeMap<OsString, OsString>) -> PyResult<Vec<Bound<'_, PyDict>>> {
    let values = merge(&BTreeMap::new(), &texts(environ), true);
    let row = |opt: &'static Opt| {
        let row = PyDict::new(py);
        let kind = match opt.kind {
            OptKind::Flag | OptKind::Bool => "flag",
            OptKind::Int => "int",
            OptKind::Seconds => "seconds",
            OptKind::Text if is_list(opt) => "list",
            OptKind::Text => "text",
        };
        row.set_item("name", opt.name)?;
        row.set_item("short", opt.short.map(String::from))?;
        row.set_item("attribute", attribute(opt))?;
        row.set_item("kind", kind)?;
        row.set_item("choices", opt.choices)?;
        row.set_item("help", opt.help)?;
        row.set_item("ours", !is_torchs(opt.name))?;
        match kind {
            "flag" => row.set_item("default", values::flag(&values, opt.name).map_err(value_error)?)?,
            _ => row.set_item("default", values.text(opt.name))?,
        }
        Ok(row)
    };
    OPTIONS.iter().map(row).collect()
}

/// The script that completes the command line in this shell.
#[pyfunction]
pub fn run_completion(shell: &str) -> PyResult<String> {
    parse::completion(shell).map_err(value_error)
}

fn value_error(error: impl std::fmt::Display) -> PyErr {
    PyValueError::new_err(error.to_string())
}
