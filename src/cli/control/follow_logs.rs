//! `rlaunch logs`: the last lines of the ranks' logs, and new ones as they come.

use super::client::{Client, INTERVAL};
use super::ended::job_folder::JobFolder;
use super::error::ControlError;
use super::jobs::find::choose_ranks;
use crate::cli::common::message::print_notice;
use crate::cli::common::startup::print_output;
use crate::model::Role;
use crate::report::LineSplitter;
use crate::report::console::escape::ColorPolicy;
use crate::report::console::prefix::{LinePrefix, write_line};
use crate::report::job_status::JobStatus;
use crate::report::run_page::{self, RankRow};
use crate::report::wording::named;
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
const TAIL: u64 = 16 << 20;

/// A log to show.
struct ShownLog {
    path: PathBuf,
    prefix: String,
    /// Where the output of the present attempt begins.
    start: u64,
}

pub(super) fn show(mut client: Client, ranks: &[usize], lines: usize, follow: bool) -> Result<(), ControlError> {
    let mut status = client.status()?;
    let mut logs: BTreeMap<PathBuf, FollowedLog> = BTreeMap::new();
    if choose_ranks(&status, ranks)?.iter().any(|rank| rank.pid.is_some() && !rank.all_output_logged) {
        print_notice(
            "not all output goes to logs: the rest goes to the job's console (rlaunch run: --tee 3 logs it too)",
        );
    }
    for log in chosen(&status, ranks)? {
        let followed = FollowedLog::begin(&log, lines, follow);
        logs.insert(log.path, followed);
    }
    let mut asked = clock::now();
    if !follow {
        return Ok(());
    }
    loop {
        let has_more = logs.values_mut().map(FollowedLog::copy).filter(|has_more| *has_more).count() > 0;
        if has_more {
            continue;
        }
        if clock::now() - asked > INTERVAL {
            asked = clock::now();
            status = match client.status() {
                Err(ControlError::Gone) => return end(logs),
                status => status?,
            };
            // Ranks of a new attempt may have new logs.
            for log in chosen(&status, ranks)? {
                logs.entry(log.path.clone()).or_insert_with(|| FollowedLog::new(log.path, log.prefix));
            }
        }
        client.await_end(&status, TICK);
    }
}

/// Prints the last lines of the ranks of a job that has ended.
pub(super) fn show_ended(run: &JobFolder, ranks: &[usize], lines: usize) -> Result<(), ControlError> {
    let (record, _) = run.read()?;
    let rows = run_page::rank_rows(&record);
    let is_it = |row: &&RankRow, number: usize| row.label.role == Role::Trainer && row.label.number == number;
    if let Some(rank) = ranks.iter().copied().find(|number| !rows.iter().any(|row| is_it(&row, *number))) {
        let labels: Vec<_> = rows.iter().map(|row| row.label).collect();
        return Err(ControlError::NotARank { rank, has: named(&labels) });
    }
    let chosen: Vec<_> =
        rows.iter().filter(|row| ranks.is_empty() || ranks.iter().any(|number| is_it(row, *number))).collect();
    let host = record.result().and_then(|result| result["host"].as_str()).unwrap_or_default();
    let mut has_any = false;
    for row in &chosen {
        let prefix = if chosen.len() > 1 { LinePrefix::Rank.text(row.label, host) } else { String::new() };
        for path in run.files_of(row, &record) {
            has_any = true;
            FollowedLog::begin(&ShownLog { path, prefix: prefix.clone(), start: 0 }, lines, false);
        }
    }
    if !has_any {
        print_notice(&format!("no log of these ranks is in {}", run.logs.display()));
    }
    Ok(())
}

/// Prints the rest.
fn end(mut logs: BTreeMap<PathBuf, FollowedLog>) -> Result<(), ControlError> {
    for log in logs.values_mut() {
        while log.copy() {}
        log.finish();
    }
    Ok(())
}

/// The logs of these ranks.
fn chosen(status: &JobStatus, ranks: &[usize]) -> Result<Vec<ShownLog>, ControlError> {
    let chosen = choose_ranks(status, ranks)?;
    let prefix = |label| if chosen.len() > 1 { LinePrefix::Rank.text(label, &status.host) } else { String::new() };
    let mut found = Vec::new();
    for rank in &chosen {
        let starts = [rank.log_start].into_iter().chain(std::iter::repeat(0));
        let logs = rank.logs.iter().zip(starts);
        found.extend(logs.map(|(path, start)| ShownLog { path: path.clone(), prefix: prefix(rank.label()), start }));
    }
    Ok(found)
}

/// A log that is followed.
struct FollowedLog {
    path: PathBuf,
    prefix: String,
    /// The file that is read; a rename of it changes nothing.
    file: Option<File>,
    splitter: LineSplitter,
}

impl FollowedLog {
    fn new(path: PathBuf, prefix: String) -> Self {
        Self { path, prefix, file: None, splitter: LineSplitter::new() }
    }

    /// Prints the last lines of the present attempt. `is_followed`: an unfinished one is continued later.
    fn begin(log: &ShownLog, lines: usize, is_followed: bool) -> Self {
        let mut this = Self::new(log.path.clone(), log.prefix.clone());
        let Some(mut file) = open(&log.path) else { return this };
        let end = file.metadata().map(|data| data.len()).unwrap_or_default();
        let bytes = log_files::tail_until(&log.path, log.start, end, TAIL);
        let whole = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        let shown = if is_followed { &bytes[..whole] } else { &bytes[..] };
        let (mut found, mut splitter): (Vec<Vec<u8>>, _) = (Vec::new(), LineSplitter::new());
        splitter.feed(shown, |line| found.push(line.to_vec()));
        found.extend(splitter.finish());
        let first = found.len().saturating_sub(lines);
        found[first..].iter().for_each(|line| this.print(line));
        let read = end - (bytes.len() - shown.len()) as u64;
        this.file = file.seek(SeekFrom::Start(read)).is_ok().then_some(file);
        this
    }

    fn print(&self, line: &[u8]) {
        let mut text = Vec::new();
        write_line(&mut text, &self.prefix, line, ColorPolicy::Drop);
        print_output(&String::from_utf8_lossy(&text));
    }

    /// Prints new whole lines. Whether there may be more.
    fn copy(&mut self) -> bool {
        if self.file.is_none() {
            self.file = open(&self.path);
        }
        let Some(file) = &mut self.file else { return false };
        let mut bytes = Vec::new();
        if file.take(AT_ONCE).read_to_end(&mut bytes).is_err() {
            return false;
        }
        let mut splitter = std::mem::take(&mut self.splitter);
        splitter.feed(&bytes, |line| self.print(line));
        self.splitter = splitter;
        if !bytes.is_empty() {
            return bytes.len() as u64 == AT_ONCE;
        }
        // All is read. Another attempt has another file of this name, and rotation may have removed the beginning.
        if self.was_replaced() {
            self.finish();
            self.file = open(&self.path);
            return self.file.is_some();
        }
        false
    }

    fn was_replaced(&self) -> bool {
        let (Some(file), Ok(now)) = (&self.file, std::fs::metadata(&self.path)) else { return false };
        let position = { file }.stream_position().unwrap_or_default();
        file.metadata().is_ok_and(|own| own.ino() != now.ino() || own.dev() != now.dev()) || now.len() < position
    }

    /// Prints an unfinished line.
    fn finish(&mut self) {
        if let Some(rest) = self.splitter.finish() {
            self.print(&rest);
        }
    }
}

fn open(path: &Path) -> Option<File> {
    File::open(path).ok()
}
