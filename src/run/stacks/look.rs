//! What the reader process does: looks at the ranks' logs, reads their stacks, and compares them with those of a moment later.

use super::output_mark::{OutputMark, OutputSeen};
use crate::model::plain_text::escape;
use crate::net::thread;
use crate::probe::stacks;
use crate::report::stacks::{RankStacks, StackDump};
use crate::run::output::log_files;
use crate::sys::process::procfs::snapshot::Snapshot;
use crate::sys::process::procfs::stat::ticks_per_second;
use crate::sys::process::{pidfd, procfs};
use crate::sys::{clock, random};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Bytes at the end of a log in which its last line is looked for.
const TAIL: u64 = 4096;
/// How many dumps are made, more or less, where one takes no time. Of two dumps of a job that made 20 steps a second, 9 of 56 were equal
/// (torch, 3 ranks on 2 CPUs): most time goes by in few lines.
const DUMPS: u32 = 11;
/// How many there are at least, however long one takes.
const FEWEST_DUMPS: u32 = 4;
/// Characters of that line that are kept.
const LONGEST_LINE: usize = 200;

/// How long a look at the logs of all ranks may take before it goes on without them: their folder may hang.
pub const LOGS_PATIENCE: Duration = Duration::from_secs(1);

/// A rank to look at.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RankTarget {
    /// Its number on this node.
    pub local_rank: usize,
    /// Its process id.
    pub pid: i32,
    /// The start time of this process, in clock ticks since boot.
    pub started: u64,
    /// The files that its output goes to.
    pub logs: Vec<PathBuf>,
    /// A file whose time `rlaunch.heartbeat()` renews; it counts as output, but not in what people are shown.
    #[serde(default)]
    pub heartbeat: Option<PathBuf>,
    /// Whether all its output goes to these files. If not, what its processes write anywhere counts as output.
    pub all_seen: bool,
    /// What was seen of its output by the looks before.
    #[serde(default)]
    pub seen: Option<OutputSeen>,
}

impl RankTarget {
    /// A rank all of whose output goes to these files. `started`: in clock ticks since boot.
    pub fn new(local_rank: usize, (pid, started): (i32, u64), logs: Vec<PathBuf>) -> Self {
        Self { local_rank, pid, started, logs, heartbeat: None, all_seen: true, seen: None }
    }

    /// Seconds since its start.
    fn lived_seconds(&self) -> f64 {
        clock::boot().as_secs_f64() - self.started as f64 / ticks_per_second() as f64
    }
}

/// The output of each rank at a look, by local rank.
pub type OutputMarks = BTreeMap<usize, OutputMark>;

/// What the reader process is asked.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct StackRequest {
    /// The ranks.
    pub ranks: Vec<RankTarget>,
    /// Whether the job hangs is in question; `None`: only the stacks are wanted.
    pub hang: Option<HangQuestion>,
}

/// When a job counts as one that stands still.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct HangQuestion {
    /// Seconds for which no rank has written anything.
    pub silent_seconds: f64,
    /// Seconds for which the stacks are watched.
    pub watched_seconds: f64,
    /// Whether the main program of the rank has ended.
    #[serde(default)]
    pub is_exiting: bool,
}

/// What the reader process answers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum StackAnswer {
    /// The stacks.
    Stacks(StackDump),
    /// A rank has written something so many seconds ago, or may have.
    NotSilent {
        /// The seconds.
        seconds: f64,
        /// The output of each rank.
        marks: OutputMarks,
    },
    /// All ranks are silent, and the stack of one has moved.
    Moved,
    /// All ranks have been silent, and no stack has moved.
    Still {
        /// Seconds since a rank has written something.
        seconds: f64,
        /// Seconds for which the stacks were watched.
        watched: f64,
        /// The stacks.
        dump: StackDump,
    },
}

/// Answers a request. Takes as long as the request says that stacks are watched, or longer where there are many processes.
pub fn answer(request: &StackRequest) -> StackAnswer {
    let Some(hang) = &request.hang else { return StackAnswer::Stacks(dump(&request.ranks)) };
    let marks = marks(&request.ranks);
    let silence = |rank: &RankTarget| match (&rank.seen, marks.get(&rank.local_rank)) {
        (Some(seen), Some(now)) if seen.mark == *now => seen.at_least,
        // It has written something since it was last looked at, or was not looked at yet.
        _ => 0.0,
    };
    let silent = request.ranks.iter().map(silence).fold(f64::INFINITY, f64::min);
    if silent < hang.silent_seconds {
        return StackAnswer::NotSilent { seconds: silent, marks };
    }
    let began = clock::now();
    let first = dump(&request.ranks);
    let mut last = first.clone();
    let (mut dumps, mut random) = (1, random::rng());
    let watched = || (clock::now() - began).as_secs_f64();
    while dumps < FEWEST_DUMPS || watched() < hang.watched_seconds {
        // At random times: a program may be at the same place every half second.
        let pause = hang.watched_seconds / f64::from(DUMPS) * (0.5 + random.f64());
        pidfd::await_any(&[], Duration::from_secs_f64(pause));
        last = dump(&request.ranks);
        dumps += 1;
        let has_moved = if hang.is_exiting { last.has_moved_at_exit(&first) } else { last.has_moved(&first) };
        if has_moved {
            return StackAnswer::Moved;
        }
    }
    last.note_cpu_use(&first);
    let now = self::marks(&request.ranks);
    if now != marks {
        return StackAnswer::NotSilent { seconds: 0.0, marks: now };
    }
    StackAnswer::Still { seconds: silent + watched(), watched: watched(), dump: last }
}

/// The output of the ranks at present. What their processes have written counts where not all of it is seen (proc_pid_io(5), wchar).
fn marks(ranks: &[RankTarget]) -> OutputMarks {
    let all = if ranks.iter().all(|rank| rank.all_seen) { Snapshot::default() } else { Snapshot::take() };
    let of = |pid: i32| -> Option<u64> {
        let text = String::from_utf8(procfs::read(pid, "io").ok()?).ok()?;
        text.lines().find_map(|line| line.strip_prefix("wchar:"))?.trim().parse().ok()
    };
    let mark = |rank: &RankTarget| {
        let written = (!rank.all_seen).then(|| all.trees([rank.pid]).into_iter().filter_map(of).sum());
        (rank.local_rank, OutputMark::new(rank.logs.iter().chain(&rank.heartbeat), written))
    };
    ranks.iter().map(mark).collect()
}

fn dump(ranks: &[RankTarget]) -> StackDump {
    let logs: Vec<Vec<PathBuf>> = ranks.iter().map(|rank| rank.logs.clone()).collect();
    let last_output = move || logs.iter().map(|logs| (silent_seconds(logs), last_line(logs))).collect::<Vec<_>>();
    let mut last_output = thread::within(LOGS_PATIENCE, last_output).unwrap_or_default().into_iter();
    let all = Snapshot::take();
    let read = |rank: &RankTarget| {
        let (mut silent_seconds, mut last_line) = last_output.next().unwrap_or_default();
        match &rank.seen {
            Some(seen) if seen.at_most.is_some() => {
                silent_seconds = silent_seconds.map(|by_clock| seen.limit(by_clock))
            }
            // An earlier job with the same log folder has written it.
            _ if silent_seconds.is_some_and(|silent| silent > rank.lived_seconds()) => {
                (silent_seconds, last_line) = (None, None);
            }
            _ => {}
        }
        let processes = stacks::read_tree(&all, rank.pid, rank.started);
        RankStacks { local_rank: rank.local_rank, processes, silent_seconds, last_line }
    };
    StackDump { ranks: ranks.iter().map(read).collect() }
}

/// Seconds since one of these files was written to, by the clocks of this machine and of the file server; `None`: none can be read.
pub fn silent_seconds(logs: &[PathBuf]) -> Option<f64> {
    let written = |log: &PathBuf| {
        let data = std::fs::metadata(log).ok()?;
        Some(Duration::new(u64::try_from(data.mtime()).ok()?, u32::try_from(data.mtime_nsec()).ok()?))
    };
    let last = logs.iter().filter_map(written).max()?;
    Some(clock::wall().saturating_sub(last).as_secs_f64())
}

/// The last line of the file that was written to last.
fn last_line(logs: &[PathBuf]) -> Option<String> {
    let mtime = |log: &&PathBuf| std::fs::metadata(log).map(|data| (data.mtime(), data.mtime_nsec())).ok();
    let log: &Path = logs.iter().max_by_key(mtime)?;
    let bytes = log_files::tail(log, 0, TAIL);
    let text = String::from_utf8_lossy(&bytes);
    let line = text.lines().rev().find(|line| !line.trim().is_empty())?;
    // A progress bar: its newest state.
    let line = line.rsplit('\r').find(|state| !state.trim().is_empty())?;
    Some(escape(&line.chars().take(LONGEST_LINE).collect::<String>()))
}
