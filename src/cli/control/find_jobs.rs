//! Finds the jobs of this user on this machine, by their control sockets.

use super::client::Client;
use super::error::ControlError;
use crate::report::job_status::{JobStatus, RankStatus};
use crate::report::wording::named;
use crate::run::control::runtime_folder;
use std::path::Path;

/// All jobs that answer.
pub(super) fn all() -> Result<Vec<(Client, JobStatus)>, ControlError> {
    let answering = |path: &Path| {
        let mut client = Client::new(path);
        let status = client.status().ok()?;
        Some((client, status))
    };
    Ok(runtime_folder::sockets()?.iter().filter_map(|path| answering(path)).collect())
}

/// The job that the user means: by its launcher's process id, its id or its log folder; without a name, the only one.
pub(super) fn find(job: Option<&str>) -> Result<Client, ControlError> {
    let mut jobs = all()?;
    if jobs.is_empty() {
        return Err(ControlError::NoJobs);
    }
    if let Some(name) = job {
        jobs.retain(|(_, status)| is_named(status, name));
    }
    match (jobs.pop(), job) {
        (Some((client, _)), _) if jobs.is_empty() => Ok(client),
        (Some((_, last)), _) => {
            let all = jobs.iter().map(|(_, status)| status).chain([&last]);
            Err(ControlError::Several { jobs: all.map(describe).collect() })
        }
        (None, name) => Err(ControlError::NotFound { job: name.unwrap_or_default().to_owned() }),
    }
}

fn is_named(status: &JobStatus, name: &str) -> bool {
    let is_folder = || {
        let (named, own) = (std::fs::canonicalize(name), std::fs::canonicalize(&status.log_dir));
        matches!((named, own), (Ok(named), Ok(own)) if named == own)
    };
    let is_pid = name.parse() == Ok(status.launcher) || name.parse() == Ok(status.supervisor);
    is_pid || status.job_id == name || is_folder()
}

fn describe(status: &JobStatus) -> String {
    format!("{} ({})", status.launcher, status.job_id)
}

/// The ranks with these numbers in the job, or all.
pub(super) fn choose_ranks<'a>(status: &'a JobStatus, numbers: &[usize]) -> Result<Vec<&'a RankStatus>, ControlError> {
    let has = |number: usize| status.ranks.iter().any(|rank| rank.rank == number);
    if let Some(rank) = numbers.iter().copied().find(|number| !has(*number)) {
        let labels: Vec<_> = status.ranks.iter().map(RankStatus::label).collect();
        return Err(ControlError::NotARank { rank, has: named(&labels) });
    }
    Ok(status.ranks.iter().filter(|rank| numbers.is_empty() || numbers.contains(&rank.rank)).collect())
}
