//! torchrun's failure report on stderr, and the launcher's own error file (TORCHELASTIC_ERROR_FILE).

use crate::cli::node::build_failure_report::last_bytes;
use crate::cli::node::frontend::OwnText;
use crate::model::Exit;
use crate::plan::Stream;
use crate::report::cause::blame::blame;
use crate::report::cause::error_file::{self, ErrorFile};
use crate::report::cause::uncaught::UncaughtException;
use crate::report::console::tail;
use crate::report::console::tail::LogTail;
use crate::report::failure_report::{FailureCause, FailureReport, ReportStyle};
use crate::report::torchrun_report::{TorchrunReport, WorkerFailure};
use crate::run::launch::Launch;
use crate::run::launch_result::LaunchResult;
use crate::run::output::log_files;
use crate::run::ranks::evidence::{error_file_path, read_error_file};
use crate::supervise::{NodeOutcome, RankReport};
use crate::sys::clock;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use tracing::warn;

/// torchrun's report of a job in which a worker has failed; `None` for other outcomes. The root cause is also written to
/// `own`, this launcher's error file. `terminal`: the style of the report where the console is a terminal.
pub fn render_report(
    launch: &Launch<'_>,
    launched: &LaunchResult,
    failure_report: &FailureReport,
    (title, own): (&str, Option<&Path>),
    terminal: Option<ReportStyle>,
) -> Option<OwnText> {
    let (NodeOutcome::Failed(failed), FailureCause::Failed(known)) =
        (&launched.report.outcome, &failure_report.outcome)
    else {
        return None;
    };
    let (culprit, exit) = (failed.local_rank, failed.exit);
    let (root, file) = failure(launch, launched, culprit, exit);
    let known = (**known).clone();
    // Where stderr and stdout are one, the stream is called stdout.
    let is_shown = [Stream::Stderr, Stream::Stdout].iter().any(|stream| launch.shown.contains_key(&(culprit, *stream)));
    let is_above = is_shown && (known.blame.is_some() || file.is_none());
    if let Some(own) = own {
        let data = match file {
            Some(file) => error_file::passed_on(file.data, exit.returncode()),
            None => error_file::made(&known.reason(), &known.tail.lines.join("\n"), now(), exit.returncode()),
        };
        write(own, &data);
    }
    let ends = launched.report.ranks.iter().enumerate();
    let has_raised = |local: usize| matches!(launched.processes[local].uncaught, UncaughtException::Raised(_));
    let by_itself = |local: usize, end: &RankReport| match end.exit {
        Some(Exit::Code(code)) if code != 0 => !end.signalled || has_raised(local),
        exit => !end.signalled && exit.is_some_and(|exit| !exit.is_success()),
    };
    let others = ends.filter(|(local, end)| *local != culprit && by_itself(*local, end));
    let other = |(local, end): (usize, &RankReport)| {
        let (mut other, _) = failure(launch, launched, local, end.exit?);
        let uncaught = &launched.processes[local].uncaught;
        other.blame = blame(&last_bytes(launch, launched, local), other.exit, uncaught);
        Some(other)
    };
    let others: Vec<WorkerFailure> = others.filter_map(other).collect();
    let host = known.host.clone();
    let report = TorchrunReport { title, host: &host, root, culprit: known, others };
    let record = report.frame(failure_report);
    let console = terminal.map(|style| report.at_terminal(failure_report, style, is_above));
    Some(OwnText { console: console.unwrap_or_else(|| record.clone()), record })
}

/// Writes this launcher's own failure to its error file, in the form of an exception.
pub fn write_launcher_error(own: Option<&Path>, message: &str) {
    if let Some(own) = own {
        write(own, &error_file::made(message, message, now(), 0));
    }
}

fn now() -> i64 {
    i64::try_from(clock::wall().as_secs()).unwrap_or(i64::MAX)
}

/// The content of a worker's error file, or torchelastic's placeholder.
pub fn error_data(launch: &Launch<'_>, launched: &LaunchResult, local_rank: usize) -> Value {
    let file = error_file_of(launch, local_rank, launched.processes[local_rank].attempt);
    file.map_or_else(|| json!({"message": "<NONE>"}), |(_, file)| file.data)
}

fn failure(
    launch: &Launch<'_>,
    launched: &LaunchResult,
    local_rank: usize,
    exit: Exit,
) -> (WorkerFailure, Option<ErrorFile>) {
    let process = &launched.processes[local_rank];
    let (path, file) = match error_file_of(launch, local_rank, process.attempt) {
        Some((path, file)) => (Some(path), Some(file)),
        None => (None, None),
    };
    let failure = WorkerFailure {
        rank: launch.plan.ranks[local_rank].rank,
        local_rank,
        pid: process.pid.unwrap_or(0).unsigned_abs(),
        exit,
        time: clock::local_seconds(launched.ended(local_rank)),
        blame: None,
        aborted: process.aborted.clone(),
        error_file: path.zip(file.as_ref()).map(|(path, file)| (path.display().to_string(), last_lines(&file.text))),
    };
    (failure, file)
}

/// The last lines of a worker's error text, at most about two screens; the file has it all.
fn last_lines(text: &str) -> String {
    let LogTail { mut lines, cut, .. } = tail::tail(text.as_bytes(), tail::TailLimits { lines: 100, bytes: 64 * 1024 });
    if cut {
        lines.insert(0, "…".to_owned());
    }
    lines.join("\n")
}

/// The error file of a worker's attempt, if it wrote one that can be read.
fn error_file_of(launch: &Launch<'_>, local_rank: usize, attempt: u32) -> Option<(PathBuf, ErrorFile)> {
    let path = error_file_path(&launch.plan.ranks[local_rank], attempt).filter(|path| path.exists())?;
    let file = read_error_file(&path);
    if file.is_none() {
        warn!("{}: not an error file; ignored", path.display());
    }
    Some((path, file?))
}

fn write(own: &Path, data: &Value) {
    let text = format!("{data}\n");
    // A FIFO, a device or a link is written to, not replaced; a mount point cannot be replaced.
    let is_special = std::fs::symlink_metadata(own).is_ok_and(|known| !known.is_file());
    let written = match is_special {
        true => log_files::overwrite(own, &text),
        false => match log_files::replace(own, &text) {
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) => log_files::overwrite(own, &text),
            written => written,
        },
    };
    if let Err(error) = written {
        warn!("TORCHELASTIC_ERROR_FILE {}: cannot be written: {}", own.display(), log_files::plain(&error));
    }
}
