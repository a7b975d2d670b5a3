//! Which nodes cannot take part, and why.

use crate::protocol::record::{FORMAT, JobRules, NodeInfo, NodeRecord};
use std::collections::BTreeMap;

/// The most ranks of a job: the list of the members of such a round fits in a message, on `MAX_NODES` nodes too.
pub const MAX_RANKS: usize = 1 << 18;

/// Whether a node could take part if all others were like it.
pub fn could_be_fit(NodeRecord { format, info, .. }: &NodeRecord) -> bool {
    *format == FORMAT && info.rank.is_none_or(|rank| rank < info.rules.max)
}

/// The ids of nodes that cannot take part, each with the reason. Of two with one number it is the later one in `nodes`.
pub fn find_unfit<'a>(
    nodes: impl Iterator<Item = (&'a str, &'a NodeRecord)>,
    first: &NodeInfo,
) -> BTreeMap<String, String> {
    let rules = &first.rules;
    let mut numbered: BTreeMap<usize, &str> = BTreeMap::new();
    let mut ranks = 0_usize;
    let mut unfit = BTreeMap::new();
    for (id, record) in nodes {
        let info = &record.info;
        let why = if record.format != FORMAT {
            Some(format!(
                "its launcher is version {}, whose protocol is another; use one version on all nodes",
                info.version
            ))
        } else if info.is_paddle_launcher {
            // If only some nodes have numbers, Paddle's launcher computes another order than rlaunch.
            (info.rank.is_some() != first.rank.is_some()).then(|| "--rank: give it to all nodes or to none".to_owned())
        } else {
            info.rules.difference(rules)
        };
        let why = why.or_else(|| match info.rank {
            Some(rank) if rank >= rules.max => {
                Some(format!("--rank {rank}: there are {} nodes, numbered from 0", rules.max))
            }
            Some(rank) => match numbered.get(&rank) {
                Some(host) => Some(format!("--rank {rank}: {host} has that number already")),
                None => {
                    numbered.insert(rank, &info.host);
                    None
                }
            },
            None => None,
        });
        let sum = ranks.saturating_add(info.ranks.max(info.endpoints.len()));
        let why = why.or_else(|| {
            (sum > MAX_RANKS).then(|| format!("its {} ranks are too many: a job has {MAX_RANKS} at most", info.ranks))
        });
        if why.is_none() {
            ranks = sum;
        }
        unfit.extend(why.map(|why| (id.to_owned(), why)));
    }
    unfit
}

/// A warning if launchers have different versions, though their protocol is the same.
pub fn version_warning<'a>(members: impl Iterator<Item = &'a NodeInfo>) -> Option<String> {
    let mut found: BTreeMap<&str, &str> = BTreeMap::new();
    for info in members.filter(|info| !info.is_paddle_launcher) {
        found.entry(&info.version).or_insert(&info.host);
    }
    let all: Vec<String> = found.iter().map(|(version, host)| format!("{version} (on {host})")).collect();
    (all.len() > 1).then(|| format!("the launchers have different versions: {}", all.join(", ")))
}

impl JobRules {
    /// The first difference from the job's rules, for people.
    pub fn difference(&self, job: &JobRules) -> Option<String> {
        let nodes = |rules: &JobRules| match (rules.min, rules.max) {
            (min, max) if min == max => max.to_string(),
            (min, max) => format!("{min}:{max}"),
        };
        let restarts = |rules: &JobRules| rules.restarts.to_string();
        let seconds = |ms: u64| format!("{} s", ms as f64 / 1000.0);
        let pairs = [
            ("the front end", self.frontend.clone(), job.frontend.clone()),
            ("--nnodes", nodes(self), nodes(job)),
            ("restarts", restarts(self), restarts(job)),
            ("the action after a failure", format!("{:?}", self.on_failure), format!("{:?}", job.on_failure)),
            ("the action after a loss", format!("{:?}", self.on_loss), format!("{:?}", job.on_loss)),
            ("the order of nodes", format!("{:?}", self.order), format!("{:?}", job.order)),
            ("--heartbeat_timeout", seconds(self.lease_ms), seconds(job.lease_ms)),
            ("--etcd_loss_timeout", seconds(self.loss_ms), seconds(job.loss_ms)),
            ("the last call", seconds(self.last_call_ms), seconds(job.last_call_ms)),
            ("the time to join", seconds(self.join_ms), seconds(job.join_ms)),
        ];
        let (name, own, others) = pairs.into_iter().find(|(_, own, others)| own != others)?;
        Some(format!("{name}: it was started with {own}, the job with {others}; start all nodes alike"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::record::NodeStatus;

    #[test]
    fn nodes_beyond_the_most_ranks_are_refused_and_smaller_ones_taken() {
        let node = |ranks: usize| {
            let info = NodeInfo { ranks, rules: JobRules { max: 9, ..JobRules::default() }, ..NodeInfo::default() };
            NodeRecord { format: FORMAT, info, status: NodeStatus::Ready { seen: 0 } }
        };
        let nodes = [("a", node(8)), ("b", node(MAX_RANKS)), ("c", node(MAX_RANKS - 8)), ("d", node(1))];
        let unfit = find_unfit(nodes.iter().map(|(id, node)| (*id, node)), &nodes[0].1.info);
        let why = |ranks: usize| format!("its {ranks} ranks are too many: a job has {MAX_RANKS} at most");
        assert_eq!(unfit, BTreeMap::from([("b".to_owned(), why(MAX_RANKS)), ("d".to_owned(), why(1))]));
    }
}
