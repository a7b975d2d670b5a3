//! The nodes that have joined, as waiting nodes receive them.

use crate::protocol::coordinator::Coordinator;
use crate::protocol::order::Candidate;
use crate::protocol::record::{JobRules, NodeInfo, millis};
use crate::protocol::state::Participants;
use std::time::Duration;

/// How many participants are named.
const MAX_NAMED: usize = 32;

impl Coordinator {
    /// The machines of nodes that could join the round that runs.
    pub(crate) fn newcomers(&self, rules: &JobRules) -> Vec<String> {
        let room = rules.max.saturating_sub(self.members.len());
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
