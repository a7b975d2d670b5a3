//! `--hang_timeout` and `--on_hang`: when a silent job is looked at, and what follows if it hangs.

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
}

/// Reads the options, by the names that the front end has for them.
pub fn check(values: &OptValues, timeout: &str, on_hang: &str) -> Result<HangSpec, SpecError> {
    let seconds = values.seconds(timeout)?.unwrap_or_default();
    let on_hang = match values.text(on_hang) {
        None | Some("" | "report") => OnHang::Report,
        Some("abort") => OnHang::Abort,
        Some(_) => return Err(values.error(on_hang, "is not a choice", "give report or abort")),
    };
    Ok(HangSpec { timeout: (seconds > 0.0).then(|| Duration::from_secs_f64(seconds)), on_hang })
}
