//! `python -m rlaunch.run`: the door that `torchrun` was.

use super::door::{self, Own, enter, print};
use super::record::Record;
use super::refusal::{Refusal, usage};
use super::torch_grammar::{self, Parsed};
use super::{exit_code, message, torch_node, torch_report};
use crate::spec::options::{Source, shown};
use crate::spec::torchrun::{self, options};
use crate::sys::signals::Signals;
use std::ffi::{OsStr, OsString};
use std::os::fd::RawFd;
use std::path::PathBuf;
use tracing::{debug, info, warn};

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
    let (base, all) = door::environment(if from_pet { options::OPTIONS } else { &[] })?;
    let Own { mut base, vars, outer } = door::own(base, &all);
    base.retain(|(name, _)| name != "RLAUNCH_TITLE");
    // Inside a worker of another launcher it is that worker's, which this launcher answers for.
    let error_file = all.get("TORCHELASTIC_ERROR_FILE").filter(|path| !path.is_empty()).map(PathBuf::from);
    let values = options::merge(&flags, &vars, from_pet);
    let refused = |refusal: Refusal| {
        torch_report::of_itself(error_file.as_deref(), &format!("RuntimeError: {}", refusal.0));
        refusal
    };
    let mut spec = torchrun::check(&values, &vars, &rest).map_err(usage).map_err(&refused)?;
    let is_compat = spec.exit_code_compat;
    let compat = |status| if is_compat && !matches!(status, exit_code::OK | exit_code::USAGE) { 1 } else { status };
    message::with_torch_messages(&spec.log_level.clone(), || {
        for warning in spec.warnings.drain(..) {
            warn!("{warning}");
        }
        for (name, value) in values.iter().filter(|(_, v)| v.source != Source::Default) {
            debug!("{name}: {}", shown(name, &value.text));
        }
        if let Some(outer) = &outer {
            info!("{outer}");
        }
        torch_node::launch(&spec, &vars, base, python, error_file.as_deref(), signals, record).map_err(&refused)
    })
    .map(compat)
    .map_err(|Refusal(text, status)| Refusal(text, compat(status)))
}
