//! `--hang_timeout`, `--on_hang`, `--exit_timeout` and `--straggler_timeout`: when a silent job is looked at, or a rank that has failed and
//! does not exit, and how long ranks may run after another one has ended.

use crate::spec::error::SpecError;
use crate::spec::options::OptValues;
use std::time::Duration;

/// What follows when a job hangs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnHang {
    /// It is reported.
    #[default]
    Report,
    /// It is reported, and the ranks that the others wait for get SIGABRT, or all ranks if none stands out. The job fails, or is
    /// restarted as after any failure.
    Abort,
}

/// The options about hangs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HangSpec {
    /// How long no rank has to write anything before their stacks are looked at; `None`: never.
    pub timeout: Option<Duration>,
    /// What follows.
    pub on_hang: OnHang,
    /// How long a rank may take to exit after the exception that ended its program; `None`: any time.
    pub exit_timeout: Option<Duration>,
    /// How long ranks may run after the first one of this node has exited with 0; `None`: any time.
    pub straggler_timeout: Option<Duration>,
}

/// Reads the options, by the names that the front end has for them.
pub fn check(values: &OptValues, [timeout, on_hang, exit, straggler]: [&str; 4]) -> Result<HangSpec, SpecError> {
    let time = |name| -> Result<Option<Duration>, SpecError> {
        let seconds = values.seconds(name)?.unwrap_or_default();
        Ok((seconds > 0.0).then(|| Duration::from_secs_f64(seconds)))
    };
    let on_hang = match values.text(on_hang) {
        None | Some("" | "report") => OnHang::Report,
        Some("abort") => OnHang::Abort,
        Some(_) => return Err(values.error(on_hang, "is not a choice", "give report or abort")),
    };
    Ok(HangSpec { timeout: time(timeout)?, on_hang, exit_timeout: time(exit)?, straggler_timeout: time(straggler)? })
}
