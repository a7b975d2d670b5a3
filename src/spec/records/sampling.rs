//! `--sample` and `--metrics_file`: what the ranks use, over time.

use crate::spec::error::SpecError;
use crate::spec::options::OptValues;
use std::path::PathBuf;
use std::time::Duration;

/// The shortest interval: a sample reads /proc once.
const LEAST: f64 = 0.1;

/// What is recorded of the ranks while they run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SamplingSpec {
    /// How often the journal gets a sample; `None`: never.
    pub interval: Option<Duration>,
    /// A file for the textfile collector of Prometheus's node_exporter.
    pub metrics_file: Option<PathBuf>,
}

/// Reads both options, by the names that the front end has for them.
pub fn check(values: &OptValues, [sample, metrics_file]: [&str; 2]) -> Result<SamplingSpec, SpecError> {
    let seconds = values.seconds(sample)?.unwrap_or_default();
    if seconds > 0.0 && seconds < LEAST {
        return Err(values.error(sample, "is too short an interval", "give 0.1 or more, or 0 for no samples"));
    }
    let interval = (seconds > 0.0).then(|| Duration::from_secs_f64(seconds));
    let path = values.text(metrics_file).filter(|path| !path.is_empty());
    if path.is_some_and(|path| path.ends_with('/')) {
        return Err(values.error(
            metrics_file,
            "is a folder",
            "give the path of a file, such as /var/lib/node_exporter/job.prom",
        ));
    }
    Ok(SamplingSpec { interval, metrics_file: path.map(PathBuf::from) })
}
