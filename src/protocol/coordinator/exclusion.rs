//! Nodes that harm the job: one that cannot begin, or whose ranks fail again and again, takes part no more where the others can
//! continue without it.

use crate::protocol::coordinator::{Coordinator, CoordinatorNode};
use crate::protocol::record::{JobRules, NodeStatus, NodeStop, OnFailure, RankFailure};
use crate::protocol::state::{FailingNode, RoundMember};
use std::time::Duration;

/// A launcher that is started again on a bad machine is a new node. After so many exclusions the job ends as without them.
const MOST_EXCLUDED: usize = 8;
/// After a round that ran for so long, earlier failures count no more for their node.
const LONG_ROUND: Duration = Duration::from_secs(600);
/// The longest part of an error that states repeat to all nodes.
const LONGEST_REASON: usize = 200;

impl Coordinator {
    /// Why this failure excludes its node from the job, if it does.
    pub(crate) fn excludes(&self, rules: &JobRules, failure: &RankFailure) -> Option<String> {
        let member = self.members.get(failure.node)?;
        let has_spares = rules.spares.is_some_and(|spares| spares > 0);
        let is_elastic = (rules.min < rules.max || has_spares) && rules.on_failure != OnFailure::Hold;
        let serves_master = self.nodes.get(&member.id).is_some_and(|node| node.record.info.serves_master);
        let is_full = self.state.excluded.len() >= MOST_EXCLUDED;
        if !is_elastic || is_full || serves_master || failure.again || self.count_done() > 0 {
            return None;
        }
        let others: Vec<&CoordinatorNode> = self
            .members
            .iter()
            .filter(|other| other.id != member.id)
            .filter_map(|other| self.nodes.get(&other.id))
            .collect();
        let is_able = |node: &CoordinatorNode| !self.own_failure(node).is_some_and(|own| own.cannot_begin);
        let room = rules.max.saturating_sub(others.len());
        if others.iter().filter(|node| is_able(node)).count() + self.waiting(room).len() < rules.min {
            return None;
        }
        if failure.cannot_begin {
            let message: String = failure.message.chars().take(LONGEST_REASON).collect();
            return Some(format!("it cannot begin: {message}"));
        }
        let in_a_row = self.failures_in_a_row(member);
        let restarts = rules.on_failure == OnFailure::Restart && rules.restarts > 0;
        // A rank that felt another one's end is not the first to fail, and what all nodes suffer from is no node's fault.
        let is_alone =
            !failure.lost_peer && !others.iter().any(|node| self.own_failure(node).is_some_and(|own| !own.lost_peer));
        // Its own rules may refuse a restart after such a failure.
        let is_open = failure.no_restart.is_none() || self.state.failures >= rules.restarts;
        // One more failure ends the job.
        let limit = rules.node_failure_limit.min(rules.restarts.saturating_add(1));
        (restarts && limit > 0 && is_alone && is_open && in_a_row >= limit).then(|| {
            format!("its ranks failed {in_a_row} times in a row, last {}: {}", failure.process, failure.outcome)
        })
    }

    /// Counts a failure for its node, and excludes it if it harms the job. Returns a warning for the others.
    pub(crate) fn exclude(&mut self, rules: &JobRules, failure: &RankFailure) -> Option<String> {
        let why = self.excludes(rules, failure);
        let member = self.members.get(failure.node)?;
        let (id, in_a_row) = (member.id.clone(), self.failures_in_a_row(member));
        let Some(why) = why else {
            if !failure.again && !failure.lost_peer {
                self.state.last_failed = Some(FailingNode { id, in_a_row });
            }
            return None;
        };
        let text = format!("{} ({}) is excluded from the job: {why}", member.info.host, member.info.address);
        if self.state.excluded.is_empty() {
            // Restarts are for the others. Once: what excludes several nodes may be the script's fault.
            self.state.failures = self.state.failures.saturating_sub(in_a_row - 1);
        }
        self.state.last_failed = None;
        self.state.excluded.insert(id, format!("it is excluded from the job: {why}"));
        Some(text)
    }

    /// Forgets the failures before a round that has run for long.
    pub(crate) fn forget_failures(&mut self, now: Duration) {
        if now.saturating_sub(self.round_began) >= LONG_ROUND {
            self.state.last_failed = None;
        }
    }

    /// The failure that a node reports in this round.
    fn own_failure<'a>(&self, node: &'a CoordinatorNode) -> Option<&'a RankFailure> {
        match &node.record.status {
            NodeStatus::Failed { round, failure } | NodeStatus::Stops { round, why: NodeStop::Failure { failure } }
                if *round == self.state.round =>
            {
                Some(failure)
            }
            _ => None,
        }
    }

    /// How many of the job's last failures are this member's, with the one at hand.
    fn failures_in_a_row(&self, member: &RoundMember) -> u32 {
        let before = self.state.last_failed.as_ref().filter(|last| last.id == member.id);
        before.map_or(1, |last| last.in_a_row.saturating_add(1))
    }
}
