//! `--preload`: decides whether the ranks of a plan can be forked from a preload server.

use crate::cli::common::error::CliError;
use crate::cli::common::message::print_notice;
use crate::plan::Plan;
use crate::plan::preload::common_command;
use crate::run::zygote::Zygote;
use crate::spec::SpecError;
use crate::spec::preload::PreloadSpec;
use std::ffi::OsStr;
use std::rc::Rc;

/// The zygote that the ranks of this plan are forked from, if any. `python`: the launcher's interpreter.
pub fn zygote(asked: Option<&PreloadSpec>, plan: &Plan, python: &OsStr) -> Result<Option<Rc<Zygote>>, CliError> {
    let Some(asked) = asked else { return Ok(None) };
    match common_command(&plan.ranks, python) {
        Ok(source) => Ok(Some(Rc::new(Zygote::new(asked.clone(), source)))),
        Err(why) if asked.auto => {
            print_notice(&format!("no preload server: {why}; every rank imports for itself"));
            Ok(None)
        }
        Err(why) => {
            let hint = "leave it out, or add auto: every rank imports for itself then";
            Err(CliError::Usage(SpecError::new("--preload", asked.modules.join(","), why.to_string(), hint)))
        }
    }
}
