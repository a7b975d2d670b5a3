//! The record of this node's part of a job: opens the journal, writes `result.json` at the end.

use crate::cli::common::command_line::refused_option;
use crate::cli::common::error::CliError;
use crate::cli::common::exit_code;
use crate::cli::common::message::{begin_final_report, print_notice};
use crate::cli::node::build_failure_report::build_failure_report;
use crate::cli::node::frontend::{Frontend, NodeEnd};
use crate::report::failure_report::{FailureCause, FailureReport, ReportStyle, render};
use crate::report::secrets;
use crate::run::launch::Launch;
use crate::run::launch_result::LaunchResult;
use crate::run::multi_node::job_outcome::JobOutcome;
use crate::run::prepare::gloo_tmpdir;
use crate::run::record::journal;
use crate::run::record::journal::Journal;
use crate::run::record::journal_event::JournalEvent;
use crate::run::record::result;
use crate::supervise::NodeOutcome;
use std::time::Duration;

/// How long the readers of the final report of a job that was stopped are waited for.
const STOPPED_REPORT_PATIENCE: Duration = Duration::from_secs(1);

/// Opens the journal (`events.jsonl`) and writes the start of the job. `is_shared`: the job may have other launchers.
pub(crate) fn open_journal(launch: &Launch<'_>, is_shared: bool, frontend: &dyn Frontend) -> Result<Journal, CliError> {
    let plan = launch.plan;
    let mut journal = Journal::open(&launch.log_dir, is_shared).map_err(CliError::Preflight)?;
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
    launched.journal.write_last(JournalEvent::JobEnded { outcome, exit_status });
    let failure = build_failure_report(launch, &launched, exit_status, context);
    let own_text = failure.as_ref().and_then(|failure| frontend.render_failure(launch, &launched, failure));
    let record = own_text.as_ref().map(|text| text.record.clone());
    let text = record.or_else(|| Some(render(failure.as_ref()?, ReportStyle::default())));
    let failure_text = failure.as_ref().zip(text.as_deref().map(str::trim));
    let result = result::build_result(launch, &launched, &context.host, exit_status, failure_text, job_end);
    let is_disposable = launched.unshown.is_none() && launched.lost.is_empty() && exit_status == exit_code::OK;
    let disposable = launch.removed_on_success.as_deref().filter(|_| is_disposable);
    begin_final_report(match launched.report.outcome {
        // The user who stops a job waits for its end.
        NodeOutcome::Stopped { .. } | NodeOutcome::LauncherKilled => STOPPED_REPORT_PATIENCE,
        _ => launch.console_drain_timeout,
    });
    if disposable.is_none()
        && let Err(error) = journal::write_result(&launch.log_dir, &result)
    {
        print_notice(&error.to_string());
    }
    let result = serde_json::to_value(result).unwrap_or_default();
    if disposable.is_none() && !context.quiet && !context.raised_by_caller {
        print_where_logs_are(launch, &launched, exit_status, failure.as_ref());
    }
    frontend.report_end(&NodeEnd {
        launch,
        launched: &launched,
        status: exit_status,
        failure: failure.as_ref(),
        own_text: own_text.as_ref().map(|text| &*text.console),
    });
    if let Some(FailureCause::Failed(culprit)) = failure.as_ref().map(|failure| &failure.outcome)
        && !context.raised_by_caller
        && let Some(hint) = refused_option(&culprit.tail.lines)
    {
        print_notice(&hint);
    }
    gloo_tmpdir::remove(disposable);
    (exit_status, result)
}

/// Names the log folder of a job that was preempted or stopped. The report of a failure names the rank's log.
fn print_where_logs_are(launch: &Launch<'_>, launched: &LaunchResult, status: i32, failure: Option<&FailureReport>) {
    let what = match (&launched.outcome, failure.map(|failure| &failure.outcome)) {
        (JobOutcome::Preempted(step), _) => format!("preempted at step {step}; exit status {status}; "),
        (_, Some(FailureCause::Failed(culprit))) if culprit.log.is_some() => return,
        // The line on interrupts has named it.
        _ if status == exit_code::OK || launched.interrupted > 0 => return,
        _ => String::new(),
    };
    print_notice(&format!("{what}the logs are in {}", launch.log_dir.display()));
}
