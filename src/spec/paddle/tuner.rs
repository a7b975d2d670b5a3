//! Automatic parallelism: the part of the file of `--auto_parallel_config` that a launcher reads.
//! Contract: `paddle.distributed.launch`.

use crate::spec::error::SpecError;
use serde::Deserialize;
use std::fmt;

/// Whether the tuner runs, and whether the job runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TunerRun {
    /// Only the tuner.
    TunerOnly,
    /// Only the job, with an earlier result of the tuner.
    RunOnly,
    /// The tuner, then the job.
    #[default]
    TunerAndRun,
}

impl fmt::Display for TunerRun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            TunerRun::TunerOnly => "tuner_only",
            TunerRun::RunOnly => "run_only",
            TunerRun::TunerAndRun => "tuner_and_run",
        })
    }
}

/// A request for automatic parallelism.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tuning {
    /// The file, as given.
    pub path: String,
    /// What runs.
    pub run: TunerRun,
}

impl Tuning {
    /// Whether the tuner runs first.
    pub fn has_tuner(&self) -> bool {
        self.run != TunerRun::RunOnly
    }

    /// Whether the job runs.
    pub fn has_job(&self) -> bool {
        self.run != TunerRun::TunerOnly
    }
}

/// The key that a launcher reads.
#[derive(Deserialize)]
struct TunerConfig {
    #[serde(default)]
    tuner_run_mode: TunerRun,
}

/// Reads the text of the file.
pub fn check(path: &str, text: &str) -> Result<Tuning, SpecError> {
    match serde_json::from_str::<TunerConfig>(text) {
        Ok(config) => Ok(Tuning { path: path.to_owned(), run: config.tuner_run_mode }),
        Err(error) => Err(SpecError::new(
            "--auto_parallel_config",
            path,
            format!("is not valid JSON for this option: {error}"),
            "tuner_run_mode must be tuner_only, run_only or tuner_and_run",
        )),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // A test fails by panicking.
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn reads_the_run_mode_and_ignores_other_keys() {
        let run = |text: &str| check("a.json", text).unwrap().run;
        assert_eq!(run("{}"), TunerRun::TunerAndRun);
        assert_eq!(run(r#"{"tuner_run_mode": "run_only", "batch_size": [1, 2]}"#), TunerRun::RunOnly);
        let error = check("a.json", r#"{"tuner_run_mode": "often"}"#).unwrap_err().to_string();
        assert!(error.contains("--auto_parallel_config a.json") && error.contains("often"), "{error}");
    }

    proptest! {
        #[test]
        fn no_text_panics_and_every_error_names_the_file(text in "\\PC*|[\\[{\":,}\\]a-z_0-9]*") {
            if let Err(error) = check("a.json", &text) {
                prop_assert!(error.to_string().contains("a.json"));
            }
        }
    }
}
