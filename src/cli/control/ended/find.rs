//! Finds a job that has ended: in the history of this user's jobs, or by its folder.

use super::job_folder::{JobFolder, JobFolderError};
use crate::cli::common::message::print_notice;
use crate::cli::control::jobs::name::{JobNames, Wanted, script};
use crate::model::plain_text::escape;
use crate::probe::net;
use crate::report::wording::lasted;
use crate::run::record::history::{self, EndedJob};
use crate::sys::clock;
use std::ffi::OsStr;
use std::path::Path;
use std::time::Duration;

/// A job that has ended.
#[derive(Debug)]
pub struct Ended {
    /// `None`: the history does not have it; then `run` is its folder.
    pub job: Option<EndedJob>,
    /// Its folder, or why there is none.
    pub run: Result<JobFolder, JobFolderError>,
}

/// The job of this name: a folder, or the latest of that name in the history.
pub fn named(name: &OsStr) -> Option<Ended> {
    let mut history = history::list();
    let shown = || escape(&name.to_string_lossy());
    if let Ok(run) = JobFolder::find(Path::new(name)) {
        if run.others > 0 {
            let (jobs, latest) = (run.others + 1, run.logs.file_name().unwrap_or_default().to_string_lossy());
            print_notice(&format!("{} has {jobs} jobs; this is the latest, {}", shown(), escape(&latest)));
        }
        let job = history.into_iter().find(|job| job.log_dir == run.logs && run.may_be_of(job));
        return Some(Ended { job, run: Ok(run) });
    }
    let (wanted, host) = (Wanted::new(name), net::host_name());
    let how = |job: &EndedJob| JobNames::of_ended(job, &host).matches(&wanted);
    let best = history.iter().filter_map(how).min()?;
    history.retain(|job| how(job) == Some(best));
    if history.len() > 1 {
        print_notice(&format!("{} jobs that have ended are {}; this is the latest", history.len(), shown()));
    }
    history.into_iter().next().map(Ended::new)
}

/// The last job that was started in this folder.
pub fn last_of(folder: &Path) -> Option<Ended> {
    history::list().into_iter().find(|job| job.working_dir == folder).map(Ended::new)
}

impl Ended {
    fn new(job: EndedJob) -> Self {
        let run = match JobFolder::find(&job.log_dir) {
            _ if !job.logs_kept => Err(JobFolderError::NotKept { job: describe(&job) }),
            Ok(run) if run.others == 0 && run.may_be_of(&job) => Ok(run),
            _ => Err(JobFolderError::Gone { job: describe(&job), folder: job.log_dir.clone() }),
        };
        Self { job: Some(job), run }
    }

    /// The job and how it ended, in a line.
    pub fn describe(&self) -> String {
        match (&self.job, &self.run) {
            (Some(job), _) => describe(job),
            (None, Ok(run)) => format!("the job of {}", escape(&run.logs.display().to_string())),
            (None, Err(error)) => error.to_string(),
        }
    }
}

fn describe(job: &EndedJob) -> String {
    let ago = Duration::try_from_secs_f64(clock::wall().as_secs_f64() - job.ended).unwrap_or_default();
    let script = script(&job.command).map_or(String::new(), |script| format!(" ({})", escape(script)));
    let (id, outcome) = (escape(&job.job_id), escape(&job.outcome_in_words()));
    format!("job {id}{script}: {outcome}, exit status {}, {} ago", job.exit_status, lasted(ago))
}
