//! `rlaunch logs`: the last lines of the ranks' logs, and new ones as they come.

use super::client::{Client, INTERVAL};
use super::error::ControlError;
use super::find_jobs::choose_ranks;
use crate::cli::common::startup::print_output;
use crate::report::LineSplitter;
use crate::report::console::escape::ColorPolicy;
use crate::report::console::prefix::{LinePrefix, write_line};
use crate::report::job_status::JobStatus;
use crate::run::output::log_files;
use crate::sys::clock;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How often logs are looked at for new lines.
const TICK: Duration = Duration::from_millis(200);
/// Bytes read of one log before the others have their turn.
const AT_ONCE: u64 = 1 << 20;
/// Bytes at the end of a log in which its last lines are looked for.
const TAIL: u64 = 1 << 20;

/// A log that is followed.
struct FollowedLog {
    prefix: String,
    /// Where the next unread byte is.
    position: u64,
    /// The file, as it may be replaced by another of its name.
    inode: u64,
    splitter: LineSplitter,
}

pub(super) fn show(mut client: Client, ranks: &[usize], lines: usize, follow: bool) -> Result<(), ControlError> {
    let mut status = client.status()?;
    let mut logs: BTreeMap<PathBuf, FollowedLog> = BTreeMap::new();
    for (path, prefix) in chosen(&status, ranks)? {
        logs.insert(path.clone(), begin(&path, prefix, lines));
    }
    let mut asked = clock::now();
    loop {
        if !follow {
            break;
        }
        let mut has_more = false;
        for (path, log) in &mut logs {
            has_more |= log.copy(path);
        }
        if has_more {
            continue;
        }
        if clock::now() - asked > INTERVAL {
            asked = clock::now();
            status = match client.status() {
                Err(ControlError::Gone) => break,
                status => status?,
            };
            // Ranks of a new attempt may have new logs.
            for (path, prefix) in chosen(&status, ranks)? {
                logs.entry(path.clone()).or_insert_with(|| FollowedLog::new(prefix, inode(&path), 0));
            }
        }
        client.await_end(&status, TICK);
    }
    for (path, log) in &mut logs {
        if follow {
            while log.copy(path) {}
        }
        log.finish();
    }
    Ok(())
}

/// The logs of these ranks with the prefix of their lines.
fn chosen(status: &JobStatus, ranks: &[usize]) -> Result<Vec<(PathBuf, String)>, ControlError> {
    let chosen = choose_ranks(status, ranks)?;
    let prefix = |label| if chosen.len() > 1 { LinePrefix::Rank.text(label, &status.host) } else { String::new() };
    Ok(chosen.iter().flat_map(|rank| rank.logs.iter().map(|log| (log.clone(), prefix(rank.label())))).collect())
}

fn inode(path: &Path) -> u64 {
    std::fs::metadata(path).map(|data| data.ino()).unwrap_or_default()
}

/// Prints the last lines of a log, and returns it with the position after them.
fn begin(path: &Path, prefix: String, lines: usize) -> FollowedLog {
    let length = std::fs::metadata(path).map(|data| data.len()).unwrap_or_default();
    let bytes = log_files::tail_until(path, 0, length, TAIL);
    // An unfinished line is continued later.
    let whole = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
    let mut log = FollowedLog::new(prefix, inode(path), length - (bytes.len() - whole) as u64);
    let mut found: Vec<Vec<u8>> = Vec::new();
    LineSplitter::new().feed(&bytes[..whole], |line| found.push(line.to_vec()));
    let first = found.len().saturating_sub(lines);
    let mut text = Vec::new();
    for line in &found[first..] {
        write_line(&mut text, &log.prefix, line, ColorPolicy::Drop);
    }
    print(&text);
    log.splitter = LineSplitter::new();
    log
}

fn print(text: &[u8]) {
    print_output(&String::from_utf8_lossy(text));
}

impl FollowedLog {
    fn new(prefix: String, inode: u64, position: u64) -> Self {
        Self { prefix, position, inode, splitter: LineSplitter::new() }
    }

    /// Prints new whole lines. Whether there may be more.
    fn copy(&mut self, path: &Path) -> bool {
        let Ok(mut file) = File::open(path) else { return false };
        let Ok(data) = file.metadata() else { return false };
        // The log of another attempt, or one that was emptied.
        if data.ino() != self.inode || data.len() < self.position {
            (self.inode, self.position) = (data.ino(), 0);
        }
        let mut bytes = Vec::new();
        if file.seek(SeekFrom::Start(self.position)).is_err() || file.take(AT_ONCE).read_to_end(&mut bytes).is_err() {
            return false;
        }
        self.position += bytes.len() as u64;
        let (mut text, prefix) = (Vec::new(), self.prefix.clone());
        self.splitter.feed(&bytes, |line| write_line(&mut text, &prefix, line, ColorPolicy::Drop));
        print(&text);
        bytes.len() as u64 == AT_ONCE
    }

    /// Prints an unfinished line.
    fn finish(&mut self) {
        if let Some(rest) = self.splitter.finish() {
            let mut text = Vec::new();
            write_line(&mut text, &self.prefix, &rest, ColorPolicy::Drop);
            print(&text);
        }
    }
}
