//! `rlaunch.run`: torchrun's command line for Python.

use super::texts;
use crate::cli::torch_grammar::{self, Parsed};
use crate::cli::torchrun;
use crate::spec::options::{Kind, Opt, Vars};
use crate::spec::torchrun::namespace::{self, Typed, attribute, is_list};
use crate::spec::torchrun::options::{OPTIONS, is_torchs, merge};
use crate::spec::torchrun::read;
use pyo3::IntoPyObjectExt;
use pyo3::exceptions::{PySystemExit, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::collections::BTreeMap;
use std::ffi::OsString;

/// Runs `python -m rlaunch.run` with these arguments (program name left out) and returns its exit status. `python`
/// and `record` are as in `main`; `from_pet`: whether PET_ variables stand for what the arguments do not say.
#[pyfunction]
pub fn run_main(py: Python<'_>, args: Vec<OsString>, python: OsString, record: i32, from_pet: bool) -> i32 {
    py.detach(|| torchrun::main(&args, &python, record, from_pet))
}

/// The options, for an argparse parser: `name`, `short`, `attribute`, `kind` (text, int, seconds, flag, list),
/// `choices`, `default` (a text, True or False, or None; its variable counts), `help`, `ours` (torchrun has it not).
#[pyfunction]
pub fn run_options(py: Python<'_>, environ: BTreeMap<OsString, OsString>) -> PyResult<Vec<Bound<'_, PyDict>>> {
    let values = merge(&BTreeMap::new(), &texts(environ), true);
    let row = |opt: &'static Opt| {
        let row = PyDict::new(py);
        let kind = match opt.kind {
            Kind::Flag | Kind::Bool => "flag",
            Kind::Int => "int",
            Kind::Seconds => "seconds",
            Kind::Text if is_list(opt) => "list",
            Kind::Text => "text",
        };
        row.set_item("name", opt.name)?;
        row.set_item("short", opt.short.map(String::from))?;
        row.set_item("attribute", attribute(opt))?;
        row.set_item("kind", kind)?;
        row.set_item("choices", opt.choices)?;
        row.set_item("help", opt.help)?;
        row.set_item("ours", !is_torchs(opt.name))?;
        match kind {
            "flag" => row.set_item("default", read::flag(&values, opt.name).map_err(refused)?)?,
            _ => row.set_item("default", values.text(opt.name))?,
        }
        Ok(row)
    };
    OPTIONS.iter().map(row).collect()
}

/// The script that completes the command line in this shell.
#[pyfunction]
pub fn run_completion(shell: &str) -> PyResult<String> {
    match torch_grammar::completion(shell) {
        Parsed::Print(text) => Ok(text),
        Parsed::Refused(why) => Err(PyValueError::new_err(why)),
        Parsed::Job(..) => Ok(String::new()),
    }
}

/// The attributes that these arguments give, as of the namespace of torchrun's parser; a ValueError if they cannot
/// be read, SystemExit if they ask for a text alone.
#[pyfunction]
pub fn parse_run<'py>(
    py: Python<'py>,
    args: Vec<OsString>,
    environ: BTreeMap<OsString, OsString>,
) -> PyResult<Bound<'py, PyDict>> {
    let (flags, rest) = match torch_grammar::parse(&args) {
        Parsed::Job(flags, rest) => (flags, rest),
        Parsed::Print(_) => return Err(PySystemExit::new_err(0)),
        Parsed::Refused(why) => return Err(PyValueError::new_err(why)),
    };
    let (script, args) = rest.split_first().ok_or_else(|| PyValueError::new_err(torch_grammar::NO_SCRIPT))?;
    let vars: Vars = texts(environ);
    let values = merge(&flags, &vars, true);
    let attributes = PyDict::new(py);
    for (name, value) in namespace::of(&values).map_err(refused)? {
        let value = match value {
            Typed::None => py.None().into_bound(py),
            Typed::Text(text) => text.into_bound_py_any(py)?,
            Typed::Int(number) => number.into_bound_py_any(py)?,
            Typed::Float(number) => number.into_bound_py_any(py)?,
            Typed::Flag(yes) => yes.into_bound_py_any(py)?,
            Typed::List(texts) => texts.into_bound_py_any(py)?,
        };
        attributes.set_item(name, value)?;
    }
    attributes.set_item("training_script", script)?;
    attributes.set_item("training_script_args", args)?;
    Ok(attributes)
}

fn refused(error: impl std::fmt::Display) -> PyErr {
    PyValueError::new_err(error.to_string())
}
