//! `rlaunch report`: reads the records of a run and the ends of its logs, and writes them as a page and as a trace.
//!
//! The folder may come from another machine or user, so nothing in it is trusted: sizes are limited, files that are not
//! regular are refused, and a log is read only if it is inside the folder.

use super::find_jobs;
use crate::report::console::tail::{TailLimits, tail};
use crate::report::job_status::JobStatus;
use crate::report::run_page::{self, RankLog, RankRow, RunPage, RunRecord, RunState};
use crate::run::output::log_files;
use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use thiserror::Error;

const PAGE: &str = "report.html";
const EVENTS: &str = "events.jsonl";
/// Bytes of events.jsonl that are read: of a larger file the first line and the end.
const MOST_EVENTS: u64 = 64 << 20;
/// Bytes in which the first line is looked for.
const MOST_FIRST_LINE: u64 = 1 << 20;
/// Bytes of result.json.
const MOST_RESULT: u64 = 64 << 20;
/// Bytes of log lines on the page, of all ranks and of one.
const MOST_LINES: usize = 8 << 20;
const LINES_OF_RANK: std::ops::RangeInclusive<usize> = 1024..=16 * 1024;

/// Why there is no report.
#[derive(Debug, Error)]
pub(super) enum ReportError {
    #[error("there is no folder {}; give the log folder of a job (its --log_dir; ./log by default)", .0.display())]
    NoFolder(PathBuf),
    #[error(
        "{} has no records of a job, neither {} nor {EVENTS}; give the log folder of a job (its --log_dir; ./log by default)",
        .0.display(), log_files::RESULT
    )]
    NoRecords(PathBuf),
    #[error("cannot read {}: {}; run this command as the user of the job", .0.display(), log_files::plain(.1))]
    Unreadable(PathBuf, #[source] io::Error),
    #[error("cannot read {}: it is not a regular file; remove it", .0.display())]
    NotARecord(PathBuf),
    #[error("cannot write {}: {}; name another file with {option}", .path.display(), log_files::plain(.source))]
    Unwritable { path: PathBuf, option: &'static str, source: io::Error },
    #[error("cannot write {}: it is not a regular file; name another file with {option}, or - for stdout", .path.display())]
    NotAFile { path: PathBuf, option: &'static str },
    #[error("--output and --trace cannot both be -; name a file for one of them")]
    OneStdout,
}

/// The folders of a run.
struct RunFolder {
    /// The log folder, without links.
    logs: PathBuf,
    /// The folder with the launcher's records.
    records: PathBuf,
}

/// Writes the page, and the trace if it has a path. `-` is stdout. Returns the files that were written.
pub(super) fn write(folder: &Path, output: Option<&Path>, trace: Option<&Path>) -> Result<Vec<PathBuf>, ReportError> {
    if output.is_some_and(is_stdout) && trace.is_some_and(is_stdout) {
        return Err(ReportError::OneStdout);
    }
    let run = find_run(folder)?;
    let (record, notes) = read_records(&run)?;
    let running = find_running(&run).filter(|_| record.result().is_none());
    let state = if running.is_some() { RunState::Running } else { RunState::Unknown };
    let logs = read_logs(&run, &record, running.as_ref());
    let shown = run.logs.display().to_string();
    let page = run_page::page(&RunPage { record: &record, folder: &shown, state, logs: &logs, notes: &notes });
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

/// The run that a log folder, or the folder of records in it, is of.
fn find_run(folder: &Path) -> Result<RunFolder, ReportError> {
    let no_folder = |error: io::Error| match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => ReportError::NoFolder(folder.to_owned()),
        _ => ReportError::Unreadable(folder.to_owned(), error),
    };
    let named = std::fs::canonicalize(folder).map_err(no_folder)?;
    if !named.is_dir() {
        return Err(ReportError::NoFolder(folder.to_owned()));
    }
    let has_records = |folder: &Path| [log_files::RESULT, EVENTS].iter().any(|name| folder.join(name).exists());
    let inner = named.join(log_files::RECORDS);
    // The names of files in a folder of another user cannot be looked up.
    if has_records(&inner) || std::fs::read_dir(&inner).is_err_and(|e| e.kind() == io::ErrorKind::PermissionDenied) {
        return Ok(RunFolder { logs: named, records: inner });
    }
    match named.parent().filter(|_| has_records(&named)) {
        Some(logs) => Ok(RunFolder { logs: logs.to_owned(), records: named }),
        None => Err(ReportError::NoRecords(folder.to_owned())),
    }
}

/// The state of the job, if a launcher of this user on this machine runs it.
fn find_running(run: &RunFolder) -> Option<JobStatus> {
    let is_it = |status: &JobStatus| std::fs::canonicalize(&status.log_dir).is_ok_and(|folder| folder == run.logs);
    find_jobs::all().ok()?.jobs.into_iter().map(|(_, status)| status).find(is_it)
}

/// The records, and what is wrong with them.
fn read_records(run: &RunFolder) -> Result<(RunRecord, Vec<String>), ReportError> {
    let (mut record, mut notes) = (RunRecord::default(), Vec::new());
    match open(&run.records.join(EVENTS))? {
        None => notes.push(format!("{EVENTS} is missing, so there is no timeline.")),
        Some((file, path)) => {
            let note = read_events(file, &mut record).map_err(|error| ReportError::Unreadable(path, error))?;
            notes.extend(note);
        }
    }
    match record.skipped_lines() {
        0 => {}
        1 => notes.push(format!("1 line of {EVENTS} is not an event and was skipped.")),
        lines => notes.push(format!("{lines} lines of {EVENTS} are not events and were skipped.")),
    }
    if let Some((file, path)) = open(&run.records.join(log_files::RESULT))? {
        let mut text = Vec::new();
        file.take(MOST_RESULT).read_to_end(&mut text).map_err(|error| ReportError::Unreadable(path, error))?;
        match run_page::document(&text) {
            Ok(result) => record.set_result(result),
            Err(error) => notes.push(format!("{} is damaged and was skipped: {error}.", log_files::RESULT)),
        }
    }
    if record.is_empty() { Err(ReportError::NoRecords(run.records.clone())) } else { Ok((record, notes)) }
}

/// A regular file; `None`: there is none of this name.
fn open(path: &Path) -> Result<Option<(File, PathBuf)>, ReportError> {
    // O_NONBLOCK: a FIFO of that name is refused instead of waited for.
    let opened = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path);
    let is_file = |file: &File| file.metadata().map(|data| data.is_file());
    match opened.and_then(|file| Ok((is_file(&file)?, file))) {
        Ok((true, file)) => Ok(Some((file, path.to_owned()))),
        Ok((false, _)) => Err(ReportError::NotARecord(path.to_owned())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(ReportError::Unreadable(path.to_owned(), error)),
    }
}

/// Adds the events of a file to the record. Returns a note if some were left out.
fn read_events(mut file: File, record: &mut RunRecord) -> io::Result<Option<String>> {
    let length = file.metadata()?.len();
    if length <= MOST_EVENTS {
        add_lines(BufReader::new(file.take(length)), record)?;
        return Ok(None);
    }
    let mut first = Vec::new();
    BufReader::new((&file).take(MOST_FIRST_LINE)).read_until(b'\n', &mut first)?;
    record.add_line(&first);
    file.seek(SeekFrom::Start(length - MOST_EVENTS))?;
    let mut rest = BufReader::new(file.take(MOST_EVENTS));
    rest.skip_until(b'\n')?;
    add_lines(rest, record)?;
    let (megabytes, read) = (length >> 20, MOST_EVENTS >> 20);
    Ok(Some(format!("{EVENTS} has {megabytes} MB: only its first event and its last {read} MB were read.")))
}

fn add_lines(mut lines: impl BufRead, record: &mut RunRecord) -> io::Result<()> {
    let mut line = Vec::new();
    while lines.read_until(b'\n', &mut line)? > 0 {
        record.add_line(&line);
        line.clear();
    }
    Ok(())
}

/// The ends of the logs that exist.
fn read_logs(run: &RunFolder, record: &RunRecord, running: Option<&JobStatus>) -> Vec<RankLog> {
    let rows = run_page::rank_rows(record);
    let bytes = (MOST_LINES / rows.len().max(1)).clamp(*LINES_OF_RANK.start(), *LINES_OF_RANK.end());
    let limits = TailLimits { bytes, ..TailLimits::default() };
    let read = |row| read_log(run, row, &places_of_log(run, row, record, running), limits);
    rows.iter().filter_map(read).collect()
}

/// Where the log of a rank may be.
fn places_of_log(run: &RunFolder, row: &RankRow, record: &RunRecord, running: Option<&JobStatus>) -> Vec<PathBuf> {
    if let Some(status) = running {
        let rank = status.ranks.iter().find(|rank| rank.label() == row.label);
        return rank.map(|rank| rank.logs.iter().rev().cloned().collect()).unwrap_or_default();
    }
    let Some(result) = record.result() else {
        // The records of a launcher that was killed do not name the logs: these are the names of Paddle's launcher.
        let name = |number: usize| run.logs.join(format!("{}.{number}", row.label.role.log_prefix()));
        return row.local_rank.into_iter().chain([row.label.number]).map(name).collect();
    };
    let Some(log) = row.log.as_deref().map(Path::new) else { return Vec::new() };
    // The folder may have been moved, or copied to another machine.
    let inside = result["log_dir"].as_str().and_then(|folder| log.strip_prefix(folder).ok());
    inside.map(|inside| run.logs.join(inside)).into_iter().chain([run.logs.join(log)]).collect()
}

/// The end of the log of a rank; `None`: it has none.
fn read_log(run: &RunFolder, row: &RankRow, places: &[PathBuf], limits: TailLimits) -> Option<RankLog> {
    let path = places.iter().find_map(|path| std::fs::canonicalize(path).ok())?;
    let mut log =
        RankLog { label: row.label, path: path.display().to_string(), lines: Vec::new(), cut: false, note: None };
    if !path.starts_with(&run.logs) {
        log.note = Some("This file is not in the log folder, so its lines are not shown.".to_owned());
    } else if !path.is_file() {
        log.note = Some("This is not a regular file.".to_owned());
    } else if let Err(error) = File::open(&path) {
        log.note = Some(format!("This file cannot be read: {}.", log_files::plain(&error)));
    } else {
        let end = tail(&log_files::tail(&path, 0, log_files::TAIL_BYTES), limits);
        (log.lines, log.cut) = (end.lines, end.cut);
    }
    Some(log)
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
