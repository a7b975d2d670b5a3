//! `rlaunch report`: writes the records of a run and the ends of its logs as a page and as a trace.

use super::ended::job_folder::{JobFolder, JobFolderError};
use super::jobs::find;
use crate::report::job_status::JobStatus;
use crate::report::run_page::{self, RunPage, RunState};
use crate::run::output::log_files;
use std::ffi::OsStr;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use thiserror::Error;

const PAGE: &str = "report.html";

/// Why there is no report.
#[derive(Debug, Error)]
pub(super) enum ReportError {
    #[error(transparent)]
    Folder(#[from] JobFolderError),
    #[error("cannot write {}: {}; name another file with {option}", .path.display(), log_files::plain(.source))]
    Unwritable { path: PathBuf, option: &'static str, source: io::Error },
    #[error("cannot write {}: it is not a regular file; name another file with {option}, or - for stdout", .path.display())]
    NotAFile { path: PathBuf, option: &'static str },
    #[error("--output and --trace cannot both be -; name a file for one of them")]
    OneStdout,
}

/// Writes the page, and the trace if it has a path. `-` is stdout. Returns the files that were written.
pub(super) fn write(run: &JobFolder, output: Option<&Path>, trace: Option<&Path>) -> Result<Vec<PathBuf>, ReportError> {
    if output.is_some_and(is_stdout) && trace.is_some_and(is_stdout) {
        return Err(ReportError::OneStdout);
    }
    let (record, notes) = run.read()?;
    let running = find_running(run).filter(|_| record.result().is_none());
    let state = if running.is_some() { RunState::Running } else { RunState::Unknown };
    let logs = run.logs_of(&record, running.as_ref());
    let failed = run.logs_of_failures(&record);
    let shown = run.logs.display().to_string();
    let page = run_page::page(&RunPage {
        record: &record,
        folder: &shown,
        state,
        logs: &logs,
        failed: &failed,
        notes: &notes,
    });
    let output = output.map_or_else(|| run.records.join(PAGE), Path::to_owned);
    write_text(&output, &page, "--output")?;
    let mut written = vec![output];
    if let Some(trace) = trace {
        write_text(trace, &run_page::trace(&record), "--trace")?;
        written.push(trace.to_owned());
    }
    written.retain(|path| !is_stdout(path));
    Ok(written)
}

fn is_stdout(path: &Path) -> bool {
    path == Path::new("-")
}

/// The state of the job, if a launcher of this user on this machine runs it.
fn find_running(run: &JobFolder) -> Option<JobStatus> {
    let is_it = |status: &JobStatus| std::fs::canonicalize(&status.log_dir).is_ok_and(|folder| folder == run.logs);
    find::all().ok()?.jobs.into_iter().map(|(_, status)| status).find(is_it)
}

/// Writes a file anew, or to stdout.
fn write_text(path: &Path, text: &str, option: &'static str) -> Result<(), ReportError> {
    let unwritable = |path: &OsStr, source| ReportError::Unwritable { path: path.into(), option, source };
    if is_stdout(path) {
        let mut out = io::stdout();
        let written = out.write_all(text.as_bytes()).and_then(|()| out.flush());
        return written.map_err(|source| unwritable(OsStr::new("stdout"), source));
    }
    // A device would be replaced by a file.
    if std::fs::metadata(path).is_ok_and(|data| !data.is_file()) {
        return Err(ReportError::NotAFile { path: path.to_owned(), option });
    }
    log_files::replace(path, text).map_err(|source| unwritable(path.as_os_str(), source))
}
