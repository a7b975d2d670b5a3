//! What other nodes learn of a stop that begins on this node.

use super::RankProcesses;
use crate::probe::net;
use crate::protocol::{JobEnd, NodeStop, RankFailure};
use crate::rendezvous::torch_static::StaticPeers;
use crate::report::cause::verdict::Verdict;
use crate::run::multi_node::job_outcome::JobOutcome;
use crate::run::multi_node::membership::Membership;
use crate::run::record::job_culprit::rank_failure;
use crate::supervise::{NodeOutcome, NodeReport, StopReason};

impl RankProcesses<'_> {
    /// The message about a stop to the members of an elastic job.
    pub fn node_stop(&self, reason: StopReason, membership: &Membership) -> Option<NodeStop> {
        let failure = match reason {
            StopReason::Signal(signal) => return Some(NodeStop::Signal { signal }),
            StopReason::Restart => membership.restart_request(),
            StopReason::RankFailed(local_rank, exit) => {
                let (info, node) = (membership.info(), membership.round().map_or(0, |(_, own)| own));
                let verdict = self.judge_now((local_rank, exit));
                let again = info.rules.ask_for_restart(verdict.decisive.shell_status());
                RankFailure { again, ..self.rank_failure(&verdict, info.host.clone(), node) }
            }
            _ => return None,
        };
        Some(NodeStop::Failure { failure })
    }

    /// The end of a job of a static rendezvous by a stop of this node, if that is its end: other nodes than node 0 may be stopped alone,
    /// and a rank that lost its connection to another is not the cause.
    pub fn job_end(&self, reason: StopReason, node: usize) -> Option<JobEnd> {
        match reason {
            StopReason::Signal(signal) => (node == 0).then(|| JobEnd::Stopped { host: net::host_name(), signal }),
            StopReason::RankFailed(local_rank, exit) => self.failed_job(&self.judge_now((local_rank, exit)), node),
            _ => None,
        }
    }

    fn failed_job(&self, verdict: &Verdict, node: usize) -> Option<JobEnd> {
        let failure = self.rank_failure(verdict, net::host_name(), node);
        (!failure.lost_peer).then_some(JobEnd::Failed { failure, no_restart: None })
    }

    /// The outcome of a job of a static rendezvous after the end of this node's ranks: by this report, of whose failure the others learn, or
    /// by the failure of another node if a rank of this one only lost its connection.
    pub fn outcome_with_peers(&self, peers: &mut StaticPeers, report: &NodeReport) -> JobOutcome {
        let node = peers.node();
        let own = match report.outcome {
            NodeOutcome::Failed(_) => self.verdict.as_ref().and_then(|verdict| self.failed_job(verdict, node)),
            NodeOutcome::NotStarted { local_rank } => {
                let why = report.ranks[local_rank].start_error.as_deref().unwrap_or_default();
                let label = self.launch.plan.ranks[local_rank].label();
                let failure = RankFailure { host: net::host_name(), node, ..RankFailure::not_started(label, why) };
                Some(JobEnd::Failed { failure, no_restart: None })
            }
            NodeOutcome::Stopped { signal } => {
                if let Some(end) = self.job_end(StopReason::Signal(signal), node) {
                    peers.report_job_end(&end);
                }
                return JobOutcome::AsReported;
            }
            _ => return JobOutcome::AsReported,
        };
        match (own, peers.end()) {
            (Some(end), _) => peers.report_job_end(&end),
            (None, Some(end)) => return JobOutcome::Ended(end.clone()),
            (None, None) => {}
        }
        JobOutcome::AsReported
    }

    fn rank_failure(&self, verdict: &Verdict, host: String, node: usize) -> RankFailure {
        let attempt = self.processes[verdict.culprit].attempt;
        RankFailure { host, node, ..rank_failure(self.launch, verdict, attempt) }
    }
}
