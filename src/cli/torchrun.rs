//! `python -m rlaunch.run`: the door that `torchrun` was.

use super::door::{self, enter, print};
use super::record::Record;
use super::refusal::{Refusal, usage};
use super::torch_grammar::{self, Parsed};
use super::{exit_code, message, torch_node};
use crate::spec::options::Source;
use crate::spec::torchrun::{self, options};
use crate::sys::signals::Signals;
use std::ffi::{OsStr, OsString};
use std::os::fd::RawFd;
use tracing::{debug, warn};

/// Runs the launcher and returns its exit status. `args` come without the program's name; `python` is the interpreter
/// for the ranks; `record` a descriptor for the end's record, or negative; `from_pet`: whether PET_ variables stand
/// for what the command line does not say.
pub fn main(args: &[OsString], python: &OsStr, record: RawFd, from_pet: bool) -> i32 {
    enter(record, |signals, record| prepared(args, python, from_pet, signals, record))
}

fn prepared(
    args: &[OsString],
    python: &OsStr,
    from_pet: bool,
    signals: &mut Signals,
    record: &mut Record,
) -> Result<i32, Refusal> {
    let (flags, rest) = match torch_grammar::parse(args) {
        Parsed::Job(flags, rest) => (flags, rest),
        Parsed::Print(text) => {
            print(&text);
            return Ok(exit_code::OK);
        }
        Parsed::Refused(text) => return Err(usage(text)),
    };
    if rest.is_empty() {
        return Err(usage(torch_grammar::NO_SCRIPT));
    }
    let (base, vars) = door::environment(if from_pet { options::OPTIONS } else { &[] })?;
    let values = options::merge(&flags, &vars, from_pet);
    let mut spec = torchrun::check(&values, &vars, &rest).map_err(usage)?;
    message::with_torch_messages(&spec.log_level.clone(), || {
        for warning in spec.warnings.drain(..) {
            warn!("{warning}");
        }
        for (name, value) in values.iter().filter(|(_, v)| v.source != Source::Default) {
            debug!("{name}: {}", value.text);
        }
        torch_node::launch(&spec, &vars, base, python, args, signals, record)
    })
}
