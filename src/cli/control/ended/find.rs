//! Finds a job that has ended: in the history of this user's jobs, or by its folder.

use super::run_folder::{RunFolder, RunFolderError};
use crate::cli::common::message::print_notice;
use crate::cli::control::jobs::name::{Match, Names, Wanted, script};
use crate::model::plain_text::escape;
use crate::report::wording::lasted;
use crate::run::record::history::{self, EndedJob};
use crate::sys::clock;
use std::path::Path;
use std::time::Duration;

/// A job that has ended: as the history has it, and its folder. One of them is there.
#[derive(Debug)]
pub(in crate::cli::control) struct Ended {
    pub job: Option<EndedJob>,
    pub run: Option<RunFolder>,
}

/// The job of this name.
pub(in crate::cli::control) fn named(name: &str) -> Option<Ended> {
    let (history, wanted) = (history::list(), Wanted::new(name));
    if let Ok(run) = RunFolder::find(Path::new(name)) {
        if run.others > 0 {
            let (jobs, latest) = (run.others + 1, run.logs.file_name().unwrap_or_default().to_string_lossy());
            print_notice(&format!("{name} has {jobs} jobs; this is the latest, {}", escape(&latest)));
        }
        let job = history.into_iter().find(|job| job.log_dir == run.logs);
        return Some(Ended { job, run: Some(run) });
    }
    let mut found: Vec<(Match, usize)> = Vec::new();
    for (index, job) in history.iter().enumerate() {
        found.extend(Names::from(job).matches(&wanted).map(|how| (how, index)));
    }
    let (best, index) = *found.iter().min()?;
    let same = found.iter().filter(|(how, _)| *how == best).count();
    if same > 1 {
        print_notice(&format!("{same} jobs that have ended are {name}; this is the latest"));
    }
    Some(of_history(&history, index))
}

/// The last job that was started in this folder.
pub(in crate::cli::control) fn last_of(folder: &Path) -> Option<Ended> {
    let history = history::list();
    let index = history.iter().position(|job| job.working_dir == folder)?;
    Some(of_history(&history, index))
}

/// A job of the history, with its folder unless a later job has written there.
fn of_history(history: &[EndedJob], index: usize) -> Ended {
    let job = &history[index];
    let is_overwritten = history[..index].iter().any(|later| later.log_dir == job.log_dir);
    let run = if job.logs_kept && !is_overwritten { RunFolder::find(&job.log_dir).ok() } else { None };
    Ended { job: Some(job.clone()), run: run.filter(|run| run.others == 0) }
}

impl Ended {
    /// The job and how it ended, in a line.
    pub fn describe(&self) -> String {
        let Some(job) = &self.job else {
            return self.run.as_ref().map_or(String::new(), |run| format!("the job of {}", run.logs.display()));
        };
        let ago = Duration::try_from_secs_f64(clock::wall().as_secs_f64() - job.ended).unwrap_or_default();
        let script = script(&job.command).map_or(String::new(), |script| format!(" ({})", escape(script)));
        let (id, outcome) = (escape(&job.job_id), escape(&job.outcome.replace('_', " ")));
        format!("job {id}{script}: {outcome}, exit status {}, {} ago", job.exit_status, lasted(ago))
    }

    /// Its folder, or why there is none.
    pub fn folder(&self) -> Result<&RunFolder, RunFolderError> {
        let gone = |job: &EndedJob| match job.logs_kept {
            false => RunFolderError::NotKept { job: self.describe() },
            true => RunFolderError::Gone { job: self.describe(), folder: job.log_dir.clone() },
        };
        self.run.as_ref().ok_or_else(|| gone(self.job.as_ref().unwrap_or(&EndedJob::default())))
    }

    /// The same.
    pub fn into_folder(self) -> Result<RunFolder, RunFolderError> {
        self.folder()?;
        let folder = self.run.map(Ok);
        folder.unwrap_or_else(|| Err(RunFolderError::NotKept { job: String::new() }))
    }
}
