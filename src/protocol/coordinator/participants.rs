//! The nodes that have joined: those that are refused, those that wait, and what waiting nodes receive of them.

use crate::protocol::admission;
use crate::protocol::admission::OTHER_NAME;
use crate::protocol::coordinator::{Coordinator, CoordinatorNode};
use crate::protocol::order::Candidate;
use crate::protocol::record::{JobRules, NodeInfo, millis};
use crate::protocol::state::{JobPhase, Participants};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// How many participants are named.
const MAX_NAMED: usize = 32;
/// How many machines of a complete job are named.
const MAX_HOSTS: usize = 4;
/// How much later than two leases a backend may report that a node is gone: etcd rounds leases up to whole seconds, and looks for
/// lapsed ones from time to time.
const LATE: Duration = Duration::from_secs(2);
/// How many refusals a state contains. A node that is refused leaves at once.
const MAX_REFUSED: usize = 64;

impl Coordinator {
    /// Refuses nodes that cannot take part. After the end it refuses none: nodes that join then wait for another job of this name.
    pub(super) fn refuse_unfit(&mut self, now: Duration) {
        let Some(first) = self.first_node() else { return };
        if matches!(self.state.phase, JobPhase::Ended { .. }) {
            return;
        }
        // A refusal is kept, also when another coordinator receives the records in another order.
        let members: BTreeSet<&String> = self.members.iter().map(|member| &member.id).collect();
        let refused = &self.state.refused;
        // An excluded node takes the place of no other.
        let excluded = &self.state.excluded;
        let mut by_right: Vec<(&String, &CoordinatorNode)> =
            self.nodes.iter().filter(|(id, _)| !excluded.contains_key(*id)).collect();
        by_right.sort_by_key(|(id, node)| (!members.contains(id), refused.contains_key(*id), node.joined));
        let mut unfit =
            admission::find_unfit(by_right.into_iter().map(|(id, node)| (id.as_str(), &node.record)), first);
        let (surplus, next) = self.find_surplus(&first.rules, &unfit, now);
        unfit.extend(surplus);
        // They leave when they learn of it, which the others must not take for a loss that stops the round.
        let stops = matches!(self.state.phase, JobPhase::Stopping { .. });
        let leaves = |id: &String| self.nodes.contains_key(id) && !(stops && members.contains(id));
        let excluded = self.state.excluded.iter().filter(|(id, _)| leaves(id));
        unfit.extend(excluded.map(|(id, why)| (id.clone(), why.clone())));
        self.unfit = unfit.keys().cloned().collect();
        // The first reason stays, which may name the node that was the first then.
        let with_reason = |(id, why)| {
            let why = self.state.refused.get(&id).cloned().unwrap_or(why);
            (id, why)
        };
        let refused: BTreeMap<String, String> = unfit.into_iter().take(MAX_REFUSED).map(with_reason).collect();
        if refused != self.state.refused {
            self.state.refused = refused;
            self.changed = true;
        }
        if let Some(at) = next {
            self.wake_at(at);
        }
    }

    /// The nodes that wait beside a round of a job that replaces no node, each with the reason why it cannot take part, and when there are
    /// more. A member may be an earlier launcher that has gone with its machine, and this node the same one anew: it is refused once that
    /// one's lease would have lapsed. A job that is about to end refuses none.
    fn find_surplus(
        &self,
        rules: &JobRules,
        unfit: &BTreeMap<String, String>,
        now: Duration,
    ) -> (BTreeMap<String, String>, Option<Duration>) {
        let are_here = self.members.iter().all(|member| self.nodes.contains_key(&member.id));
        let is_complete = are_here && matches!(self.state.phase, JobPhase::Running);
        let lease = Duration::from_millis(rules.lease_ms);
        if !is_complete || rules.replace_nodes() || lease.is_zero() {
            return (BTreeMap::new(), None);
        }
        let patience = 2 * lease + LATE;
        let hosts: Vec<&str> = self.members.iter().map(|member| member.info.host.as_str()).take(MAX_HOSTS).collect();
        let more = self.members.len().saturating_sub(MAX_HOSTS);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        let why = format!(
            "the job has all of its {} nodes ({}{more}), and replaces none; if this node is of another job, start that \
             {OTHER_NAME}",
            self.members.len(),
            hosts.join(", ")
        );
        let is_member = |id: &String| self.members.iter().any(|member| member.id == *id);
        let waits = |(id, node): &(&String, &CoordinatorNode)| {
            !is_member(id) && !unfit.contains_key(*id) && !node.record.info.is_paddle_launcher
        };
        let (due, later): (Vec<_>, Vec<_>) =
            self.nodes.iter().filter(waits).partition(|(_, node)| now >= node.came + patience);
        let next = later.into_iter().map(|(_, node)| node.came + patience).min();
        (due.into_iter().map(|(id, _)| (id.clone(), why.clone())).collect(), next)
    }

    /// The machines of nodes that could join the round that runs.
    pub(crate) fn newcomers(&self, rules: &JobRules) -> Vec<String> {
        self.waiting(rules.max.saturating_sub(self.members.len()))
    }

    /// The machines of nodes that wait beside the round that runs; so many at most.
    pub(crate) fn waiting(&self, room: usize) -> Vec<String> {
        let is_new = |one: &Candidate<'_>| !self.members.iter().any(|member| member.id == one.id);
        let ready = self.ready_nodes();
        ready.iter().filter(|one| is_new(one)).map(|one| one.info.host.clone()).take(room).collect()
    }

    /// Those that are ready, and how long more are waited for.
    pub(crate) fn participants(&self, rules: &JobRules, now: Duration, until: Duration) -> Participants {
        let mut ready = self.ready_nodes();
        ready.sort_by_key(|one| (one.info.rank, one.joined));
        let name = |one: &Candidate<'_>| {
            let NodeInfo { host, address, rank, .. } = one.info;
            let number = rank.map_or(String::new(), |rank| format!("{rank}: "));
            format!("{number}{host} ({address})")
        };
        let numbers: Vec<usize> = ready.iter().filter_map(|one| one.info.rank).collect();
        let missing = (0..rules.max).filter(|rank| !numbers.contains(rank)).take(MAX_NAMED);
        Participants {
            ready: ready.len(),
            min: rules.min,
            max: rules.max,
            here: ready.iter().take(MAX_NAMED).map(name).collect(),
            missing: if numbers.is_empty() { Vec::new() } else { missing.collect() },
            left_ms: millis(until.saturating_sub(now)),
        }
    }
}
