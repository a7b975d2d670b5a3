//! Finds a job: one of this user's that runs on this machine, by its control socket, or one that has ended.

use super::name::{JobNames, Match, Wanted, script};
use super::table::in_home;
use crate::cli::control::client::Client;
use crate::cli::control::ended::find::{self as ended, Ended};
use crate::cli::control::error::ControlError;
use crate::model::Role;
use crate::net::thread;
use crate::report::job_status::{JobStatus, RankStatus};
use crate::report::wording::named;
use crate::run::control::message::{ControlAnswer, ControlRequest};
use crate::run::control::runtime_folder;
use crate::sys::clock;
use crossbeam_channel::unbounded;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The time for a launcher to say which job it is. One that is stopped does not answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);
/// The time for the others once the job that is meant has answered.
const OTHERS_TIMEOUT: Duration = Duration::from_millis(300);

type Running = (Client, JobStatus);

/// The jobs of this user on this machine.
pub struct Found {
    /// Those whose launchers answer.
    pub jobs: Vec<Running>,
    /// The process ids and the sockets of launchers that do not.
    pub silent: Vec<(i32, PathBuf)>,
}

/// The job that is meant.
pub enum Target {
    Running(Running),
    Ended(Ended),
}

/// Finds all jobs that run. All launchers are asked at once.
pub fn all() -> Result<Found, ControlError> {
    ask(|_| false)
}

/// Finds jobs that run. Does not wait for slow launchers once one has answered that is enough.
fn ask(is_enough: impl Fn(&JobStatus) -> bool) -> Result<Found, ControlError> {
    let sockets = runtime_folder::sockets()?;
    let (sender, answers) = unbounded();
    for (index, socket) in sockets.iter().enumerate() {
        let (mut client, sender) = (Client::new(socket), sender.clone());
        thread::spawn("rlaunch-ask", move || {
            let answer = client.ask_within(ControlRequest::Status, ANSWER_TIMEOUT);
            // It may be too late.
            let _ = sender.send((index, client, answer));
        })
        .map_err(ControlError::Thread)?;
    }
    drop(sender);
    let mut slots: Vec<Option<Running>> = sockets.iter().map(|_| None).collect();
    let mut is_silent = vec![true; sockets.len()];
    // Each has a deadline of its own, and a moment to begin on a busy machine.
    let mut until = clock::now() + ANSWER_TIMEOUT * 2;
    while let Ok((index, client, answer)) = answers.recv_timeout(until.saturating_sub(clock::now())) {
        is_silent[index] = match answer {
            Ok(ControlAnswer::Status(status)) => {
                if is_enough(&status) {
                    until = until.min(clock::now() + OTHERS_TIMEOUT);
                }
                slots[index] = Some((client, status));
                false
            }
            Err(ControlError::Gone) => false,
            Ok(_) | Err(_) => true,
        };
    }
    let silent = sockets.into_iter().zip(is_silent).filter(|(_, is_silent)| *is_silent);
    let silent = silent.filter_map(|(socket, _)| Some((socket.launcher()?, socket.file))).collect();
    Ok(Found { jobs: slots.into_iter().flatten().collect(), silent })
}

/// The job that the user means. Without a name: the one that runs of this folder, else the last one of this folder that has ended, else
/// the only one that runs.
pub fn find(name: Option<&OsStr>) -> Result<Target, ControlError> {
    let Some(name) = name else {
        let ByFolder { here, elsewhere, silent } = running_by_folder()?;
        if let Some(job) = only(here, None)? {
            return Ok(Target::Running(job));
        }
        let is_here = |launcher: i32| working_dir_of(launcher).is_some_and(|folder| is_this(&folder));
        if let Some(launcher) = silent.iter().copied().find(|launcher| is_here(*launcher)) {
            return Err(ControlError::Silent { launcher });
        }
        return match last_of_this_folder() {
            Some(ended) => Ok(Target::Ended(ended)),
            None => only(elsewhere, None)?.map(Target::Running).ok_or_else(|| no_running(&silent)),
        };
    };
    match find_running(name)? {
        Some(job) => Ok(Target::Running(job)),
        None => {
            let not_found = || ControlError::NotFound { job: name.to_string_lossy().into_owned() };
            ended::named(name).map(Target::Ended).ok_or_else(not_found)
        }
    }
}

/// The only one of these jobs, if there is one. `name`: all of them have it.
fn only(mut jobs: Vec<Running>, name: Option<&OsStr>) -> Result<Option<Running>, ControlError> {
    if jobs.len() > 1 {
        let of = name.map(|name| format!(" with the name {}", name.display())).unwrap_or_default();
        return Err(ControlError::Several { of, jobs: jobs.iter().map(|(_, status)| describe(status)).collect() });
    }
    Ok(jobs.pop())
}

/// The job that runs and has this name.
fn find_running(name: &OsStr) -> Result<Option<Running>, ControlError> {
    let wanted = Wanted::new(name);
    let how = |status: &JobStatus| JobNames::of_running(status).matches(&wanted);
    let Found { mut jobs, silent } = ask(|status| how(status) == Some(Match::Exact))?;
    let best = jobs.iter().filter_map(|(_, status)| how(status)).min();
    jobs.retain(|(_, status)| best.is_some() && how(status) == best);
    let job = only(jobs, Some(name))?;
    let is_it = |launcher: &i32| name.to_str().and_then(|name| name.parse().ok()) == Some(*launcher);
    match silent.iter().map(|(launcher, _)| *launcher).find(is_it) {
        Some(launcher) if job.is_none() => Err(ControlError::Silent { launcher }),
        _ => Ok(job),
    }
}

/// The job that runs, for commands that have nothing to show of one that has ended.
pub fn find_to_watch(name: Option<&OsStr>) -> Result<Running, ControlError> {
    if let Some(name) = name {
        return match find(Some(name))? {
            Target::Running(job) => Ok(job),
            Target::Ended(ended) => Err(ControlError::Ended { job: ended.describe() }),
        };
    }
    let ByFolder { here, elsewhere, silent } = running_by_folder()?;
    only(if here.is_empty() { elsewhere } else { here }, None)?.ok_or_else(|| no_running(&silent))
}

/// The job that runs, for commands that change it. Without a name, it is the only one that was started in this folder.
pub fn find_to_change(name: Option<&OsStr>) -> Result<Running, ControlError> {
    if name.is_some() {
        return find_to_watch(name);
    }
    let ByFolder { here, elsewhere, silent } = running_by_folder()?;
    if let Some(job) = only(here, None)? {
        return Ok(job);
    }
    let Some((_, status)) = only(elsewhere, None)? else { return Err(no_running(&silent)) };
    let folder = working_dir(&status);
    let folder = folder.map_or("a folder that cannot be read".into(), |folder| folder.display().to_string());
    Err(ControlError::OtherFolder { job: describe(&status), folder })
}

fn no_running(silent: &[i32]) -> ControlError {
    match (silent, last_of_this_folder()) {
        ([launcher, ..], _) => ControlError::Silent { launcher: *launcher },
        ([], Some(ended)) => ControlError::Ended { job: ended.describe() },
        ([], None) => ControlError::NoJobs,
    }
}

fn last_of_this_folder() -> Option<Ended> {
    std::env::current_dir().ok().and_then(|folder| ended::last_of(&folder))
}

/// The jobs that run, by the folder in which they were started.
struct ByFolder {
    here: Vec<Running>,
    elsewhere: Vec<Running>,
    /// The process ids of launchers that do not answer.
    silent: Vec<i32>,
}

fn running_by_folder() -> Result<ByFolder, ControlError> {
    let is_here = |status: &JobStatus| working_dir(status).is_some_and(|folder| is_this(&folder));
    let Found { jobs, silent } = ask(is_here)?;
    let (here, elsewhere) = jobs.into_iter().partition(|(_, status)| is_here(status));
    Ok(ByFolder { here, elsewhere, silent: silent.into_iter().map(|(launcher, _)| launcher).collect() })
}

fn is_this(folder: &Path) -> bool {
    std::env::current_dir().is_ok_and(|this| this == folder)
}

/// The folder in which a job was started. Launchers of earlier versions do not say it.
fn working_dir(status: &JobStatus) -> Option<PathBuf> {
    let said = Some(status.working_dir.clone()).filter(|folder| !folder.as_os_str().is_empty());
    said.or_else(|| working_dir_of(status.launcher))
}

fn working_dir_of(launcher: i32) -> Option<PathBuf> {
    std::fs::read_link(format!("/proc/{launcher}/cwd")).ok()
}

fn describe(status: &JobStatus) -> String {
    let script = script(&status.command).unwrap_or("?");
    let folder = working_dir(status).map_or(String::new(), |folder| format!(" in {}", in_home(&folder)));
    let since = clock::local_seconds(Duration::try_from_secs_f64(status.started).unwrap_or_default());
    format!("{} ({script}{folder}, since {}, id {})", status.launcher, since.replace('_', " "), status.job_id)
}

/// The ranks with these numbers in the job, or all processes. Servers have numbers of their own, and no option.
pub fn choose_ranks<'a>(status: &'a JobStatus, numbers: &[usize]) -> Result<Vec<&'a RankStatus>, ControlError> {
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
