//! What the whole job failed by, for programs: `job_culprit` in the `result.json` of every node.

use crate::model::exit::signal_label;
use crate::protocol::{FailureDetails, JobEnd, RankFailure};
use crate::report::RankFault;
use crate::report::cause::verdict::Verdict;
use crate::run::launch::Launch;
use crate::run::launch_result::LaunchResult;
use crate::run::multi_node::job_outcome::JobOutcome;
use crate::supervise::NodeOutcome;
use serde::Serialize;

/// Characters of the name of an exception.
const LONGEST_NAME: usize = 200;

/// The content of the field.
#[derive(Debug, Serialize)]
pub struct JobCulprit {
    /// The number of its node in the last round; `None`: unknown.
    node: Option<usize>,
    host: String,
    #[serde(flatten)]
    details: FailureDetails,
}

/// What the other nodes learn of the rank of this node that failed first.
pub fn rank_failure(launch: &Launch<'_>, verdict: &Verdict, attempt: u32) -> RankFailure {
    let label = launch.plan.ranks[verdict.culprit].label();
    RankFailure {
        process: label.to_string(),
        outcome: verdict.exit.map_or_else(|| "an error".to_owned(), |exit| exit.to_string()),
        message: verdict.message(),
        status: verdict.decisive.shell_status(),
        lost_peer: verdict.lost_peer.is_some(),
        details: Box::new(details(launch, verdict, attempt)),
        ..RankFailure::default()
    }
}

fn details(launch: &Launch<'_>, verdict: &Verdict, attempt: u32) -> FailureDetails {
    let log = launch.tail_file(verdict.culprit, attempt).map(|log| log.display().to_string());
    let label = launch.plan.ranks[verdict.culprit].label();
    let details = FailureDetails { log, ..FailureDetails::of_process(label, verdict.exit) };
    let Some(RankFault { what, text, .. }) = verdict.blame.as_ref().map(|blame| &blame.fault) else { return details };
    FailureDetails {
        exception: (!what.is_empty()).then(|| what.chars().take(LONGEST_NAME).collect()),
        ..details.with_text(text)
    }
}

impl JobCulprit {
    /// What the job failed by, or was stopped by on another node; `None` if it is not known, or there is nothing of the kind.
    pub fn of_outcome(outcome: &JobOutcome) -> Option<Self> {
        let JobOutcome::Ended(end) = outcome else { return None };
        let other = |node, host: &str, text: String| {
            let details = FailureDetails::default().with_text(&text);
            Some(Self { node, host: host.to_owned(), details })
        };
        match end {
            JobEnd::Failed { failure: RankFailure { node, host, details, .. }, .. } => {
                Some(Self { node: Some(*node), host: host.clone(), details: (**details).clone() })
            }
            JobEnd::Lost { lost } => other(Some(lost.node), &lost.host, "the node is lost".to_owned()),
            JobEnd::Stopped { host, signal } => {
                other(None, host, format!("its launcher received {}", signal_label(*signal)))
            }
            JobEnd::Completed | JobEnd::TooFew { .. } => None,
        }
    }

    /// The same where ranks have run here.
    pub fn of_launch(launch: &Launch<'_>, launched: &LaunchResult, host: &str) -> Option<Self> {
        let own = |details| {
            let node = launched.node.or((launch.plan.nnodes == 1).then_some(0));
            Self { node, host: host.to_owned(), details }
        };
        let of_own_ranks = || match (&launched.report.outcome, &launched.verdict) {
            (NodeOutcome::NotStarted { local_rank }, _) => {
                let why = launched.report.ranks[*local_rank].start_error.as_deref().unwrap_or_default();
                let label = launch.plan.ranks[*local_rank].label();
                Some(own(*RankFailure::not_started(label, why).details))
            }
            (NodeOutcome::Failed(_), Some(verdict)) => {
                Some(own(details(launch, verdict, launched.processes[verdict.culprit].attempt)))
            }
            _ => None,
        };
        Self::of_outcome(&launched.outcome).or_else(of_own_ranks)
    }
}
