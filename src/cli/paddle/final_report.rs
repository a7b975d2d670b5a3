//! The final output of `python -m rlaunch`: log lines that scripts match, then the failure report.

use crate::cli::common::message::{self, print_error};
use crate::cli::node::build_failure_report::{ReportContext, print_swept, warn_of_losses};
use crate::model::Role;
use crate::report::failure_report::{FailureCause, FailureReport, ReportStyle, render};
use crate::report::github_annotation;
use crate::run::launch::Launch;
use crate::run::launch_result::LaunchResult;
use crate::supervise::{NodeOutcome, RankReport};
use tracing::{error, info};

/// Roles that are stopped once all workers have exited successfully, as Paddle's launcher names them in its log.
const STOPPED_LAST: [(Role, &str); 3] =
    [(Role::HeterWorker, "heter_worker"), (Role::Server, "parameter server"), (Role::Coordinator, "coordinators")];

/// Prints how this node's ranks ended.
pub fn print_final_report(
    launch: &Launch<'_>,
    launched: &LaunchResult,
    status: i32,
    context: &ReportContext,
    failure: Option<&FailureReport>,
) {
    warn_of_losses(launch, launched);
    match &launched.report.outcome {
        NodeOutcome::Completed => {
            print_swept(launch, launched);
            for (role, what) in STOPPED_LAST {
                let ranks = launch.plan.ranks.iter().zip(&launched.report.ranks);
                if ranks.into_iter().any(|(plan, end)| plan.role == role && end.signalled) {
                    info!("all {what} are killed");
                }
            }
            info!("{}", if context.legacy { "Local processes completed." } else { "Pod completed" });
        }
        NodeOutcome::Stopped { signal } => info!("Terminating with signal {signal}"),
        NodeOutcome::Regrouped => {}
        NodeOutcome::LauncherKilled => error!("the launcher process was killed, and all ranks with it"),
        NodeOutcome::NotStarted { local_rank } => {
            error!("Pod failed");
            let why = launched.report.ranks[*local_rank].start_error.as_deref();
            if !context.raised_by_caller {
                print_error(&format!("cannot start {}", why.unwrap_or_default()));
            }
        }
        NodeOutcome::Failed(failed) => {
            let (culprit, rank) = (failed.local_rank, &launch.plan.ranks[failed.local_rank]);
            if context.legacy {
                error!(
                    "ABORT!!! Out of all {} trainers, the trainer process with rank={:?} was aborted. Please check its log.",
                    launch.plan.world_size,
                    failed_ranks(launch, launched)
                );
            } else {
                error!("Pod failed");
            }
            error!(
                "Container failed !!!\nContainer rank {} status failed cmd {:?} code {} log {}",
                // Beside parameter servers a rank's number counts its role; Paddle logs its number on the node.
                if launch.plan.mode == "ps" { culprit } else { rank.rank },
                rank.argv,
                failed.exit.returncode(),
                launch.tail_file(culprit, 0).unwrap_or_default().display()
            );
        }
    }
    info!("Exit code {status}");
    if let Some(failure) = failure {
        // Only then `rlaunch.launch` raises a WorkerError for certain.
        let is_raised = context.raised_by_caller && launched.outcome.word(&launched.report) == "failed";
        if matches!(failure.outcome, FailureCause::Failed(_)) && !is_raised {
            info!("------------------------- ERROR LOG DETAIL -------------------------");
        }
        if context.github {
            message::to_stdout(format!("{}\n", github_annotation(failure)).as_bytes());
        }
        if !context.quiet && !is_raised {
            let style = ReportStyle { color: context.colour };
            message::to_stderr(render(failure, style).as_bytes());
        }
    }
}

/// The numbers of the ranks that failed by themselves.
fn failed_ranks(launch: &Launch<'_>, launched: &LaunchResult) -> Vec<usize> {
    let ends = launched.report.ranks.iter().zip(&launch.plan.ranks);
    let by_itself = |end: &RankReport| !end.signalled && end.exit.is_some_and(|exit| !exit.is_success());
    ends.filter(|(end, _)| by_itself(end)).map(|(_, rank)| rank.rank).collect()
}
