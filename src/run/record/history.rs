//! The jobs of this user that have ended: a small file each, in `~/.local/state/rlaunch/jobs` (XDG_STATE_HOME), or in the folder of the
//! control sockets where the home cannot be used. Launchers that end at once write files of different names.

use crate::net::thread;
use crate::run::control::runtime_folder;
use crate::run::output::log_files;
use crate::sys::{clock, random};
use nix::unistd::geteuid;
use serde::{Deserialize, Serialize};
use std::fs::{DirBuilder, File};
use std::io::{self, Read};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tracing::debug;

/// The variable with the number of jobs that are remembered.
pub const VARIABLE: &str = "RLAUNCH_HISTORY";
/// That number where the variable is not set.
const USUAL: usize = 200;
/// The largest number.
const MOST: usize = 10_000;
/// Bytes of a job's command line, and of the file of a job that is read.
const MOST_COMMAND: usize = 2000;
const MOST_FILE: u64 = 64 << 10;
/// How long the write may take: the home may be on a file server that is gone.
const PATIENCE: Duration = Duration::from_millis(500);
const ENDING: &str = ".json";

/// A job that has ended, as its launcher has seen it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct EndedJob {
    /// The version of this form.
    pub version: u32,
    /// The name of the job.
    pub job_id: String,
    /// The name of the machine.
    pub host: String,
    /// The process id of the launcher.
    pub launcher: i32,
    /// The command line of the ranks, with secrets masked.
    pub command: Vec<String>,
    /// The folder in which the job was started.
    pub working_dir: PathBuf,
    /// The folder of the logs.
    pub log_dir: PathBuf,
    /// Whether that folder was kept.
    pub logs_kept: bool,
    /// When the launcher was started, and when it ended (seconds since 1970).
    pub started: f64,
    /// The same of its end.
    pub ended: f64,
    /// As in `result.json`; `error`: the launcher could not run it.
    pub outcome: String,
    /// The launcher's exit status.
    pub exit_status: i32,
}

/// How many jobs are remembered.
fn limit() -> usize {
    let number = std::env::var(VARIABLE).ok().and_then(|text| text.trim().parse().ok());
    number.unwrap_or(USUAL).min(MOST)
}

/// Remembers a job, within a moment. To be called when none of its processes runs any more: the disk may hang.
pub fn record(mut job: EndedJob) {
    let most = limit();
    if most == 0 {
        return;
    }
    let mut room = MOST_COMMAND;
    job.command.retain(|word| {
        let fits = word.len() < room;
        room = room.saturating_sub(word.len() + 1);
        fits
    });
    (job.version, job.ended) = (1, clock::wall().as_secs_f64());
    let write = move || {
        job.logs_kept = job.log_dir.is_dir();
        write(&job, most)
    };
    match thread::within(PATIENCE, write) {
        Some(Ok(())) => {}
        Some(Err(error)) => debug!("the history of jobs cannot be written: {error}"),
        None => debug!("the history of jobs cannot be written in time"),
    }
}

fn write(job: &EndedJob, most: usize) -> io::Result<()> {
    let (host, number) = (host_in_name(&job.host), random::lowercase(6));
    // In the order of their ends, on one machine.
    let name = format!("{:013}-{host}-{}-{number}{ENDING}", (job.ended * 1000.0) as u64, job.launcher);
    let text = serde_json::to_string(job)? + "\n";
    let at = |folder: PathBuf| log_files::replace(&folder.join(&name), &text).map(|()| folder);
    let home = state_folder().ok_or(io::Error::from(io::ErrorKind::NotFound)).and_then(|folder| at(create(folder)?));
    let folder = home.or_else(|_| {
        let runtime = runtime_folder::create_usual().map_err(|error| io::Error::other(error.to_string()))?;
        at(create(in_runtime(&runtime))?)
    })?;
    let mut names = names(&folder);
    let too_many = names.len().saturating_sub(most);
    for name in names.drain(..too_many) {
        // Another launcher may be faster.
        let _ = std::fs::remove_file(folder.join(name));
    }
    Ok(())
}

fn host_in_name(host: &str) -> String {
    host.chars().filter(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '.')).take(64).collect()
}

/// The folder in the user's home. `None`: it is another user's, as with `sudo`, or there is none.
fn state_folder() -> Option<PathBuf> {
    let absolute = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let state = absolute("XDG_STATE_HOME").or_else(|| Some(absolute("HOME")?.join(".local/state")))?;
    let there = state.ancestors().find_map(|part| part.metadata().ok())?;
    (there.uid() == geteuid().as_raw()).then(|| state.join("rlaunch/jobs"))
}

fn in_runtime(folder: &Path) -> PathBuf {
    folder.join("jobs")
}

fn create(folder: PathBuf) -> io::Result<PathBuf> {
    DirBuilder::new().recursive(true).mode(0o700).create(&folder)?;
    let private = runtime_folder::check_private(&folder);
    private.map(|()| folder).map_err(|error| io::Error::other(error.to_string()))
}

/// The names of the files, in the order of the ends of the jobs; those of launchers that were killed meanwhile as well.
fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.retain(|name| name.starts_with(|first: char| first.is_ascii_digit()));
    names.sort();
    names
}

/// The jobs of this user that have ended, the latest first.
pub fn list() -> Vec<EndedJob> {
    let runtime = runtime_folder::folders().unwrap_or_default();
    let folders = state_folder().into_iter().chain(runtime.iter().map(|folder| in_runtime(folder)));
    let private = folders.filter(|folder| runtime_folder::check_private(folder).is_ok());
    let files = private.flat_map(|folder| names(&folder).into_iter().map(move |name| folder.join(name)));
    let mut jobs: Vec<EndedJob> = files.filter_map(|file| read(&file)).collect();
    jobs.sort_by(|one, other| other.ended.total_cmp(&one.ended));
    jobs
}

fn read(path: &Path) -> Option<EndedJob> {
    let mut text = Vec::new();
    File::open(path).ok()?.take(MOST_FILE).read_to_end(&mut text).ok()?;
    serde_json::from_slice(&text).ok().filter(|job: &EndedJob| job.version == 1)
}
