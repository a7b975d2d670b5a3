//! The history of this user's jobs that have ended: a small file for each in `~/.local/state/rlaunch/jobs` (XDG_STATE_HOME), or in the
//! folder of the control sockets where the home cannot be used. Launchers that end at the same time write files of different names.

use crate::net::thread;
use crate::run::control::runtime_folder;
use crate::run::output::log_files;
use crate::spec::options::parse_bool;
use crate::sys::{clock, random};
use nix::unistd::geteuid;
use serde::{Deserialize, Serialize};
use std::fs::{DirBuilder, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tracing::debug;

/// The variable with the number of jobs that are kept; 0 or `off`: none.
const VARIABLE: &str = "RLAUNCH_HISTORY";
/// Jobs that are kept if the variable is not set.
const DEFAULT_JOBS: usize = 200;
const MAX_JOBS: usize = 10_000;
/// Bytes of a job's command line.
const MAX_COMMAND: usize = 2000;
/// Bytes of a file that is read.
const MAX_FILE: u64 = 64 << 10;
/// The time for the write: the home may be on a file server that is gone.
const WRITE_TIMEOUT: Duration = Duration::from_millis(500);
/// The end of a file's name. A file that is not complete yet has more behind it.
const ENDING: &str = ".json";
/// The version of the form.
const VERSION: u32 = 1;

/// A job that has ended, as its launcher saw it.
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
    /// Its child, the parent of the ranks.
    pub supervisor: i32,
    /// The beginning of the ranks' command line, with secrets masked.
    pub command: Vec<String>,
    /// The folder in which the job was started.
    pub working_dir: PathBuf,
    /// The folder of the logs.
    pub log_dir: PathBuf,
    /// That folder was still there at the end of the job.
    pub logs_kept: bool,
    /// The start of the launcher (seconds since 1970).
    pub started: f64,
    /// The end of the job (seconds since 1970).
    pub ended: f64,
    /// As in `result.json`; `error`: the launcher could not run the job.
    pub outcome: String,
    /// The launcher's exit status.
    pub exit_status: i32,
}

impl EndedJob {
    /// Returns the outcome in words for people.
    pub fn outcome_in_words(&self) -> String {
        match &*self.outcome {
            // One of the launcher's two processes.
            "front_lost" | "supervisor_lost" => "lost".to_owned(),
            outcome => outcome.replace('_', " "),
        }
    }
}

fn max_jobs(value: Option<&str>) -> usize {
    match value.map(str::trim).filter(|text| !text.is_empty()) {
        None => DEFAULT_JOBS,
        Some(text) => match (text.parse(), parse_bool(text)) {
            (Ok(number), _) => MAX_JOBS.min(number),
            (Err(_), Some(false)) => 0,
            (Err(_), _) => DEFAULT_JOBS,
        },
    }
}

/// Adds a job. A disk that hangs delays the caller by `WRITE_TIMEOUT`, so no rank may run any more.
pub fn record(mut job: EndedJob) {
    let max_jobs = max_jobs(std::env::var(VARIABLE).ok().as_deref());
    if max_jobs == 0 {
        return;
    }
    let mut length = 0;
    let fits = |word: &&String| {
        length += word.len() + 1;
        length <= MAX_COMMAND
    };
    let words = job.command.iter().take_while(fits).count();
    job.command.truncate(words);
    (job.version, job.ended) = (VERSION, clock::wall().as_secs_f64());
    let write = move || {
        job.logs_kept = job.log_dir.is_dir();
        // As a user's name of it is compared.
        job.log_dir = job.log_dir.canonicalize().unwrap_or(job.log_dir);
        write(&job, max_jobs)
    };
    match thread::within(WRITE_TIMEOUT, write) {
        Some(Ok(())) => {}
        Some(Err(error)) => debug!("the job is not in the history: {error}"),
        None => debug!("the job is not in the history: its folder does not answer"),
    }
}

fn write(job: &EndedJob, max_jobs: usize) -> io::Result<()> {
    let home = state_folder().ok_or_else(|| io::ErrorKind::NotFound.into());
    if home.and_then(|folder| write_in(&folder, job, max_jobs)).is_ok() {
        return Ok(());
    }
    let runtime = runtime_folder::create_usual().map_err(io::Error::other)?;
    write_in(&in_runtime(&runtime), job, max_jobs)
}

/// Writes the file of a job, and removes those of the oldest jobs if there are too many.
fn write_in(folder: &Path, job: &EndedJob, max_jobs: usize) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    runtime_folder::check_private(folder).map_err(io::Error::other)?;
    let is_in_name = |c: &char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.');
    let host: String = job.host.chars().filter(is_in_name).take(64).collect();
    // Names sort by the time of the end.
    let (millis, random) = ((job.ended * 1000.0) as u64, random::lowercase(6));
    let path = folder.join(format!("{millis:013}-{host}-{}-{random}{ENDING}", job.launcher));
    log_files::replace(&path, &(serde_json::to_string(job)? + "\n"))?;
    let names = names(folder);
    for name in &names[..names.len().saturating_sub(max_jobs)] {
        // Another launcher may have removed it.
        let _ = std::fs::remove_file(folder.join(name));
    }
    Ok(())
}

/// The folder in the user's home. `None`: there is no home, or it is another user's, as with `sudo`.
fn state_folder() -> Option<PathBuf> {
    let absolute = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let state = absolute("XDG_STATE_HOME").or_else(|| Some(absolute("HOME")?.join(".local/state")))?;
    let existing = state.ancestors().find_map(|part| part.metadata().ok())?;
    (existing.uid() == geteuid().as_raw()).then(|| state.join("rlaunch/jobs"))
}

fn in_runtime(folder: &Path) -> PathBuf {
    folder.join("jobs")
}

/// The names of all files of jobs, also of those that a killed launcher left incomplete: the oldest first.
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
    let folders: Vec<PathBuf> =
        state_folder().into_iter().chain(runtime.iter().map(|folder| in_runtime(folder))).collect();
    let mut jobs: Vec<EndedJob> = folders.iter().flat_map(|folder| list_in(folder)).collect();
    jobs.sort_by(|one, other| other.ended.total_cmp(&one.ended));
    jobs
}

fn list_in(folder: &Path) -> Vec<EndedJob> {
    if runtime_folder::check_private(folder).is_err() {
        return Vec::new();
    }
    let complete = names(folder).into_iter().filter(|name| name.ends_with(ENDING));
    complete.filter_map(|name| read(&folder.join(name))).collect()
}

/// A job; `None`: the file is no regular one, or has something else.
fn read(path: &Path) -> Option<EndedJob> {
    // O_NONBLOCK: a FIFO is refused instead of waited for.
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(path).ok()?;
    if !file.metadata().ok()?.is_file() {
        return None;
    }
    let mut text = Vec::new();
    file.take(MAX_FILE).read_to_end(&mut text).ok()?;
    serde_json::from_slice(&text).ok().filter(|job: &EndedJob| job.version == VERSION)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    fn scratch(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("rlaunch-history-{name}-{}", std::process::id()));
        DirBuilder::new().mode(0o700).create(&folder).unwrap();
        folder
    }

    fn job(number: u32) -> EndedJob {
        let (host, job_id) = ("../a b".to_owned(), number.to_string());
        EndedJob { version: VERSION, job_id, host, ended: f64::from(number), ..EndedJob::default() }
    }

    fn ids(folder: &Path) -> Vec<String> {
        list_in(folder).into_iter().map(|job| job.job_id).collect()
    }

    #[test]
    fn the_variable_is_a_number_or_off() {
        let values = [None, Some(" "), Some("7"), Some("0"), Some("off"), Some("99999999"), Some("many")];
        assert_eq!(values.map(max_jobs), [DEFAULT_JOBS, DEFAULT_JOBS, 7, 0, 0, MAX_JOBS, DEFAULT_JOBS]);
    }

    #[test]
    fn the_oldest_are_removed_by_any_number_of_writers() {
        let root = scratch("writers");
        let folder = root.join("a/jobs");
        std::thread::scope(|scope| {
            for writer in 0..8 {
                let folder = &folder;
                scope.spawn(move || (0..25).for_each(|n| write_in(folder, &job(writer * 25 + n), 200).unwrap()));
            }
        });
        assert_eq!(ids(&folder), (0..200).map(|n: u32| n.to_string()).collect::<Vec<_>>());
        std::fs::write(folder.join("0000000000000-of-a-writer-that-was-killed.json.Ab3"), "{").unwrap();
        write_in(&folder, &job(200), 3).unwrap();
        assert_eq!(ids(&folder), ["198", "199", "200"]);
        assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 3);
        std::fs::remove_dir_all(&root).unwrap();
    }

    #[test]
    fn files_that_no_launcher_wrote_are_left_out() {
        let folder = scratch("hostile");
        write_in(&folder, &job(1), 100).unwrap();
        let deep = "[".repeat(1 << 15);
        let long = format!(r#"{{"version":1,"job_id":"{}"}}"#, "x".repeat(1 << 17));
        let texts: [&[u8]; 12] = [
            b"",
            b"{",
            b"null",
            b"[2]",
            b"\xff\x00",
            b"{\"version\":2}",
            b"{\"version\":\"1\"}",
            b"{\"version\":1,\"launcher\":99999999999}",
            b"{\"version\":1,\"ended\":1e999}",
            b"{\"version\":1,\"command\":[1]}",
            deep.as_bytes(),
            long.as_bytes(),
        ];
        for (number, text) in texts.into_iter().enumerate() {
            std::fs::write(folder.join(format!("2-{number}.json")), text).unwrap();
        }
        std::fs::write(folder.join("3-extra.json"), r#"{"version":1,"job_id":"3","later":[null]}"#).unwrap();
        symlink(folder.join("3-extra.json"), folder.join("4-link.json")).unwrap();
        std::fs::create_dir(folder.join("5-folder.json")).unwrap();
        nix::unistd::mkfifo(&folder.join("6-fifo.json"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        assert_eq!(ids(&folder), ["1", "3"]);
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn a_folder_that_others_may_write_to_is_not_used() {
        let folder = scratch("private");
        write_in(&folder, &job(1), 100).unwrap();
        std::fs::set_permissions(&folder, PermissionsExt::from_mode(0o777)).unwrap();
        assert!(write_in(&folder, &job(2), 100).is_err());
        assert!(ids(&folder).is_empty());
        std::fs::set_permissions(&folder, PermissionsExt::from_mode(0o700)).unwrap();
        let link = folder.join("link");
        symlink(&folder, &link).unwrap();
        assert!(write_in(&link, &job(3), 100).is_err());
        assert_eq!(ids(&folder), ["1"]);
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn ten_thousand_jobs_are_listed_in_their_order() {
        let folder = scratch("many");
        for number in 0..10_000 {
            let text = serde_json::to_string(&job(number)).unwrap();
            std::fs::write(folder.join(format!("{:013}-a.json", u64::from(number) * 1000)), text).unwrap();
        }
        write_in(&folder, &job(10_000), MAX_JOBS).unwrap();
        assert_eq!(ids(&folder), (1..=10_000).map(|n: u32| n.to_string()).collect::<Vec<_>>());
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
