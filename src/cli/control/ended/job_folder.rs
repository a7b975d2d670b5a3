//! The log folder of a run: its records and the ends of its logs.
//!
//! The folder may come from another machine or user, so nothing in it is trusted: sizes are limited, files that are not
//! regular are refused, and a log is read only if it is inside the folder.

use crate::model::ProcessLabel;
use crate::plan::Stream;
use crate::report::console::tail::{TailLimits, tail};
use crate::report::job_status::JobStatus;
use crate::report::run_page::{self, RankLog, RankRow, RunRecord};
use crate::run::output::log_files;
use crate::run::record::history::EndedJob;
use crate::sys::clock;
use serde_json::Value;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};
use thiserror::Error;

const EVENTS: &str = "events.jsonl";
/// Bytes of events.jsonl that are read: of a larger file the first line and the end.
const MAX_EVENTS: u64 = 64 << 20;
/// Bytes in which the first lines are looked for.
const MAX_FIRST_LINE: u64 = 1 << 20;
/// Bytes of result.json.
const MAX_RESULT: u64 = 64 << 20;
/// Bytes of log lines on the page, of all ranks and of one.
const MAX_LINES: usize = 8 << 20;
const LINES_OF_RANK: std::ops::RangeInclusive<usize> = 1024..=16 * 1024;

/// Why a run cannot be read.
#[derive(Debug, Error)]
pub enum JobFolderError {
    #[error("there is no folder {}; give the log folder of a job (its --log_dir; ./log by default)", .0.display())]
    NoFolder(PathBuf),
    #[error(
        "{} has no records of a job, neither {} nor {EVENTS}; give the log folder of a job (its --log_dir; ./log by default)",
        .0.display(), log_files::RESULT
    )]
    NoRecords(PathBuf),
    #[error("{job}; its logs were not kept: rlaunch-run keeps them with --log-dir")]
    NotKept { job: String },
    #[error("{job}; its records are no more in {}, or a later job has written there", .folder.display())]
    Gone { job: String, folder: PathBuf },
    #[error("cannot read {}: {}; run this command as the user of the job", .0.display(), log_files::plain(.1))]
    Unreadable(PathBuf, #[source] io::Error),
    #[error("cannot read {}: it is not a regular file; remove it", .0.display())]
    NotARecord(PathBuf),
}

/// The folders of a run.
#[derive(Debug)]
pub struct JobFolder {
    /// The log folder, without links.
    pub logs: PathBuf,
    /// The folder with the launcher's records.
    pub records: PathBuf,
    /// The number of older runs beside it in the folder that was named.
    pub others: usize,
}

impl JobFolder {
    /// The run that a log folder, or the folder of records in it, is of; or the latest of those in a folder (`rlaunch-run --log-dir`).
    pub fn find(folder: &Path) -> Result<Self, JobFolderError> {
        let no_folder = |error: io::Error| match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => JobFolderError::NoFolder(folder.to_owned()),
            _ => JobFolderError::Unreadable(folder.to_owned(), error),
        };
        let named = std::fs::canonicalize(folder).map_err(no_folder)?;
        if !named.is_dir() {
            return Err(JobFolderError::NoFolder(folder.to_owned()));
        }
        let inner = named.join(log_files::RECORDS);
        // The names of files in a folder of another user cannot be looked up.
        let is_hidden = || std::fs::read_dir(&inner).is_err_and(|e| e.kind() == io::ErrorKind::PermissionDenied);
        if written(&inner).is_some() || is_hidden() {
            return Ok(Self { logs: named, records: inner, others: 0 });
        }
        if let Some(logs) = named.parent().filter(|_| written(&named).is_some()) {
            return Ok(Self { logs: logs.to_owned(), records: named, others: 0 });
        }
        let entries = std::fs::read_dir(&named).into_iter().flatten().flatten();
        let folders =
            entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())).map(|entry| entry.path());
        let mut runs: Vec<_> =
            folders.filter_map(|logs| Some((written(&logs.join(log_files::RECORDS))?, logs))).collect();
        runs.sort();
        let (_, logs) = runs.pop().ok_or_else(|| JobFolderError::NoRecords(folder.to_owned()))?;
        Ok(Self { records: logs.join(log_files::RECORDS), logs, others: runs.len() })
    }

    /// No other job has written its records here. Records without the start of a job may be of any.
    pub fn may_be_of(&self, job: &EndedJob) -> bool {
        let Ok(Some((file, _))) = open(&self.records.join(EVENTS)) else { return true };
        // Several nodes of a job may share the file.
        let lines = BufReader::new(file.take(MAX_FIRST_LINE)).split(b'\n').map_while(Result::ok);
        let events = lines.filter_map(|line| serde_json::from_slice::<Value>(&line).ok());
        let mut starts = events.filter(|event| event["event"] == "job_started").peekable();
        // In containers, the first processes of all jobs have the same ids.
        let end = clock::utc(Duration::try_from_secs_f64(job.ended).unwrap_or_default());
        let is_in_time = |event: &Value| event["time"].as_str().is_none_or(|time| time <= &*end);
        starts.peek().is_none()
            || starts.any(|event| {
                event["supervisor"] == job.supervisor && event["host"] == job.host.as_str() && is_in_time(&event)
            })
    }

    /// The records, and what is wrong with them.
    pub fn read(&self) -> Result<(RunRecord, Vec<String>), JobFolderError> {
        read_records(self)
    }

    /// The ends of the logs that exist.
    pub fn logs_of(&self, record: &RunRecord, running: Option<&JobStatus>) -> Vec<RankLog> {
        let rows = run_page::rank_rows(record);
        let bytes = (MAX_LINES / rows.len().max(1)).clamp(*LINES_OF_RANK.start(), *LINES_OF_RANK.end());
        let limits = TailLimits { bytes, ..TailLimits::default() };
        let read = |row| read_log(self, row, &places_of_log(self, row, record, running), limits);
        rows.iter().filter_map(read).collect()
    }

    /// The ends of the logs of the ranks that failed first in the attempts that others followed, by attempt.
    pub fn logs_of_failures(&self, record: &RunRecord) -> BTreeMap<usize, RankLog> {
        let rows = run_page::rank_rows(record);
        let limits = TailLimits { lines: 40, ..TailLimits::default() };
        let failures = record.failures();
        let read = |(attempt, label): (usize, ProcessLabel)| {
            let row = rows.iter().find(|row| row.label == label)?;
            let last = places_of_log(self, row, record, None);
            let places: Vec<PathBuf> = last.iter().flat_map(|log| self.places_in_attempt(log, attempt)).collect();
            Some((attempt, read_log(self, row, &places, limits)?))
        };
        failures.filter_map(read).collect()
    }

    /// Where the log of an attempt before the last one may be, by the path of the last one.
    fn places_in_attempt(&self, last: &Path, attempt: usize) -> Vec<PathBuf> {
        let inside = last.strip_prefix(&self.logs).unwrap_or(last);
        let is_attempt = |part: &OsStr| part.as_encoded_bytes().starts_with(b"attempt_");
        let rename =
            |part: &OsStr| if is_attempt(part) { format!("attempt_{attempt}").into() } else { part.to_owned() };
        if inside.iter().any(is_attempt) {
            return vec![self.logs.join(inside.iter().map(rename).collect::<PathBuf>())];
        }
        let name = inside.file_name().unwrap_or_default();
        vec![self.records.join(format!("attempt-{attempt}")).join(name)]
    }

    /// The files that hold the output of a rank in its last attempt.
    pub fn files_of(&self, row: &RankRow, record: &RunRecord) -> Vec<PathBuf> {
        let found =
            places_of_log(self, row, record, None).into_iter().find_map(|path| std::fs::canonicalize(path).ok());
        let Some(log) = found.filter(|log| log.starts_with(&self.logs) && log.is_file()) else { return Vec::new() };
        // Streams that were logged apart are files of one folder.
        let streams = [Stream::Stdout, Stream::Stderr].map(|stream| log.with_file_name(stream.log()));
        let is_file = |path: &Path| path.symlink_metadata().is_ok_and(|data| data.is_file());
        let is_one = streams.contains(&log);
        if is_one { streams.into_iter().filter(|path| is_file(path)).collect() } else { vec![log] }
    }
}

/// When the records in a folder were written last, as its file server says; `None`: it has none.
fn written(records: &Path) -> Option<SystemTime> {
    let time = |name| records.join(name).metadata().and_then(|data| data.modified()).ok();
    [log_files::RESULT, EVENTS].into_iter().filter_map(time).max()
}

/// The records, and what is wrong with them.
fn read_records(run: &JobFolder) -> Result<(RunRecord, Vec<String>), JobFolderError> {
    let (mut record, mut notes) = (RunRecord::default(), Vec::new());
    match open(&run.records.join(EVENTS))? {
        None => notes.push(format!("{EVENTS} is missing, so there is no timeline.")),
        Some((file, path)) => {
            let note = read_events(file, &mut record).map_err(|error| JobFolderError::Unreadable(path, error))?;
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
        file.take(MAX_RESULT).read_to_end(&mut text).map_err(|error| JobFolderError::Unreadable(path, error))?;
        match run_page::document(&text) {
            Ok(result) => record.set_result(result),
            Err(error) => notes.push(format!("{} is damaged and was skipped: {error}.", log_files::RESULT)),
        }
    }
    if record.is_empty() { Err(JobFolderError::NoRecords(run.records.clone())) } else { Ok((record, notes)) }
}

/// A regular file; `None`: there is none of this name.
fn open(path: &Path) -> Result<Option<(File, PathBuf)>, JobFolderError> {
    // O_NONBLOCK: a FIFO of that name is refused instead of waited for.
    let opened = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path);
    let is_file = |file: &File| file.metadata().map(|data| data.is_file());
    match opened.and_then(|file| Ok((is_file(&file)?, file))) {
        Ok((true, file)) => Ok(Some((file, path.to_owned()))),
        Ok((false, _)) => Err(JobFolderError::NotARecord(path.to_owned())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(JobFolderError::Unreadable(path.to_owned(), error)),
    }
}

/// Adds the events of a file to the record. Returns a note if some were left out.
fn read_events(mut file: File, record: &mut RunRecord) -> io::Result<Option<String>> {
    let length = file.metadata()?.len();
    if length <= MAX_EVENTS {
        add_lines(BufReader::new(file.take(length)), record)?;
        return Ok(None);
    }
    let mut first = Vec::new();
    BufReader::new((&file).take(MAX_FIRST_LINE)).read_until(b'\n', &mut first)?;
    record.add_line(&first);
    file.seek(SeekFrom::Start(length - MAX_EVENTS))?;
    let mut rest = BufReader::new(file.take(MAX_EVENTS));
    rest.skip_until(b'\n')?;
    add_lines(rest, record)?;
    let (megabytes, read) = (length >> 20, MAX_EVENTS >> 20);
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

/// Where the log of a rank may be.
fn places_of_log(run: &JobFolder, row: &RankRow, record: &RunRecord, running: Option<&JobStatus>) -> Vec<PathBuf> {
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
fn read_log(run: &JobFolder, row: &RankRow, places: &[PathBuf], limits: TailLimits) -> Option<RankLog> {
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
