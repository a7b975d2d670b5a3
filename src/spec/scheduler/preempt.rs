//! `--preempt_file`, `--preempt_time` and `--requeue`: notices that the ranks are to stop soon, and what follows.

use crate::spec::error::SpecError;
use crate::spec::options::OptValues;
use std::path::PathBuf;
use std::time::Duration;

/// How a job is preempted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PreemptSpec {
    /// A file whose appearance is a notice.
    pub file: Option<PathBuf>,
    /// The time from a notice until the ranks get SIGTERM, where nothing else sets it.
    pub time: Duration,
    /// How many times Slurm is asked to queue the job again after it was preempted.
    pub requeue: u32,
}

/// Reads the options, by the names that the front end has for them.
pub fn check(values: &OptValues, [file, time, requeue]: [&str; 3]) -> Result<PreemptSpec, SpecError> {
    let path = values.text(file).filter(|path| !path.is_empty());
    if path.is_some_and(|path| path.ends_with('/')) {
        return Err(values.error(file, "is a folder", "give the path of a file, such as /run/preempt/notice"));
    }
    let seconds = values.seconds(time)?.unwrap_or_default();
    let count = values.int(requeue)?.unwrap_or_default();
    let requeue = u32::try_from(count)
        .map_err(|_| values.error(requeue, "is no number of times", "give 0 or more; 0 asks for nothing"))?;
    Ok(PreemptSpec { file: path.map(PathBuf::from), time: Duration::from_secs_f64(seconds), requeue })
}
