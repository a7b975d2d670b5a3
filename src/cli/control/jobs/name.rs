//! What a user may call a job: its launcher's process id, its id, its log folder or the one above, its script.

use crate::report::job_status::JobStatus;
use crate::run::record::history::EndedJob;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

/// Characters of an id that name the job, as `ps` shows them of a long one.
pub(super) const SHORT: usize = 8;

/// A name that a user gives for a job.
pub struct Wanted<'a> {
    /// Empty if it is not text: then it can only be a folder.
    name: &'a str,
    /// The folder or the script of this name, without links.
    path: Option<PathBuf>,
}

impl<'a> Wanted<'a> {
    pub fn new(name: &'a OsStr) -> Self {
        // What was removed is named as it was.
        let path = std::fs::canonicalize(name).or_else(|_| std::path::absolute(name)).ok();
        Self { name: name.to_str().unwrap_or_default(), path }
    }
}

/// The names of a job.
pub struct JobNames<'a> {
    /// Process ids on this machine.
    pids: Vec<i32>,
    job_id: &'a str,
    log_dir: PathBuf,
    command: &'a [String],
    /// Where its command line begins.
    working_dir: &'a Path,
}

/// The kind of a name that a word is for a job; the smaller the better.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Match {
    /// By a process id, an id, or its own log folder.
    Exact,
    /// By the path of its script: of jobs with scripts of one name it is the one of this folder.
    Script,
    /// By its script, the beginning of its id, or the folder above its log folder (`rlaunch-run --log-dir`).
    Loose,
}

impl<'a> JobNames<'a> {
    pub fn of_running(job: &'a JobStatus) -> Self {
        let log_dir = std::fs::canonicalize(&job.log_dir).unwrap_or_default();
        let (pids, command) = (vec![job.launcher, job.supervisor], &job.command);
        Self { pids, job_id: &job.job_id, log_dir, command, working_dir: &job.working_dir }
    }

    /// `host`: this machine.
    pub fn of_ended(job: &'a EndedJob, host: &str) -> Self {
        let pids = if job.host == host { vec![job.launcher, job.supervisor] } else { Vec::new() };
        let (log_dir, command) = (job.log_dir.clone(), &job.command);
        Self { pids, job_id: &job.job_id, log_dir, command, working_dir: &job.working_dir }
    }

    pub fn matches(&self, wanted: &Wanted<'_>) -> Option<Match> {
        let (name, path) = (wanted.name, wanted.path.as_deref());
        let is_pid = name.parse().is_ok_and(|pid| self.pids.contains(&pid));
        let is_id = !name.is_empty() && self.job_id == name;
        if is_pid || is_id || path == Some(&*self.log_dir) {
            return Some(Match::Exact);
        }
        let is_above = path.is_some() && path == self.log_dir.parent();
        let begins = name.len() >= SHORT && self.job_id.starts_with(name);
        let script = script(self.command);
        if script.is_some_and(|own| path == Some(&*self.working_dir.join(own))) {
            return Some(Match::Script);
        }
        let is_script = script.is_some_and(|own| own == name || file_name(own) == name);
        (is_script || begins || is_above).then_some(Match::Loose)
    }
}

pub(super) fn file_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// The script or the module of a rank's command line: the first word that is no option of the interpreter.
pub fn script(command: &[String]) -> Option<&str> {
    let (first, mut rest) = command.split_first()?;
    if !file_name(first).starts_with("python") {
        return Some(first);
    }
    while let Some((word, more)) = rest.split_first() {
        match word.as_str() {
            "-m" | "-c" => return more.first().map(String::as_str),
            "-W" | "-X" => rest = more.get(1..).unwrap_or_default(),
            option if option.starts_with('-') => rest = more,
            script => return Some(script),
        }
    }
    Some(first)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_is_found_behind_the_options_of_the_interpreter() {
        let of = |line: &str| {
            let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
            script(&words).map(str::to_owned).unwrap_or_default()
        };
        let lines =
            ["/usr/bin/python3 -u -X dev a/train.py --lr 1", "python -m pkg.train x", "./run.sh a", "python3.11"];
        assert_eq!(lines.map(of), ["a/train.py", "pkg.train", "./run.sh", "python3.11"]);
    }

    #[test]
    fn a_job_is_named_by_its_script_and_by_the_beginning_of_its_id() {
        let command = ["python3".to_owned(), "a/train.py".to_owned()];
        let (job_id, log_dir, working_dir) = ("2e58a464-d7ce", "/none/log".into(), Path::new("/none/b"));
        let names = JobNames { pids: vec![7, 8], job_id, log_dir, command: &command, working_dir };
        let of = |name| names.matches(&Wanted::new(OsStr::new(name)));
        assert_eq!(["8", "2e58a464-d7ce"].map(of), [Some(Match::Exact); 2]);
        assert_eq!(["/none/b/a/train.py", "/none/b/./a/train.py"].map(of), [Some(Match::Script); 2]);
        assert_eq!(["train.py", "a/train.py", "2e58a464"].map(of), [Some(Match::Loose); 3]);
        assert_eq!(["9", "2e58", "b/train.py", "train", "/none"].map(of), [None, None, None, None, Some(Match::Loose)]);
    }
}
