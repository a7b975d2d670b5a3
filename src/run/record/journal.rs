//! The journal: writes `LOG_DIR/rlaunch/events.jsonl`, one JSON object for each event, and `result.json`. Schemas:
//! `docs/events.schema.json` and `docs/result.schema.json`. Version 1; later versions may add fields.

use crate::model::ProcessLabel;
use crate::run::output::log_files;
use crate::run::record::journal_event::JournalEvent;
use crate::spec::SpecError;
use crate::supervise::{AbortReason, NoRestart, ProgressNote};
use crate::sys::clock;
use crate::sys::io::fd;
use crate::sys::process::pidfd;
use crate::sys::random;
use serde::Serialize;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;
use thiserror::Error;
use tracing::warn;

/// The schema version of both files.
pub const VERSION: u32 = 1;
/// How often, and at what interval, a lock is tried that another launcher of the job may have for a moment.
const SHARED_TRIES: u32 = 10;
const SHARED_PAUSE: Duration = Duration::from_millis(10);

#[derive(Serialize)]
struct JournalLine<'a> {
    version: u32,
    sequence: u64,
    /// RFC 3339, UTC.
    time: String,
    /// Seconds on the monotonic clock.
    monotonic: f64,
    #[serde(flatten)]
    what: &'a JournalEvent<'a>,
}

/// Bytes of events that wait for room on a full disk. Later ones are dropped: the sequence numbers of the next ones show it.
const MAX_WAITING: usize = 1 << 20;
/// Time between two writes to a full disk.
const RETRY: Duration = Duration::from_secs(1);

/// The journal of events. While its disk is full, events wait; another write error ends the journal. Both cause a warning and do
/// not affect the job.
#[derive(Debug, Default)]
pub struct Journal {
    events: Option<File>,
    path: PathBuf,
    /// The length of the file up to its last complete line.
    length: u64,
    /// Whether no other launcher writes to the file.
    is_alone: bool,
    sequence: u64,
    /// Complete lines that have not been written yet.
    unwritten: Vec<u8>,
    /// When it is written again, while its disk is full.
    retry_at: Option<Duration>,
}

impl Journal {
    /// Creates the folder in `log_dir` and a new file of events. The file stays locked while it is open, and ranks do not
    /// inherit it: if the launcher of another running job has the lock, its events are kept, and a warning names that job.
    /// `is_shared`: the job may have other launchers. One that uses the same folder keeps its events too, and a warning names it.
    pub fn open(log_dir: &Path, is_shared: bool) -> Result<Self, SpecError> {
        let folder = log_files::records_folder(log_dir)
            .map_err(|e| log_files::unusable(&log_dir.join(log_files::RECORDS), &e))?;
        let path = folder.join("events.jsonl");
        let unusable = |e: io::Error| log_files::unusable(&path, &e);
        let events = log_files::open(&path, false).map_err(unusable)?;
        // Other errors: some network file systems have no locks, or no shared lock of a file that is open for writing only.
        let is_taken =
            |is_shared| fd::try_lock(&events, is_shared).is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock);
        let is_in_use = is_taken(false);
        if !is_in_use {
            // A device has no length. While the lock is exclusive: no other launcher has written anything.
            drop(events.set_len(0));
        }
        // A shared lock replaces an exclusive one (flock(2)), which another launcher of the job may have for a moment.
        let can_share = || {
            (0..SHARED_TRIES).any(|tried| {
                if tried > 0 {
                    pidfd::await_any(&[], SHARED_PAUSE);
                }
                !is_taken(true)
            })
        };
        let is_another_jobs = !is_shared || !can_share();
        if is_in_use {
            let mut line = String::new();
            let _ = File::open(&path).and_then(|file| BufReader::new(file).read_line(&mut line));
            let other = describe_job(&line);
            let folder = log_dir.display();
            let advice = match is_another_jobs {
                true => "the logs and results of both jobs mix; give each job its own --log_dir",
                false => {
                    "if that is another node of this job, the logs of both nodes mix; give each node its own --log_dir"
                }
            };
            warn!("the log folder {folder} is in use by {other}: {advice}");
        }
        let length = events.metadata().map_err(unusable)?.len();
        Ok(Self { events: Some(events), path, length, is_alone: !is_shared && !is_in_use, ..Self::default() })
    }

    /// Writes one event.
    pub fn write(&mut self, what: JournalEvent<'_>) {
        self.write_later(what);
        self.flush();
    }

    /// Notes one event, with the present time. The event loop sends signals to ranks before it writes anything: the disk may be
    /// slow.
    pub fn write_later(&mut self, what: JournalEvent<'_>) {
        let line = JournalLine {
            version: VERSION,
            sequence: self.sequence,
            time: clock::utc_timestamp(),
            monotonic: clock::now().as_secs_f64(),
            what: &what,
        };
        self.sequence += 1;
        // A line has no map with keys that are not text, the only thing that JSON cannot express.
        if let Ok(text) = serde_json::to_vec(&line)
            && (self.retry_at.is_none() || self.unwritten.len() + text.len() < MAX_WAITING)
        {
            self.unwritten.extend(text);
            self.unwritten.push(b'\n');
        }
    }

    /// Writes the events that have been noted.
    pub fn flush(&mut self) {
        if self.retry_at.is_none_or(|at| at <= clock::now()) {
            self.write_now();
        }
    }

    /// Writes the last events of a job. If the disk is full, they are missing in the file.
    pub fn write_last(&mut self, what: JournalEvent<'_>) {
        self.write_later(what);
        self.write_now();
    }

    fn write_now(&mut self) {
        let Some(file) = self.events.as_mut().filter(|_| !self.unwritten.is_empty()) else {
            return self.unwritten.clear();
        };
        match file.write_all(&self.unwritten) {
            Ok(()) => {
                self.length += self.unwritten.len() as u64;
                self.unwritten.clear();
                self.retry_at = None;
            }
            Err(error) => {
                // Removes the incomplete lines, which readers could not parse. Other launchers' lines may follow them.
                let may_wait = self.is_alone && file.set_len(self.length).is_ok() && log_files::has_no_room(&error);
                let (path, why) = (self.path.display(), log_files::plain(&error));
                match may_wait {
                    true if self.retry_at.is_none() => warn!("cannot write {path} for now: {why}; it is tried again"),
                    true => {}
                    false => {
                        warn!("cannot write {path} any more: {why}");
                        self.events = None;
                        self.unwritten.clear();
                    }
                }
                self.retry_at = may_wait.then(|| clock::now().saturating_add(RETRY));
            }
        }
    }

    /// Notes a progress note of the supervisor. `message`: the error before a restart; `label`: the label of a local rank.
    pub fn write_note(&mut self, note: &ProgressNote, message: &str, label: impl Fn(usize) -> ProcessLabel) {
        let numbers = |living: &[usize]| living.iter().map(|l| label(*l).number).collect();
        let roles = |living: &[usize]| living.iter().map(|l| label(*l).role).collect();
        self.write_later(match note {
            ProgressNote::Finishing { living } => {
                JournalEvent::Finishing { living: numbers(living), living_roles: roles(living) }
            }
            ProgressNote::AwaitingServers { living, limit } => JournalEvent::AwaitingServers {
                living: numbers(living),
                living_roles: roles(living),
                limit_seconds: limit.map(|limit| limit.as_secs_f64()),
            },
            ProgressNote::Stopping { signal, living, .. } => {
                JournalEvent::Stopping { signal: *signal, living: numbers(living), living_roles: roles(living) }
            }
            ProgressNote::Forced { living } => {
                JournalEvent::Forced { living: numbers(living), living_roles: roles(living) }
            }
            // The reports of these are events.
            ProgressNote::Aborting { reason: AbortReason::Hang { .. } | AbortReason::StuckExit(_), .. } => return,
            ProgressNote::Aborting { ranks, reason: AbortReason::Straggler { first, limit } } => {
                JournalEvent::Stragglers {
                    living: numbers(ranks),
                    living_roles: roles(ranks),
                    first: label(*first).number,
                    first_role: label(*first).role,
                    limit_seconds: limit.as_secs_f64(),
                }
            }
            ProgressNote::Killing { living } | ProgressNote::AbortIgnored { living } => {
                JournalEvent::Killing { living: numbers(living), living_roles: roles(living) }
            }
            ProgressNote::Unkillable { living } => {
                JournalEvent::Unkillable { living: numbers(living), living_roles: roles(living) }
            }
            ProgressNote::Restarting { attempt, restart, of, culprit, delay } => JournalEvent::Restarting {
                attempt: *attempt,
                restart: *restart,
                of: *of,
                culprit: label(culprit.local_rank).number,
                culprit_role: label(culprit.local_rank).role,
                exit: culprit.exit,
                message: message.to_owned(),
                delay_seconds: delay.as_secs_f64(),
            },
            ProgressNote::RestartRequested { attempt, living, grace } => JournalEvent::RestartRequested {
                attempt: *attempt,
                living: numbers(living),
                living_roles: roles(living),
                grace_seconds: grace.as_secs_f64(),
            },
            ProgressNote::NotRestarting { why } => JournalEvent::NotRestarting { why: word(*why) },
        });
    }
}

/// The job whose journal begins with this line.
fn describe_job(first_line: &str) -> String {
    let event: serde_json::Value = serde_json::from_str(first_line).unwrap_or_default();
    match (event["job_id"].as_str(), event["supervisor"].as_u64(), event["host"].as_str()) {
        (Some(job), Some(pid), Some(host)) => format!("another running job (job id {job}, pid {pid} on {host})"),
        // Its launcher has not written the line yet.
        _ => "another running job".into(),
    }
}

/// The word of the schema for why no restart followed.
fn word(why: NoRestart) -> &'static str {
    match why {
        NoRestart::Never(_) => "never_listed",
        NoRestart::NotListed(_) => "not_listed",
        NoRestart::SameFailure(_) => "same_failure",
        NoRestart::UsedUp(_) => "used_up",
        NoRestart::StartFailed => "start_failed",
        NoRestart::Stopped => "stopped",
        NoRestart::LauncherKilled => "front_lost",
        NoRestart::Unkillable => "unkillable",
    }
}

/// Why `result.json` is not where it should be.
#[derive(Debug, Error)]
pub enum ResultNotWritten {
    /// It is in another folder.
    #[error("cannot write {}: {}; it is in {} instead", .path.display(), log_files::plain(.source), .elsewhere.display())]
    Elsewhere {
        /// Where it should be.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
        /// Where it is.
        elsewhere: PathBuf,
    },
    /// It is nowhere.
    #[error(
        "cannot write {}: {}; nor can {} be written: {}",
        .path.display(), log_files::plain(.source), .elsewhere.display(), log_files::plain(.other)
    )]
    Nowhere {
        /// Where it should be.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
        /// The other place that was tried.
        elsewhere: PathBuf,
        /// The error there.
        other: io::Error,
    },
}

/// Writes `result.json` atomically; if that fails (a full disk), to a file in the system's folder for temporary files.
pub fn write_result(log_dir: &Path, result: &impl Serialize) -> Result<(), ResultNotWritten> {
    let mut text = serde_json::to_string_pretty(result).unwrap_or_default();
    text.push('\n');
    let path = log_dir.join(log_files::RECORDS).join(log_files::RESULT);
    let Err(source) = log_files::records_folder(log_dir).and_then(|_| log_files::replace(&path, &text)) else {
        return Ok(());
    };
    let key: String = random::alphanumeric(8);
    let elsewhere = std::env::temp_dir().join(format!("rlaunch-result-{key}.json"));
    Err(match log_files::replace(&elsewhere, &text) {
        Ok(()) => ResultNotWritten::Elsewhere { path, source, elsewhere },
        Err(other) => ResultNotWritten::Nowhere { path, source, elsewhere, other },
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Role;

    #[test]
    fn another_job_is_described_by_the_first_line_of_its_journal() {
        let job = JournalEvent::JobStarted { job_id: "a", host: "b", ranks: 1, supervisor: 7, argv: Vec::new() };
        let line = JournalLine { version: VERSION, sequence: 0, time: String::new(), monotonic: 0.0, what: &job };
        let line = serde_json::to_string(&line).unwrap();
        assert_eq!(describe_job(&line), "another running job (job id a, pid 7 on b)");
        for incomplete in ["", "{}", &line[..line.len() / 2]] {
            assert_eq!(describe_job(incomplete), "another running job");
        }
    }

    #[test]
    fn events_for_later_are_written_in_order_with_the_next() {
        let folder = std::env::temp_dir().join(format!("rlaunch-journal-{}", std::process::id()));
        std::fs::create_dir(&folder).unwrap();
        let mut journal = Journal::open(&folder, false).unwrap();
        let lines = || std::fs::read_to_string(folder.join(log_files::RECORDS).join("events.jsonl")).unwrap();
        journal.write_later(JournalEvent::Signal { signal: 2, origin: "signal", request: None });
        assert_eq!(lines(), "");
        journal.write(JournalEvent::FrontLost);
        let events: Vec<serde_json::Value> = lines().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let order: Vec<_> = events.iter().map(|event| (&event["sequence"], &event["event"])).collect();
        assert_eq!(serde_json::json!(order), serde_json::json!([[0, "signal"], [1, "front_lost"]]));
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn the_schema_lists_the_words_for_no_restart() {
        let all = [
            NoRestart::Never(1),
            NoRestart::NotListed(1),
            NoRestart::SameFailure(1),
            NoRestart::UsedUp(1),
            NoRestart::StartFailed,
            NoRestart::Stopped,
            NoRestart::LauncherKilled,
            NoRestart::Unkillable,
        ];
        let schema: serde_json::Value = serde_json::from_str(include_str!("../../../docs/events.schema.json")).unwrap();
        let words = &schema["$defs"]["not_restarting"]["properties"]["why"]["enum"];
        assert_eq!(*words, serde_json::json!(all.map(word)));
    }

    #[test]
    fn the_schema_describes_the_finishing_event() {
        let schema: serde_json::Value = serde_json::from_str(include_str!("../../../docs/events.schema.json")).unwrap();
        let said = serde_json::to_value(JournalEvent::Finishing { living: vec![0], living_roles: vec![Role::Server] })
            .unwrap();
        let event = schema["$defs"][said["event"].as_str().unwrap()].as_object().unwrap();
        assert_eq!(event["properties"]["event"]["const"], said["event"]);
        assert!(event["required"].as_array().unwrap().iter().all(|field| said.get(field.as_str().unwrap()).is_some()));
    }
}
