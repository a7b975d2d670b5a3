//! The evidence of an attempt for the verdict on it (`report/cause/verdict.rs`): the ends of the ranks, their logs, their error files.

use super::RankProcesses;
use crate::model::Exit;
use crate::plan::RankPlan;
use crate::report::cause::error_file;
use crate::report::cause::error_file::ErrorFile;
use crate::report::cause::verdict::{self, Ground, RankEvidence, Verdict, WrittenEvidence};
use crate::run::output::log_files;
use crate::run::output::log_files::TAIL_BYTES;
use crate::run::prepare::preflight;
use crate::run::rank_state::RankState;
use crate::supervise::FailedRank;
use crate::sys::clock;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// Bytes of the longest error file that is read.
const MAX_ERROR_FILE: u64 = 16 << 20;

/// The path of a rank's error file, if its front end gives it one (TORCHELASTIC_ERROR_FILE).
pub fn error_file_path(rank: &RankPlan, attempt: u32) -> Option<PathBuf> {
    Some(rank.per_attempt.as_ref()?.error_file.as_ref()?.at(attempt).into())
}

/// Reads an error file; `None`: it is none.
pub fn read_error_file(path: &Path) -> Option<ErrorFile> {
    let is_short = std::fs::metadata(path).ok()?.len() <= MAX_ERROR_FILE;
    let text = is_short.then(|| preflight::read("error_file", path.to_str()?).ok()).flatten()?;
    error_file::parse(text.as_bytes())
}

impl WrittenEvidence for RankProcesses<'_> {
    fn stderr(&self, local_rank: usize) -> Vec<u8> {
        let process = &self.processes[local_rank];
        let is_stopped = process.signalled || process.exit.is_none();
        let log = self.launch.tail_file(local_rank, process.attempt);
        let rotated = self.rotated_tail(log.as_ref());
        let offset = |position: u64| rotated.as_ref().map_or(position, |log| log.offset(position));
        // Output after the request to stop is an answer to that request.
        let end = if is_stopped { offset(process.log_end_at_failure.unwrap_or(0)) } else { u64::MAX };
        log.map(|log| log_files::tail_until(&log, offset(process.log_start), end, TAIL_BYTES)).unwrap_or_default()
    }

    fn error_file(&self, local_rank: usize) -> Option<String> {
        let attempt = self.processes[local_rank].attempt;
        Some(read_error_file(&error_file_path(&self.launch.plan.ranks[local_rank], attempt)?)?.text)
    }
}

impl RankProcesses<'_> {
    /// The verdict on the present attempt by what is known now. `ended_first`: the rank that failed first by the order of the ends.
    pub fn judge_now(&self, (ended_first, exit): (usize, Exit)) -> Verdict {
        let attempt = self.processes[ended_first].attempt;
        let is_of_attempt = |process: &RankState| process.pid.is_some() && process.attempt == attempt;
        // One pair for all, or files of one moment would have an order.
        let clocks = (clock::wall(), clock::now());
        let evidence = |(local, process)| is_of_attempt(process).then(|| self.evidence(local, process, clocks));
        let ranks: Vec<_> = self.processes.iter().enumerate().map(evidence).collect();
        verdict::judge((ended_first, exit), &ranks, self)
    }

    /// The verdict on an attempt whose ranks have all ended, which is kept. Ranks that their error had ended, and that were asked to stop
    /// while they were still exiting, get the exit that the error makes.
    pub(super) fn judge(&mut self, ended_first: (usize, Exit)) -> FailedRank {
        let verdict = self.judge_now(ended_first);
        for (local, process) in self.processes.iter_mut().enumerate() {
            let has_failed = local == verdict.culprit && verdict.ground == Ground::ErrorFile;
            process.exit = process.exit_of_error(has_failed).or(process.exit);
        }
        let (local_rank, decisive) = (verdict.culprit, verdict.decisive);
        self.verdict = Some(verdict);
        FailedRank { local_rank, exit: self.processes[local_rank].exit.unwrap_or(decisive), decisive }
    }

    /// `clocks`: the present time since 1970 and of the monotonic clock.
    fn evidence<'a>(&self, local: usize, process: &'a RankState, clocks: (Duration, Duration)) -> RankEvidence<'a> {
        let wrote_error_file = || {
            let path = error_file_path(&self.launch.plan.ranks[local], process.attempt)?;
            let at = std::fs::symlink_metadata(path).ok()?.modified().ok()?;
            let ago = clocks.0.saturating_sub(at.duration_since(SystemTime::UNIX_EPOCH).ok()?);
            Some(clocks.1.saturating_sub(ago))
        };
        let exit = process.exit.unwrap_or(Exit::Signal(libc::SIGTERM));
        RankEvidence {
            exit: process.exit,
            own_exit: process.own_exit(exit),
            signalled: process.signalled,
            was_aborted: process.was_ended_by_launcher(exit),
            aborted_together: process.aborted_together,
            uncaught: &process.uncaught,
            thread: process.notes.thread.as_ref(),
            wrote_error_file: wrote_error_file(),
            ended: process.ended_at,
        }
    }
}
