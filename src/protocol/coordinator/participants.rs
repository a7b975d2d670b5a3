//! The nodes that have joined: those that are refused, those that wait, and what waiting nodes receive of them.

use crate::protocol::admission;
use crate::protocol::coordinator::{Coordinator, CoordinatorNode};
use crate::protocol::order::Candidate;
use crate::protocol::record::{JobRules, NodeInfo, millis};
use crate::protocol::state::{JobPhase, Participants};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// How many participants are named.
const MAX_NAMED: usize = 32;
/// How many refusals a state contains. A node that is refused leaves at once.
const MAX_REFUSED: usize = 64;

impl Coordinator {
    /// Refuses nodes that cannot take part. After the end it refuses none: nodes that join then wait for another job of this name.
    pub(super) fn refuse_unfit(&mut self) {
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
