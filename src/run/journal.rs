//! What happened, for programs: `LOG_DIR/rlaunch/events.jsonl`, a line a change, and `result.json`, the
//! end. Schemas: `docs/events.schema.json` and `docs/result.schema.json`. Version 1; fields may be added.

use super::logs;
use crate::model::exit::signal_name;
use crate::model::{Exit, Role, Who};
use crate::spec::SpecError;
use crate::supervise::{NoRestart, Note};
use crate::sys::clock;
use serde::Serialize;
use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use tracing::warn;

/// The version of both files' schemas.
pub const VERSION: u32 = 1;

/// How a process ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Ending {
    /// With this code.
    Code(i32),
    /// By this signal.
    Signal {
        /// Its number.
        number: i32,
        /// Its name, if it has one.
        name: Option<&'static str>,
    },
    /// Its status is not known: somebody else collected it, or who was to is gone.
    Unknown,
}

impl From<Exit> for Ending {
    fn from(exit: Exit) -> Self {
        match exit {
            Exit::Code(code) => Ending::Code(code),
            Exit::Signal(number) => Ending::Signal { number, name: signal_name(number) },
            Exit::Lost => Ending::Unknown,
        }
    }
}

/// One change of state. `rank` is global, among those of its role; `local_rank` this node's.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
#[expect(missing_docs, reason = "the schema describes each field")]
pub enum What<'a> {
    JobStarted {
        job_id: &'a str,
        host: &'a str,
        ranks: usize,
        supervisor: u32,
        argv: Vec<String>,
    },
    ZygoteReady {
        pid: i32,
        seconds: f64,
        modules: &'a [String],
    },
    RankStarted {
        role: Role,
        rank: usize,
        local_rank: usize,
        attempt: u32,
        pid: i32,
    },
    RankNotStarted {
        role: Role,
        rank: usize,
        local_rank: usize,
        attempt: u32,
        why: &'a str,
    },
    RankEnded {
        role: Role,
        rank: usize,
        local_rank: usize,
        attempt: u32,
        pid: i32,
        exit: Ending,
        swept: usize,
        peak_memory_bytes: u64,
    },
    Signal {
        signal: i32,
    },
    FrontLost,
    Finishing {
        living: Vec<usize>,
        living_roles: Vec<Role>,
    },
    Stopping {
        signal: i32,
        living: Vec<usize>,
        living_roles: Vec<Role>,
    },
    Forced {
        living: Vec<usize>,
        living_roles: Vec<Role>,
    },
    Killing {
        living: Vec<usize>,
        living_roles: Vec<Role>,
    },
    Unkillable {
        living: Vec<usize>,
        living_roles: Vec<Role>,
    },
    Restarting {
        attempt: u32,
        of: u32,
        culprit: usize,
        culprit_role: Role,
        exit: Ending,
        delay_seconds: f64,
    },
    NotRestarting {
        why: &'static str,
    },
    RoundStarted {
        round: u64,
        attempt: u32,
        node: usize,
        nnodes: usize,
        world_size: usize,
        first_rank: usize,
    },
    RoundEnded {
        round: u64,
        outcome: &'a str,
        why: Option<&'a str>,
    },
    JobEnded {
        outcome: &'a str,
        exit_status: i32,
    },
}

#[derive(Serialize)]
struct Line<'a> {
    version: u32,
    sequence: u64,
    /// RFC 3339, UTC.
    time: String,
    /// Seconds on the monotonic clock.
    monotonic: f64,
    #[serde(flatten)]
    what: &'a What<'a>,
}

/// The folder of the job's own records. A disk that is full, or gone, ends nothing: then nothing more is
/// written.
#[derive(Debug, Default)]
pub struct Journal {
    events: Option<File>,
    /// Its length, whole lines all of it.
    length: u64,
    sequence: u64,
}

impl Journal {
    /// Opens the folder in `log_dir`, and begins a new file of events.
    pub fn open(log_dir: &Path) -> Result<Self, SpecError> {
        let folder = logs::own_folder(log_dir).map_err(|e| logs::refused(&log_dir.join(logs::OWN), &e))?;
        let path = folder.join("events.jsonl");
        let events = logs::open(&path, true).map_err(|e| logs::refused(&path, &e))?;
        Ok(Self { events: Some(events), length: 0, sequence: 0 })
    }

    /// Writes one line.
    pub fn write(&mut self, what: What<'_>) {
        let Some(file) = &mut self.events else { return };
        let line = Line {
            version: VERSION,
            sequence: self.sequence,
            time: clock::utc_timestamp(),
            monotonic: clock::now().as_secs_f64(),
            what: &what,
        };
        self.sequence += 1;
        let written = serde_json::to_vec(&line).map_err(io::Error::from).and_then(|mut text| {
            text.push(b'\n');
            file.write_all(&text).map(|()| text.len() as u64)
        });
        match written {
            Ok(more) => self.length += more,
            Err(error) => {
                warn!("events.jsonl cannot be written any more: {}", logs::plain(&error));
                // Half a line would spoil the file for whoever reads it.
                let _ = file.set_len(self.length);
                self.events = None;
            }
        }
    }

    /// Writes what the supervisor said; `who` knows a process by its number on this node.
    pub fn note(&mut self, note: &Note, who: impl Fn(usize) -> Who) {
        let all = |living: &[usize]| living.iter().map(|l| who(*l).number).collect();
        let roles = |living: &[usize]| living.iter().map(|l| who(*l).role).collect();
        self.write(match note {
            Note::Finishing { living } => What::Finishing { living: all(living), living_roles: roles(living) },
            Note::Stopping { signal, living } => {
                What::Stopping { signal: *signal, living: all(living), living_roles: roles(living) }
            }
            Note::Forced { living } => What::Forced { living: all(living), living_roles: roles(living) },
            Note::Killing { living } => What::Killing { living: all(living), living_roles: roles(living) },
            Note::Unkillable { living } => What::Unkillable { living: all(living), living_roles: roles(living) },
            Note::Restarting { attempt, of, culprit, exit, delay } => What::Restarting {
                attempt: *attempt,
                of: *of,
                culprit: who(*culprit).number,
                culprit_role: who(*culprit).role,
                exit: (*exit).into(),
                delay_seconds: delay.as_secs_f64(),
            },
            Note::NotRestarting { why } => What::NotRestarting { why: word(*why) },
        });
    }
}

/// The one word for why no restart followed; those of the schema.
fn word(why: NoRestart) -> &'static str {
    match why {
        NoRestart::Never(_) => "never_listed",
        NoRestart::NotListed(_) => "not_listed",
        NoRestart::SameFailure(_) => "same_failure",
        NoRestart::UsedUp(_) => "used_up",
        NoRestart::StartFailed => "start_failed",
        NoRestart::Stopped => "stopped",
        NoRestart::HostLost => "front_lost",
        NoRestart::Unkillable => "unkillable",
    }
}

/// Writes `result.json`, whole or not at all.
pub fn conclude(log_dir: &Path, result: &impl Serialize) -> io::Result<()> {
    let mut text = serde_json::to_string_pretty(result).map_err(io::Error::from)?;
    text.push('\n');
    logs::replace(&logs::own_folder(log_dir)?.join(logs::RESULT), &text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_schema_has_the_words_for_no_restart_and_no_others() {
        let all = [
            NoRestart::Never(1),
            NoRestart::NotListed(1),
            NoRestart::SameFailure(1),
            NoRestart::UsedUp(1),
            NoRestart::StartFailed,
            NoRestart::Stopped,
            NoRestart::HostLost,
            NoRestart::Unkillable,
        ];
        let schema: serde_json::Value = serde_json::from_str(include_str!("../../docs/events.schema.json")).unwrap();
        let words = &schema["$defs"]["not_restarting"]["properties"]["why"]["enum"];
        assert_eq!(*words, serde_json::json!(all.map(word)));
    }

    #[test]
    fn the_schema_has_the_end_of_the_servers() {
        let schema: serde_json::Value = serde_json::from_str(include_str!("../../docs/events.schema.json")).unwrap();
        let said = serde_json::to_value(What::Finishing { living: vec![0], living_roles: vec![Role::Server] }).unwrap();
        let event = schema["$defs"][said["event"].as_str().unwrap()].as_object().unwrap();
        assert_eq!(event["properties"]["event"]["const"], said["event"]);
        assert!(event["required"].as_array().unwrap().iter().all(|field| said.get(field.as_str().unwrap()).is_some()));
    }
}
