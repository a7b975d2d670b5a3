//! The outcome of a job with its other nodes, as this node knows it.

use crate::protocol::JobEnd;
use crate::supervise::{NodeOutcome, NodeReport};

/// What became of the job beyond this node's ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JobOutcome {
    /// This node's report says it all: there are no other nodes, or they change nothing.
    AsReported,
    /// All ranks of this node exited successfully, after they were asked to stop at this step (`rlaunch.should_stop`).
    Preempted(u64),
    /// The job ended in this way on all nodes.
    Ended(JobEnd),
    /// The other nodes do not accept this node, for this reason.
    Refused(String),
    /// The rendezvous backend was never reached.
    NeverReached(String),
    /// The rendezvous backend has been unreachable for too long, or the job goes on or has ended without this node.
    Unreachable(String),
    /// Node 0's store went away while ranks ran here, so these were stopped.
    StoreLost,
    /// This node's launcher received this signal while no rank ran here.
    Stopped(i32),
    /// This node's launcher process was killed while no rank ran here.
    LauncherKilled,
    /// This node's supervisor process was killed, or gave up.
    SupervisorLost,
}

impl JobOutcome {
    /// The word for it in `events.jsonl` and `result.json`; `report`: that of this node.
    pub fn word(&self, report: &NodeReport) -> &'static str {
        match (self, &report.outcome) {
            (JobOutcome::AsReported, outcome) => node_word(outcome),
            // A rank may have failed just before.
            (JobOutcome::StoreLost, outcome) if !matches!(outcome, NodeOutcome::Stopped { .. }) => node_word(outcome),
            (outcome, _) => outcome.own_word(),
        }
    }

    /// The same where no rank ran here.
    pub fn own_word(&self) -> &'static str {
        match self {
            JobOutcome::AsReported | JobOutcome::Ended(JobEnd::Completed) => "completed",
            JobOutcome::Preempted(_) => "preempted",
            JobOutcome::Ended(JobEnd::Failed { .. }) => "failed",
            JobOutcome::Ended(JobEnd::Lost { .. }) => "node_lost",
            JobOutcome::Ended(JobEnd::TooFew { .. }) | JobOutcome::NeverReached(_) => "too_few_nodes",
            JobOutcome::Refused(_) => "refused",
            JobOutcome::Unreachable(_) | JobOutcome::StoreLost => "store_lost",
            JobOutcome::Ended(JobEnd::Stopped { .. }) | JobOutcome::Stopped(_) => "stopped",
            JobOutcome::LauncherKilled => "front_lost",
            JobOutcome::SupervisorLost => "supervisor_lost",
        }
    }
}

/// The word for how this node's ranks ended.
pub fn node_word(outcome: &NodeOutcome) -> &'static str {
    match outcome {
        NodeOutcome::Completed => "completed",
        NodeOutcome::Failed { .. } => "failed",
        NodeOutcome::NotStarted { .. } => "not_started",
        NodeOutcome::Stopped { .. } => "stopped",
        NodeOutcome::Regrouped => "regrouped",
        NodeOutcome::LauncherKilled => "front_lost",
    }
}
