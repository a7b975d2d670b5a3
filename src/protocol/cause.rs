//! Why a round stops, what follows, and which ranks may still run.

use crate::protocol::coordinator::{Coordinator, CoordinatorNode};
use crate::protocol::coordinator_logic::Departure;
use crate::protocol::record::{
    JobRules, NodeInfo, NodeRecord, NodeStatus, NodeStop, OnFailure, OnNodeLoss, RankFailure, millis,
};
use crate::protocol::state::{JobEnd, JobPhase, LostNode, RoundMember, RoundStopCause};
use std::cmp::Reverse;
use std::time::Duration;

/// In place of the ids of nodes that the coordinator before has seen. No node has it.
const UNKNOWN: &str = "";

impl Coordinator {
    /// The round's members that are here.
    pub(crate) fn of_members(&self) -> impl Iterator<Item = &CoordinatorNode> {
        self.members.iter().filter_map(|member| self.nodes.get(&member.id))
    }

    /// The records of the round's members that are here.
    pub(crate) fn of_round(&self) -> impl Iterator<Item = &NodeRecord> {
        self.of_members().map(|node| &node.record)
    }

    /// How many of them have exited successfully.
    pub(crate) fn count_done(&self) -> usize {
        let round = self.state.round;
        self.of_round().filter(|record| record.status == NodeStatus::Done { round }).count()
    }

    /// Why the round stops, if its members report a reason. A rank that failed because a peer was gone failed after that peer,
    /// whichever report arrived first. `running`: the members have not been asked to stop.
    pub(crate) fn find_cause(&self, running: bool) -> Option<RoundStopCause> {
        let round = self.state.round;
        let failures = || {
            self.of_round().filter_map(move |record| match &record.status {
                NodeStatus::Failed { round: its, failure } if *its == round => Some(failure),
                NodeStatus::Stops { round: its, why: NodeStop::Failure { failure } } if *its == round => Some(failure),
                _ => None,
            })
        };
        let failed = |failure: &RankFailure| RoundStopCause::Failed { failure: failure.clone() };
        let own = || failures().find(|failure| !failure.lost_peer).map(failed);
        let lost = || self.find_lost(running).map(|lost| RoundStopCause::Lost { lost });
        own().or_else(|| self.find_stopped()).or_else(lost).or_else(|| failures().next().map(failed))
    }

    /// The final report of a failure, if its node has made one that differs from the first.
    pub(crate) fn final_failure(&self, failure: &RankFailure) -> Option<RankFailure> {
        let node = self.nodes.get(&self.members.get(failure.node)?.id)?;
        match &node.record.status {
            NodeStatus::Failed { round, failure: known } if *round == self.state.round && known != failure => {
                Some(known.clone())
            }
            _ => None,
        }
    }

    /// The first member that received a signal.
    pub(crate) fn find_stopped(&self) -> Option<RoundStopCause> {
        let signal = |member: &RoundMember| match self.nodes.get(&member.id).map(|node| &node.record.status) {
            Some(NodeStatus::Leaves { signal }) => Some(*signal),
            Some(NodeStatus::Stops { why: NodeStop::Signal { signal }, .. }) => Some(*signal),
            Some(_) => None,
            // It has gone since.
            None => self.left.get(&member.id).copied(),
        };
        let why = |member: &RoundMember| {
            Some(RoundStopCause::Stopped { host: member.info.host.clone(), signal: signal(member)? })
        };
        self.members.iter().find_map(why)
    }

    /// How the job ends by this cause, if it does.
    pub(crate) fn end_by(&self, rules: &JobRules, why: &RoundStopCause) -> Option<JobEnd> {
        match why {
            RoundStopCause::Failed { failure } if failure.again => None,
            RoundStopCause::Failed { failure } => {
                let failed = |no_restart| Some(JobEnd::Failed { failure: failure.clone(), no_restart });
                let (used, most) = (self.state.failures, rules.restarts);
                match rules.on_failure {
                    OnFailure::End => failed(None),
                    OnFailure::Hold => None,
                    OnFailure::Restart if failure.no_restart.is_some() => failed(failure.no_restart.clone()),
                    OnFailure::Restart if most == 0 => failed(None),
                    OnFailure::Restart if used >= most => failed(Some(format!("{used} of {most} restarts used"))),
                    OnFailure::Restart => None,
                }
            }
            RoundStopCause::Lost { lost } => {
                (rules.on_loss == OnNodeLoss::End || self.count_done() > 0).then(|| JobEnd::Lost { lost: lost.clone() })
            }
            // In an elastic job only this node leaves, while enough are left.
            RoundStopCause::Stopped { host, signal } => {
                let goes = |status: &NodeStatus| {
                    matches!(status, NodeStatus::Leaves { .. } | NodeStatus::Stops { why: NodeStop::Signal { .. }, .. })
                };
                let stays = |record: &&NodeRecord| !goes(&record.status);
                let enough = rules.min < rules.max && self.of_round().filter(stays).count() >= rules.min;
                let goes_on = rules.on_loss == OnNodeLoss::Regroup && enough && self.count_done() == 0;
                (!goes_on).then(|| JobEnd::Stopped { host: host.clone(), signal: *signal })
            }
            RoundStopCause::More { .. } => None,
        }
    }

    /// The end of a job that ends with a lost node, if one is lost: whatever the round stops for, ranks of that node may outlive
    /// its lease, so no other round begins.
    pub(crate) fn end_by_any_loss(&self, rules: Option<&JobRules>) -> Option<JobEnd> {
        let ends = rules.is_some_and(|rules| rules.on_loss == OnNodeLoss::End);
        self.find_lost(false).filter(|_| ends).map(|lost| JobEnd::Lost { lost })
    }

    /// The member that is lost, if one is: the one that was heard from longest ago. While the round runs, that includes a member
    /// that runs nothing any more without having been asked to stop: it was without contact for too long.
    pub(crate) fn find_lost(&self, running: bool) -> Option<LostNode> {
        let round = self.state.round;
        let gave_up =
            |node: &CoordinatorNode| matches!(node.record.status, NodeStatus::Ready { seen } if seen >= round);
        let is_lost = |member: &RoundMember| self.nodes.get(&member.id).is_none_or(|node| running && gave_up(node));
        let age = |member: &RoundMember| self.ages.get(&member.id).copied().unwrap_or_default();
        let lost = self.members.iter().enumerate().filter(|(_, member)| is_lost(member));
        let (node, member) = lost.max_by_key(|(node, member)| (age(member), Reverse(*node)))?;
        let NodeInfo { host, address, .. } = member.info.clone();
        Some(LostNode { node, host, address, age_ms: millis(age(member)) })
    }

    /// What this coordinator has not seen itself: members of a round that was not over, and whose leases have lapsed before it took
    /// over, and ranks that the coordinator before was waiting for.
    pub(crate) fn note_missing_members(&mut self, now: Duration) {
        let departure = Departure::Lapsed { age: Duration::ZERO };
        let Some(longest) = self.rules().and_then(|rules| departure.ranks_run_for(rules)) else { return };
        let ranks_end = now + longest;
        if let JobPhase::Running | JobPhase::Stopping { .. } = self.state.phase {
            let missing = self.members.iter().filter(|member| !self.nodes.contains_key(&member.id));
            self.may_run.extend(missing.map(|member| (member.id.clone(), ranks_end)));
        }
        if self.state.ranks_may_run {
            self.may_run.insert(UNKNOWN.to_owned(), ranks_end);
        }
    }

    /// Notes for a later coordinator whether ranks are waited for. Whether that is new.
    pub(crate) fn note_lingering_ranks(&mut self) -> bool {
        let may_run = !self.may_run.is_empty();
        std::mem::replace(&mut self.state.ranks_may_run, may_run) != may_run
    }

    /// Whether a node may run ranks, or may be about to start those of the round.
    pub(crate) fn has_ranks(&self, id: &str, record: &NodeRecord) -> bool {
        let is_member = || self.members.iter().any(|member| member.id == id);
        match record.status {
            NodeStatus::Runs { .. } | NodeStatus::Stops { .. } => true,
            _ if record.info.is_paddle_launcher => false,
            ref status => status.stopped_in() < Some(self.state.round) && is_member(),
        }
    }

    /// When ranks of nodes that are gone have ended.
    pub(crate) fn ranks_gone_at(&self) -> Duration {
        self.may_run.values().copied().fold(self.not_before, Duration::max)
    }
}
