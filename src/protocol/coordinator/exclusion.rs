//! Nodes that harm the job: one that cannot begin, or whose ranks fail again and again, takes part no more where the others can
//! continue without it.

use crate::protocol::coordinator::Coordinator;
use crate::protocol::record::{JobRules, OnFailure, RankFailure};
use crate::protocol::state::{FailingNode, RoundMember};

impl Coordinator {
    /// Why this failure excludes its node from the job, if it does.
    pub(crate) fn excludes(&self, rules: &JobRules, failure: &RankFailure) -> Option<String> {
        let member = self.members.get(failure.node)?;
        let others =
            self.members.iter().filter(|other| other.id != member.id && self.nodes.contains_key(&other.id)).count();
        let is_elastic = rules.min < rules.max && rules.on_failure != OnFailure::Hold;
        if !is_elastic || others < rules.min || failure.again || self.count_done() > 0 {
            return None;
        }
        if failure.cannot_begin {
            return Some(format!("it cannot begin: {}", failure.message));
        }
        let in_a_row = self.failures_in_a_row(member);
        let restarts = rules.on_failure == OnFailure::Restart && rules.restarts > 0;
        // A rank that felt another one's end is not the first to fail.
        let is_own = restarts && rules.node_failure_limit > 0 && !failure.lost_peer;
        // Its own rules may refuse a restart after such a failure.
        let is_open = failure.no_restart.is_none() || self.state.failures >= rules.restarts;
        // One more failure ends the job.
        let limit = rules.node_failure_limit.min(rules.restarts.saturating_add(1));
        (is_own && is_open && in_a_row >= limit).then(|| {
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
        // Restarts are for the others.
        self.state.failures = self.state.failures.saturating_sub(in_a_row - 1);
        self.state.last_failed = None;
        self.state.excluded.insert(id, format!("it is excluded from the job: {why}"));
        Some(text)
    }

    /// How many of the job's last failures are this member's, with the one at hand.
    fn failures_in_a_row(&self, member: &RoundMember) -> u32 {
        let before = self.state.last_failed.as_ref().filter(|last| last.id == member.id);
        before.map_or(1, |last| last.in_a_row.saturating_add(1))
    }
}
