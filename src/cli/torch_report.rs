//! How a job in torchrun's words has failed: the report on stderr, and the launcher's own error file.

use crate::log::blame;
use crate::log::error_file::{self, ErrorFile};
use crate::log::failed::{Failure, report};
use crate::log::tail::{self, Tail};
use crate::log::verdict::{Outcome as Verdictum, Verdict};
use crate::model::Exit;
use crate::run::launch::{Launch, Launched};
use crate::run::{logs, preflight};
use crate::supervise::{Outcome, RankReport};
use crate::sys::clock;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};
use tracing::warn;

/// The report of a job in which a worker has failed; `None` for other ends. The root cause is also written to `own`, the
/// file in which this launcher is to say what it failed of.
pub fn of(
    launch: &Launch<'_>,
    launched: &Launched,
    verdict: &Verdict,
    title: &str,
    own: Option<&Path>,
) -> Option<String> {
    let (Outcome::Failed { culprit, exit }, Verdictum::Failed(known)) = (&launched.report.outcome, &verdict.outcome)
    else {
        return None;
    };
    let (root, said) = failure(launch, launched, *culprit, *exit);
    let mut known = (**known).clone();
    // It may have been stopped between its error file and its traceback.
    known.blame = known.blame.or_else(|| blame(said.as_ref()?.text.as_bytes(), *exit));
    if let Some(own) = own {
        let data = match said {
            Some(file) => error_file::passed_on(file.data, exit.returncode()),
            None => {
                let message = known.blame.as_ref().map_or(exit.to_string(), |blame| blame.fault.to_string());
                error_file::made(&message, &known.tail.lines.join("\n"), now(), exit.returncode())
            }
        };
        write(own, &data);
    }
    let ends = launched.report.ranks.iter().enumerate();
    let of_itself = |end: &RankReport| !end.told && end.exit.is_some_and(|exit| !exit.is_success());
    let others = ends.filter(|(local, end)| local != culprit && of_itself(end));
    let others: Vec<Failure> =
        others.filter_map(|(local, end)| Some(failure(launch, launched, local, end.exit?).0)).collect();
    Some(report(title, &known.host, (&root, &known), &others, verdict))
}

/// What this launcher itself failed of, for its own error file, in the words of an exception.
pub fn of_itself(own: Option<&Path>, message: &str) {
    if let Some(own) = own {
        write(own, &error_file::made(message, message, now(), 0));
    }
}

fn now() -> i64 {
    i64::try_from(clock::wall().as_secs()).unwrap_or(i64::MAX)
}

/// How much earlier than the clock says a file may seem to be written: the kernel stamps files by its ticks.
const TICK: Duration = Duration::from_millis(20);

/// The worker that failed first, where that is not the one that ended first: after it has written its error file it may
/// take seconds to end, and by then those that lost their connection to it are gone.
pub fn failed_first(launch: &Launch<'_>, launched: &Launched) -> Option<usize> {
    let Outcome::Failed { culprit, .. } = launched.report.outcome else { return None };
    let attempt = launched.processes[culprit].attempt;
    let failed = |local: usize| {
        let exit = launched.report.ranks[local].exit;
        launched.processes[local].attempt == attempt && exit.is_some_and(|exit| !exit.is_success())
    };
    let wrote = |local: usize| {
        let path = launch.plan.ranks[local].elastic.as_ref()?.error_file.as_ref()?.at(attempt);
        let at = std::fs::symlink_metadata(path).ok()?.modified().ok()?;
        at.duration_since(SystemTime::UNIX_EPOCH).ok()
    };
    let others = (0..launch.plan.ranks.len()).filter(|local| *local != culprit && failed(*local));
    let (at, first) = others.filter_map(|local| Some((wrote(local)?, local))).min()?;
    let before = wrote(culprit).unwrap_or_else(|| ended(launched, culprit).saturating_sub(TICK));
    (at < before && said(launch, first, attempt).is_some()).then_some(first)
}

/// When a worker ended, by the wall clock.
fn ended(launched: &Launched, local_rank: usize) -> Duration {
    // The clock of supervision tells when it ended; the wall clock, what people call that.
    let RankReport { started_at, lived, .. } = &launched.report.ranks[local_rank];
    let ended = started_at.unwrap_or_default() + lived.unwrap_or_default();
    clock::wall().saturating_sub(clock::now().saturating_sub(ended))
}

/// What a worker wrote of its failure, for programs.
pub fn data(launch: &Launch<'_>, launched: &Launched, local_rank: usize) -> Value {
    let said = said(launch, local_rank, launched.processes[local_rank].attempt);
    said.map_or_else(|| json!({"message": "<NONE>"}), |(_, said)| said.data)
}

fn failure(launch: &Launch<'_>, launched: &Launched, local_rank: usize, exit: Exit) -> (Failure, Option<ErrorFile>) {
    let process = &launched.processes[local_rank];
    let (path, said) = match said(launch, local_rank, process.attempt) {
        Some((path, said)) => (Some(path), Some(said)),
        None => (None, None),
    };
    let failure = Failure {
        rank: launch.plan.ranks[local_rank].rank,
        local_rank,
        pid: process.pid.unwrap_or(0).unsigned_abs(),
        exit,
        time: clock::local_seconds(ended(launched, local_rank)),
        said: path.zip(said.as_ref()).map(|(path, said)| (path.display().to_string(), last_lines(&said.text))),
    };
    (failure, said)
}

/// As much of a worker's text as a screen or two take; the file has it all.
fn last_lines(text: &str) -> String {
    let Tail { mut lines, cut } = tail::tail(text.as_bytes(), tail::Limits { lines: 100, bytes: 64 * 1024 });
    if cut {
        lines.insert(0, "…".to_owned());
    }
    lines.join("\n")
}

/// An error file that is longer is ignored.
const LONGEST: u64 = 16 << 20;

/// The error file of a worker's attempt, if it wrote one that can be read.
fn said(launch: &Launch<'_>, local_rank: usize, attempt: u32) -> Option<(PathBuf, ErrorFile)> {
    let elastic = launch.plan.ranks[local_rank].elastic.as_ref()?;
    let path = PathBuf::from(elastic.error_file.as_ref()?.at(attempt));
    let length = std::fs::metadata(&path).ok()?.len();
    let text = if length > LONGEST { None } else { preflight::read("error_file", path.to_str()?).ok() };
    match text.and_then(|text| error_file::parse(text.as_bytes())) {
        Some(said) => Some((path, said)),
        None => {
            warn!("{}: is no error file, and is ignored", path.display());
            None
        }
    }
}

fn write(own: &Path, data: &Value) {
    let text = format!("{data}\n");
    // What is no regular file (a FIFO, a device, a link to one) stays what it is, and what is mounted cannot be replaced.
    let stays = std::fs::symlink_metadata(own).is_ok_and(|known| !known.is_file());
    let written = match stays {
        true => logs::overwrite(own, &text),
        false => match logs::replace(own, &text) {
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) => logs::overwrite(own, &text),
            written => written,
        },
    };
    if let Err(error) = written {
        warn!("TORCHELASTIC_ERROR_FILE {}: cannot be written: {}", own.display(), logs::plain(&error));
    }
}
