//! `--zygote`, once it is known what the ranks run.

use super::refusal::{Refusal, tell, usage};
use crate::plan::Plan;
use crate::plan::zygote::source;
use crate::run::zygote::Zygote;
use crate::spec::SpecError;
use crate::spec::zygote::Zygote as Asked;
use std::ffi::OsStr;
use std::rc::Rc;

/// From which process the ranks of this plan are to be forked, if from any. `python`: the launcher's interpreter.
pub fn zygote(asked: Option<&Asked>, plan: &Plan, python: &OsStr) -> Result<Option<Rc<Zygote>>, Refusal> {
    let Some(asked) = asked else { return Ok(None) };
    match source(&plan.ranks, python) {
        Ok(source) => Ok(Some(Rc::new(Zygote::new(asked.clone(), source)))),
        Err(why) if asked.auto => {
            tell(&format!("no zygote: {why}; every rank imports for itself"));
            Ok(None)
        }
        Err(why) => {
            let hint = "leave it out, or add auto, with which every rank is started by itself then";
            Err(usage(SpecError::new("--zygote", asked.modules.join(","), why, hint)))
        }
    }
}
