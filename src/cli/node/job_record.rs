//! The record of this node's part of a job: opens the journal, writes `result.json` at the end.

use crate::cli::common::error::CliError;
use crate::cli::common::exit_code;
use crate::cli::node::build_failure_report::build_failure_report;
use crate::cli::node::frontend::Frontend;
use crate::report::failure_report::{ReportStyle, render};
use crate::report::secrets;
use crate::run::launch::Launch;
use crate::run::launch_result::LaunchResult;
use crate::run::output::console::ShownMark;
use crate::run::output::log_files;
use crate::run::prepare::gloo_tmpdir;
use crate::run::record::journal;
use crate::run::record::journal::{Journal, JournalEvent};
use crate::run::record::result;
use crate::supervise::NodeOutcome;
use tracing::warn;

/// Opens the journal (`events.jsonl`) and writes the start of the job.
pub(crate) fn open_journal(launch: &Launch<'_>, frontend: &dyn Frontend) -> Result<Journal, CliError> {
    let plan = launch.plan;
    let mut journal = Journal::open(&launch.log_dir).map_err(CliError::Preflight)?;
    let host = &frontend.report_context().host;
    let argv = plan.ranks.first().map_or(&[][..], |rank| &rank.argv);
    let argv = secrets::words(argv.iter().map(|arg| arg.to_string_lossy()));
    let (job_id, ranks) = (&plan.job_id, plan.ranks.len());
    journal.write(JournalEvent::JobStarted { job_id, host, ranks, supervisor: std::process::id(), argv });
    Ok(journal)
}

/// Writes the end to the journal and to `result.json`, and prints it. Returns the exit status and the content of
/// `result.json`. `job_end`: the outcome of the whole job as text, where the nodes rendezvous.
pub(crate) fn record_end(
    launch: &Launch<'_>,
    mut launched: LaunchResult,
    exit_status: i32,
    job_end: Option<&str>,
    frontend: &dyn Frontend,
) -> (i32, serde_json::Value) {
    let context = frontend.report_context();
    let outcome = launched.outcome.word(&launched.report);
    launched.journal.write(JournalEvent::JobEnded { outcome, exit_status });
    let failure = build_failure_report(launch, &launched, exit_status, context);
    let text = failure.as_ref().map(|failure| render(failure, ReportStyle::default()).trim_end().to_owned());
    let result = result::build_result(launch, &launched, &context.host, exit_status, text.as_deref(), job_end);
    let is_all_shown = !matches!(launched.shown, ShownMark::AllBut(_)) && exit_status == exit_code::OK;
    let disposable = launch.removed_on_success.as_deref().filter(|_| is_all_shown);
    if disposable.is_none()
        && let Err(error) = journal::write_result(&launch.log_dir, &result)
    {
        warn!("result.json cannot be written: {}", log_files::plain(&error));
    }
    let result = serde_json::to_value(result).unwrap_or_default();
    frontend.report_end(launch, &launched, exit_status, failure.as_ref());
    gloo_tmpdir::remove(disposable);
    (exit_status, result)
}

/// Corrects the culprit in the report, and returns the exit status. A culprit that was already ending when the launcher
/// stopped it has no exit status of its own: then the status is that of the rank that ended first.
pub(crate) fn decide_exit_status(launch: &Launch<'_>, launched: &mut LaunchResult, frontend: &dyn Frontend) -> i32 {
    let observed = frontend.exit_status(launched);
    let first = frontend
        .find_first_failure(launch, launched)
        .and_then(|local| Some((local, launched.report.ranks[local].exit?)));
    let Some((culprit, exit)) = first else { return observed };
    launched.report.outcome = NodeOutcome::Failed { culprit, exit };
    if launched.report.ranks[culprit].signalled { observed } else { frontend.exit_status(launched) }
}
