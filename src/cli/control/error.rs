//! Why a command for running jobs fails.

use super::ended::job_folder::JobFolderError;
use super::write_report::ReportError;
use crate::run::control::runtime_folder::{self, NoControlSocket};
use nix::errno::Errno;
use std::io;
use std::path::PathBuf;
use thiserror::Error;

#[derive(Debug, Error)]
pub(super) enum ControlError {
    #[error(transparent)]
    Folder(#[from] NoControlSocket),
    #[error(transparent)]
    Report(#[from] ReportError),
    #[error(transparent)]
    Records(#[from] JobFolderError),
    #[error(
        "no job of this user runs on this machine, and none was started in this folder before (control sockets are in {}; a job in a \
         container is found from inside it; `rlaunch ps --all` lists jobs that have ended)",
        runtime_folder::path().display()
    )]
    NoJobs,
    #[error("no job is {job}; `rlaunch ps --all` lists those that run and those that have ended")]
    NotFound { job: String },
    #[error("{} jobs{of} run; say which by its process id:\n  {}", .jobs.len(), .jobs.join("\n  "))]
    Several { of: String, jobs: Vec<String> },
    #[error(
        "the only job that runs, {job}, was not started in this folder but in {folder}; say that you mean it by its process id"
    )]
    OtherFolder { job: String, folder: String },
    #[error("the job has no rank {rank} on this machine; it has {has}")]
    NotARank { rank: usize, has: String },
    #[error("none of these ranks runs")]
    NoRank,
    #[error("process {pid} cannot be signalled: {error}")]
    Signal { pid: i32, error: io::Error },
    #[error("the launcher {launcher} does not answer; is it stopped, or of another version?")]
    Silent { launcher: i32 },
    #[error("the job has ended")]
    Gone,
    #[error("{job}; see `rlaunch report`, `rlaunch logs` and `rlaunch status` for what is left of it")]
    Ended { job: String },
    #[error("the launcher does not answer: {0}")]
    NoAnswer(io::Error),
    #[error("the launcher's answer is not understood; is it of another version of rlaunch?")]
    NotUnderstood,
    #[error(
        "the job's launcher is of an earlier version of rlaunch, which does not know this request; use the rlaunch that started it"
    )]
    EarlierVersion,
    #[error("the launcher refuses: {0}")]
    Refused(String),
    #[error("the job has ended instead of starting again; its logs are in {}", .0.display())]
    EndedInstead(PathBuf),
    #[error("{job} has ended without a result in {}: its launcher was killed, or could not write there", .log_dir.display())]
    NoResult { job: String, log_dir: PathBuf },
    #[error("its launcher {0} is in another PID namespace, so its end cannot be waited for; use --no-wait")]
    OtherNamespace(i32),
    #[error("`launch` and `run` start with the interpreter: use `python -m rlaunch` or `python -m rlaunch.run`")]
    NotHere,
    #[error("`rlaunch top` needs a terminal as stdin and stdout; use `rlaunch status`, or `rlaunch status --watch`")]
    NoTerminal,
    #[error("no thread can be started: {0}")]
    Thread(io::Error),
    #[error("the terminal cannot be used: {0}")]
    Terminal(io::Error),
    #[error("{0}")]
    System(#[from] Errno),
}
