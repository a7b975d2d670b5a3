//! Which nodes cannot take part, and why.

use crate::model::fingerprint;
use crate::protocol::record::{FORMAT, JobRules, NodeInfo, NodeOrder, NodeRecord, NodeStatus};
use std::collections::BTreeMap;

/// The most ranks of a job: the list of the members of such a round fits in a message, on `MAX_NODES` nodes too.
pub const MAX_RANKS: usize = 1 << 18;

/// How a user keeps two jobs apart.
pub const OTHER_NAME: &str = "with another port or name (--job_id; rlaunch.run: --rdzv-id)";

/// Whether a node could take part if all others were like it.
pub fn could_be_fit(NodeRecord { format, info, .. }: &NodeRecord) -> bool {
    *format == FORMAT && info.rank.is_none_or(|rank| rank < info.rules.max)
}

/// The ids of nodes that cannot take part, each with the reason. Of two with one number, and of too many, it is the later one in
/// `nodes`.
pub fn find_unfit<'a>(
    nodes: impl Iterator<Item = (&'a str, &'a NodeRecord)>,
    first: &NodeInfo,
) -> BTreeMap<String, String> {
    let rules = &first.rules;
    let mut numbered: BTreeMap<usize, &str> = BTreeMap::new();
    let most = rules.spares.map(|spares| rules.max.saturating_add(spares));
    let (mut ranks, mut taken) = (0_usize, 0_usize);
    let mut unfit = BTreeMap::new();
    for (id, record) in nodes {
        let info = &record.info;
        let why = if record.format != FORMAT {
            Some(format!(
                "its launcher is version {}, whose protocol is another; use one version on all nodes",
                info.version
            ))
        } else if info.is_paddle_launcher {
            difference_from_paddle(info, first)
        } else {
            let difference = info.rules.difference(rules);
            difference.or_else(|| info.rules.script_difference(rules, &first.host)).or_else(|| {
                let [own, first] = [info, first].map(|info| (info.host.as_str(), &info.fingerprint));
                fingerprint::required_difference(&rules.require_same, own, first)
            })
        };
        let option = if rules.frontend.starts_with("torch") { "--node-rank" } else { "--rank" };
        let why = why.or_else(|| match info.rank {
            Some(rank) if rank >= rules.max => {
                Some(format!("{option} {rank}: there are {} nodes, numbered from 0", rules.max))
            }
            Some(rank) => match numbered.get(&rank) {
                Some(host) => Some(format!("{option} {rank}: {host} has that number already")),
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
        // Nodes of Paddle's launcher receive no refusal, and one that leaves makes room.
        let leaves = matches!(record.status, NodeStatus::Leaves { .. });
        let is_one_too_many = most.is_some_and(|most| taken >= most) && !info.is_paddle_launcher && !leaves;
        let why = why.or_else(|| {
            let (max, spares) = (rules.max, rules.spares.unwrap_or_default());
            is_one_too_many.then(|| format!("--spares {spares}: the job has {max} nodes and {spares} spare(s) already"))
        });
        if why.is_none() {
            ranks = sum;
            taken += usize::from(!leaves);
        }
        unfit.extend(why.map(|why| (id.to_owned(), why)));
    }
    unfit
}

/// Why Paddle's launcher would make another job than the first node.
fn difference_from_paddle(info: &NodeInfo, first: &NodeInfo) -> Option<String> {
    let with = |info: &NodeInfo| if info.servers > 0 { "with" } else { "without" };
    if with(info) != with(first) {
        let (own, others) = (with(info), with(first));
        return Some(format!("it was started {own} parameter servers, the job {others}; start all nodes alike"));
    }
    if info.servers > 0 && first.rules.order == NodeOrder::Address {
        let why = "--sort_ip: Paddle's launcher does not order nodes with parameter servers by address; leave it out";
        return Some(why.to_owned());
    }
    if !first.rules.require_same.is_empty() {
        let why = "--require_same: Paddle's launcher does not send what would be compared; leave it out";
        return Some(why.to_owned());
    }
    // If only some nodes have numbers, Paddle's launcher computes another order than rlaunch.
    (info.rank.is_some() != first.rank.is_some()).then(|| "--rank: give it to all nodes or to none".to_owned())
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

/// One line for each field of their fingerprints in which nodes differ.
pub fn fingerprint_warnings<'a>(members: impl Iterator<Item = &'a NodeInfo>) -> Vec<String> {
    let nodes: Vec<_> = members.map(|info| (info.host.as_str(), &info.fingerprint)).collect();
    fingerprint::differences(&nodes)
}

impl JobRules {
    /// The first difference from what the job's ranks run, which its first node has, for people. A launcher that does not compare this
    /// sends none.
    fn script_difference(&self, job: &JobRules, host: &str) -> Option<String> {
        let (own, others) = (&self.script, &job.script);
        (!own.is_empty() && !others.is_empty() && own != others).then(|| {
            format!(
                "the job runs {others} (on {host}), this node {own}; if these are two jobs, start one of them {OTHER_NAME}; if they \
                 are one, give all its nodes a name, under which this is not compared"
            )
        })
    }

    /// The first difference from the job's rules, for people.
    pub fn difference(&self, job: &JobRules) -> Option<String> {
        let nodes = |rules: &JobRules| match (rules.min, rules.max) {
            (min, max) if min == max => max.to_string(),
            (min, max) => format!("{min}:{max}"),
        };
        let restarts = |rules: &JobRules| rules.restarts.to_string();
        let spares =
            |rules: &JobRules| rules.spares.map_or_else(|| "any number".to_owned(), |spares| spares.to_string());
        let same = |rules: &JobRules| match rules.require_same.as_str() {
            "" => "nothing".to_owned(),
            words => words.to_owned(),
        };
        let seconds = |ms: u64| format!("{} s", ms as f64 / 1000.0);
        let pairs = [
            ("the front end", self.frontend.clone(), job.frontend.clone()),
            ("--nnodes", nodes(self), nodes(job)),
            ("--spares", spares(self), spares(job)),
            ("--require_same", same(self), same(job)),
            ("restarts", restarts(self), restarts(job)),
            ("the action after a failure", format!("{:?}", self.on_failure), format!("{:?}", job.on_failure)),
            ("the action after a loss", format!("{:?}", self.on_loss), format!("{:?}", job.on_loss)),
            ("the order of nodes", format!("{:?}", self.order), format!("{:?}", job.order)),
            ("--heartbeat_timeout", seconds(self.lease_ms), seconds(job.lease_ms)),
            ("--etcd_loss_timeout", seconds(self.loss_ms), seconds(job.loss_ms)),
            ("the last call", seconds(self.last_call_ms), seconds(job.last_call_ms)),
            ("the time to join", seconds(self.join_ms), seconds(job.join_ms)),
            ("--min_round_time", seconds(self.min_round_ms), seconds(job.min_round_ms)),
            ("--node_failure_limit", self.node_failure_limit.to_string(), job.node_failure_limit.to_string()),
        ];
        let (name, own, others) = pairs.into_iter().find(|(_, own, others)| own != others)?;
        Some(format!("{name}: it was started with {own}, the job with {others}; start all nodes alike"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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

    #[test]
    fn one_spare_too_many_is_refused_and_a_node_that_leaves_makes_room() {
        let rules = JobRules { max: 2, spares: Some(1), ..JobRules::default() };
        let info = NodeInfo { rules, ..NodeInfo::default() };
        let node = |status: NodeStatus| NodeRecord { format: FORMAT, info: info.clone(), status };
        let (waits, leaves) = (NodeStatus::Ready { seen: 0 }, NodeStatus::Leaves { signal: 15 });
        for (first, refused) in [(&waits, vec!["d"]), (&leaves, vec![])] {
            let nodes =
                [("a", first), ("b", &waits), ("c", &waits), ("d", &waits)].map(|(id, is)| (id, node(is.clone())));
            let unfit = find_unfit(nodes.iter().map(|(id, node)| (*id, node)), &info);
            assert_eq!(unfit.keys().collect::<Vec<_>>(), refused, "{unfit:?}");
            let why = "--spares 1: the job has 2 nodes and 1 spare(s) already";
            assert!(unfit.values().all(|text| text == why), "{unfit:?}");
        }
    }

    #[test]
    fn a_node_could_be_fit_by_its_format_and_its_number() {
        for (format, rank, fit) in [
            (FORMAT, None, true),
            (FORMAT, Some(1), true),
            (FORMAT, Some(2), false),
            (FORMAT, Some(3), false),
            (FORMAT + 1, None, false),
            (FORMAT + 1, Some(1), false),
        ] {
            let rules = JobRules { max: 2, ..JobRules::default() };
            let info = NodeInfo { rank, rules, ..NodeInfo::default() };
            let record = NodeRecord { format, info, status: NodeStatus::Ready { seen: 0 } };
            assert_eq!(could_be_fit(&record), fit, "format {format}, rank {rank:?}");
        }
    }

    #[test]
    fn nodes_that_cannot_take_part_are_refused_with_the_reason() {
        let rules = JobRules { min: 2, max: 2, ..JobRules::default() };
        let info = |host: &str, rank| NodeInfo { host: host.into(), rank, rules: rules.clone(), ..NodeInfo::default() };
        let paddle = |rank| NodeInfo { is_paddle_launcher: true, rules: JobRules::default(), ..info("paddle", rank) };
        let other_rules = JobRules { restarts: 3, ..rules.clone() };
        let nodes = [
            ("first", FORMAT, info("host0", Some(0))),
            ("format", FORMAT + 1, NodeInfo { version: "9.9".into(), ..info("host1", Some(1)) }),
            ("rules", FORMAT, NodeInfo { rules: other_rules, ..info("host2", Some(1)) }),
            ("high", FORMAT, info("host3", Some(2))),
            ("same", FORMAT, info("host4", Some(0))),
            ("paddle", FORMAT, paddle(None)),
            ("numbered_paddle", FORMAT, paddle(Some(1))),
            ("plain", FORMAT, info("host5", None)),
        ];
        let nodes =
            nodes.map(|(id, format, info)| (id, NodeRecord { format, info, status: NodeStatus::Ready { seen: 0 } }));
        let unfit = find_unfit(nodes.iter().map(|(id, node)| (*id, node)), &nodes[0].1.info);
        let why = [
            ("format", "its launcher is version 9.9, whose protocol is another; use one version on all nodes"),
            ("high", "--rank 2: there are 2 nodes, numbered from 0"),
            ("paddle", "--rank: give it to all nodes or to none"),
            ("rules", "restarts: it was started with 3, the job with 0; start all nodes alike"),
            ("same", "--rank 0: host0 has that number already"),
        ];
        assert_eq!(unfit, BTreeMap::from(why.map(|(id, why)| (id.to_owned(), why.to_owned()))));
    }

    #[test]
    fn paddle_s_launchers_have_servers_like_the_first_node() {
        let info = |servers, order| NodeInfo {
            servers,
            rules: JobRules { max: 2, order, ..JobRules::default() },
            ..NodeInfo::default()
        };
        let sorted =
            "--sort_ip: Paddle's launcher does not order nodes with parameter servers by address; leave it out";
        for (first, own, order, why) in [
            (0, 0, NodeOrder::Address, None),
            (1, 2, NodeOrder::Name, None),
            (1, 1, NodeOrder::Address, Some(sorted)),
            (
                0,
                1,
                NodeOrder::Name,
                Some("it was started with parameter servers, the job without; start all nodes alike"),
            ),
            (
                1,
                0,
                NodeOrder::Name,
                Some("it was started without parameter servers, the job with; start all nodes alike"),
            ),
        ] {
            let paddle = NodeInfo { is_paddle_launcher: true, ..info(own, NodeOrder::Name) };
            assert_eq!(difference_from_paddle(&paddle, &info(first, order)).as_deref(), why, "{first} {own}");
        }
    }

    #[test]
    fn nodes_that_differ_from_the_first_in_what_has_to_be_the_same_are_refused() {
        let node = |host: &str, git: &str, require_same: &str| {
            let rules = JobRules { max: 9, require_same: require_same.into(), ..JobRules::default() };
            let fingerprint = [("git".to_owned(), git.to_owned())].into();
            let info = NodeInfo { host: host.into(), fingerprint, rules, ..NodeInfo::default() };
            NodeRecord { format: FORMAT, info, status: NodeStatus::Ready { seen: 0 } }
        };
        for (require_same, refused) in [("", vec![]), ("python", vec![]), ("git", vec!["b"]), ("python,git", vec!["b"])]
        {
            let [a, b, c] = [("a", "1"), ("b", "2"), ("c", "1")].map(|(host, git)| node(host, git, require_same));
            let nodes = [("a", &a), ("b", &b), ("c", &c)];
            let unfit = find_unfit(nodes.into_iter(), &a.info);
            assert_eq!(unfit.keys().collect::<Vec<_>>(), refused, "{require_same}");
            assert!(unfit.values().all(|why| why.contains("git commit is 2 on b and 1 on a, the first node;")));
        }
        let [a, mut paddle] = ["git", ""].map(|require_same| node("a", "1", require_same));
        paddle.info.is_paddle_launcher = true;
        let unfit = find_unfit([("a", &a), ("p", &paddle)].into_iter(), &a.info);
        assert!(unfit.get("p").is_some_and(|why| why.starts_with("--require_same: Paddle's launcher")), "{unfit:?}");
    }

    #[test]
    fn only_launchers_of_different_versions_are_warned_of() {
        let node = |version: &str, host: &str, is_paddle_launcher| NodeInfo {
            version: version.into(),
            host: host.into(),
            is_paddle_launcher,
            ..NodeInfo::default()
        };
        let (old, new, paddle) = (node("1.0", "a", false), node("1.1", "b", false), node("", "c", true));
        let mixed = "the launchers have different versions: 1.0 (on a), 1.1 (on b)".to_owned();
        for (nodes, warning) in [
            (vec![], None),
            (vec![&old], None),
            (vec![&old, &old], None),
            (vec![&old, &paddle], None),
            (vec![&new, &old, &paddle], Some(mixed)),
        ] {
            assert_eq!(version_warning(nodes.iter().copied()), warning, "{nodes:?}");
        }
    }

    #[test]
    fn the_first_difference_of_the_rules_is_named() {
        use crate::protocol::record::{OnFailure, OnNodeLoss};
        let job = JobRules { min: 2, max: 2, ..JobRules::default() };
        let with = |change: fn(&mut JobRules)| {
            let mut rules = job.clone();
            change(&mut rules);
            rules
        };
        for (change, text) in [
            (
                (|rules| rules.frontend = "torch".into()) as fn(&mut JobRules),
                "the front end: it was started with torch, the job with ;",
            ),
            (|rules| rules.max = 3, "--nnodes: it was started with 2:3, the job with 2;"),
            (|rules| (rules.min, rules.max) = (3, 3), "--nnodes: it was started with 3, the job with 2;"),
            (|rules| rules.spares = Some(1), "--spares: it was started with 1, the job with any number;"),
            (
                |rules| rules.require_same = "git".into(),
                "--require_same: it was started with git, the job with nothing;",
            ),
            (|rules| rules.restarts = 1, "restarts: it was started with 1, the job with 0;"),
            (
                |rules| rules.on_failure = OnFailure::Hold,
                "the action after a failure: it was started with Hold, the job with End;",
            ),
            (
                |rules| rules.on_loss = OnNodeLoss::Regroup,
                "the action after a loss: it was started with Regroup, the job with End;",
            ),
            (
                |rules| rules.order = NodeOrder::Address,
                "the order of nodes: it was started with Address, the job with Name;",
            ),
            (|rules| rules.lease_ms = 1_500, "--heartbeat_timeout: it was started with 1.5 s, the job with 0 s;"),
            (|rules| rules.loss_ms = 2_000, "--etcd_loss_timeout: it was started with 2 s, the job with 0 s;"),
            (|rules| rules.last_call_ms = 10, "the last call: it was started with 0.01 s, the job with 0 s;"),
            (|rules| rules.join_ms = 9_000, "the time to join: it was started with 9 s, the job with 0 s;"),
        ] {
            let text = format!("{text} start all nodes alike");
            assert_eq!(with(change).difference(&job), Some(text));
        }
        // The first node decides about the last call, and each node about its own exit status for a restart.
        for change in [(|rules| rules.no_last_call_at = Some(2)) as fn(&mut JobRules), |rules| rules.again = Some(9)] {
            assert_eq!(with(change).difference(&job), None);
        }
    }
}
