//! Finds the jobs of this user on this machine, by their control sockets.

use super::client::Client;
use super::error::ControlError;
use crate::cli::common::message::print_notice;
use crate::model::Role;
use crate::report::job_status::{JobStatus, RankStatus};
use crate::report::wording::named;
use crate::run::control::message::{ControlAnswer, ControlRequest};
use crate::run::control::runtime_folder::{self, FoundSocket};
use std::time::Duration;

/// How long a launcher may take to say which job it is. One that is stopped does not answer.
const PATIENCE: Duration = Duration::from_secs(2);

/// The jobs of this user on this machine.
pub(super) struct Found {
    /// Those whose launchers answer.
    pub jobs: Vec<(Client, JobStatus)>,
    /// The process ids of launchers that do not.
    pub silent: Vec<i32>,
}

/// Finds all jobs. All launchers are asked at once; those that do not answer are named on stderr.
pub(super) fn all() -> Result<Found, ControlError> {
    let sockets = runtime_folder::sockets()?;
    let answers = std::thread::scope(|scope| {
        let ask = |socket: &FoundSocket| {
            let mut client = Client::new(socket);
            let answer = client.ask_within(ControlRequest::Status, PATIENCE);
            (client, answer)
        };
        let asked: Vec<_> = sockets.iter().map(|socket| scope.spawn(move || ask(socket))).collect();
        asked.into_iter().filter_map(|thread| thread.join().ok()).collect::<Vec<_>>()
    });
    let mut found = Found { jobs: Vec::new(), silent: Vec::new() };
    for (socket, (client, answer)) in sockets.iter().zip(answers) {
        match answer {
            Ok(ControlAnswer::Status(status)) => found.jobs.push((client, status)),
            Err(ControlError::Gone) => {}
            Ok(_) | Err(_) => {
                print_notice(&format!(
                    "the launcher behind {} does not answer; is it stopped, or of another version?",
                    socket.file.display()
                ));
                found.silent.extend(socket.launcher());
            }
        }
    }
    Ok(found)
}

/// The job that the user means: by its launcher's process id, its id or its log folder; without a name, the only one.
pub(super) fn find(job: Option<&str>) -> Result<(Client, JobStatus), ControlError> {
    let mut jobs = all()?.jobs;
    if jobs.is_empty() {
        return Err(ControlError::NoJobs);
    }
    if let Some(name) = job {
        jobs.retain(|(_, status)| is_named(status, name));
    }
    match (jobs.pop(), job) {
        (Some(found), _) if jobs.is_empty() => Ok(found),
        (Some((_, last)), name) => {
            let all = jobs.iter().map(|(_, status)| status).chain([&last]);
            let of = name.map(|name| format!(" with the id {name}")).unwrap_or_default();
            Err(ControlError::Several { of, jobs: all.map(describe).collect() })
        }
        (None, name) => Err(ControlError::NotFound { job: name.unwrap_or_default().to_owned() }),
    }
}

/// The same, for what a job's ranks notice. Without a name, the only job is meant if it was started in this folder.
pub(super) fn find_to_change(job: Option<&str>) -> Result<(Client, JobStatus), ControlError> {
    let (client, status) = find(job)?;
    let began_in = std::fs::read_link(format!("/proc/{}/cwd", status.launcher)).ok();
    if job.is_none() && (began_in.is_none() || began_in != std::env::current_dir().ok()) {
        let folder = began_in.map_or("a folder that cannot be read".into(), |folder| folder.display().to_string());
        return Err(ControlError::OtherFolder { job: describe(&status), folder });
    }
    Ok((client, status))
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

/// The ranks with these numbers in the job, or all processes. Servers have numbers of their own, and no option.
pub(super) fn choose_ranks<'a>(status: &'a JobStatus, numbers: &[usize]) -> Result<Vec<&'a RankStatus>, ControlError> {
    let is_it = |rank: &RankStatus, number: usize| rank.role == Role::Trainer && rank.rank == number;
    let has = |number: usize| status.ranks.iter().any(|rank| is_it(rank, number));
    if let Some(rank) = numbers.iter().copied().find(|number| !has(*number)) {
        let labels: Vec<_> = status.ranks.iter().map(RankStatus::label).collect();
        return Err(ControlError::NotARank { rank, has: named(&labels) });
    }
    Ok(status
        .ranks
        .iter()
        .filter(|rank| numbers.is_empty() || numbers.iter().any(|number| is_it(rank, *number)))
        .collect())
}
