//! This node's part of a job of `python -m rlaunch.run`, from the checked request to the exit status.

use super::door::Environment;
use super::exit_code;
use super::record::Record;
use super::refusal::Refusal;
use crate::spec::options::Vars;
use crate::spec::torchrun::TorchSpec;
use crate::sys::signals::Signals;
use std::ffi::{OsStr, OsString};

/// Runs it.
pub fn launch(
    _spec: &TorchSpec,
    _vars: &Vars,
    _base: Environment,
    _python: &OsStr,
    _args: &[OsString],
    _signals: &mut Signals,
    _record: &mut Record,
) -> Result<i32, Refusal> {
    Err(Refusal("python -m rlaunch.run starts nothing yet".into(), exit_code::INTERNAL))
}
