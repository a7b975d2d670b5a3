//! The keys and values by which nodes exchange their numbers. Pure.

use serde_json::{Value, json};
use std::collections::HashMap;

/// The number of clients that have joined, as the constructor of torch's TCPStore counts them.
pub const COUNT: &[u8] = b"init/";
/// A node's information: this and its number.
pub const INFO: &str = "torchelastic/role_info/";
/// The rank numbers of its workers: this and its number.
pub const NUMBERS: &str = "torchelastic/assigned_ranks/";
/// The number of nodes that have finished successfully.
pub const ENDED: &str = "torchelastic/agent/terminal_state/num_members";
/// Set once all nodes have.
pub const ALL_ENDED: &str = "torchelastic/agent/terminal_state/last_member";
/// The nodes that have not joined yet. Set only if node 0's launcher is rlaunch.
pub const MISSING: &str = "torchelastic/rlaunch/missing";
/// Why a node's workers have failed: this and its number.
pub const FAILED: &str = "torchelastic/rlaunch/failed/";
/// How the job ended, a `JobEnd` as JSON: a rank of a node failed, or node 0, whose store all need, was stopped.
pub const END: &str = "torchelastic/rlaunch/end";
/// That a node learns when `END` is set: this and its number.
pub const LISTENS: &str = "torchelastic/rlaunch/listens/";
/// That it has learned it: this and its number.
pub const LEARNED: &str = "torchelastic/rlaunch/learned/";
/// The longest text at `END` that is read.
pub const MAX_END: usize = 64 * 1024;
/// Messages to all nodes but node 0: this and `count` has their number, this and a number from 1 on is one of them.
pub const MESSAGES: &str = "torchelastic/rlaunch/messages/";
/// The same, to node 0 alone.
pub const MESSAGES_TO_FIRST: &str = "torchelastic/rlaunch/messages_to_0/";
/// The prefix of all these keys.
pub const ALL: &str = "torchelastic/";

/// A node's information.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StaticNodeInfo {
    /// Its workers' role.
    pub role: String,
    /// The number of its workers.
    pub workers: usize,
}

/// The most workers of a node.
const MAX_WORKERS: u64 = 1 << 20;

impl StaticNodeInfo {
    /// As torchrun's agents write it.
    pub fn encode(&self, node: usize) -> Vec<u8> {
        json!({"role": self.role, "rank": node, "local_world_size": self.workers}).to_string().into_bytes()
    }

    /// Decodes the information of a node; `None` if it is invalid.
    pub fn decode(text: &[u8], node: usize) -> Option<Self> {
        let value: Value = serde_json::from_slice(text).ok()?;
        let workers = value["local_world_size"].as_u64().filter(|count| (1..=MAX_WORKERS).contains(count))?;
        let is_own = value["rank"].as_u64() == Some(node as u64);
        let role = value["role"].as_str().filter(|_| is_own)?.to_owned();
        Some(Self { role, workers: usize::try_from(workers).ok()? })
    }
}

/// The rank numbers of a node's workers: the first one and their total, in the job and among those of the same role.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RankNumbers {
    /// The first worker's.
    pub first_rank: usize,
    /// Workers in the job.
    pub world_size: usize,
    /// The first worker's among those of its role.
    pub first_role_rank: usize,
    /// Workers of its role.
    pub role_size: usize,
}

impl RankNumbers {
    /// As torchrun's agents write it.
    pub fn encode(&self) -> Vec<u8> {
        json!([self.first_rank, self.world_size, self.first_role_rank, self.role_size]).to_string().into_bytes()
    }

    /// Decodes what node 0 has written.
    pub fn decode(text: &[u8]) -> Result<Self, RankNumbersError> {
        let value: Value = serde_json::from_slice(text).map_err(|_| RankNumbersError::Malformed)?;
        if let Some(why) = value.as_str() {
            return Err(RankNumbersError::Cancelled(why.to_owned()));
        }
        let number = |at: usize| value[at].as_u64().filter(|n| *n < 1 << 40).and_then(|n| usize::try_from(n).ok());
        let all = (number(0), number(1), number(2), number(3));
        let (Some(first_rank), Some(world_size), Some(first_role_rank), Some(role_size)) = all else {
            return Err(RankNumbersError::Malformed);
        };
        Ok(Self { first_rank, world_size, first_role_rank, role_size })
    }
}

/// Why node 0 has not given a node its rank numbers.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RankNumbersError {
    /// Node 0 has cancelled the rendezvous, for this reason.
    #[error("{0}")]
    Cancelled(String),
    /// The value is neither numbers nor a reason.
    #[error("the rank numbers that node 0 has written are invalid")]
    Malformed,
}

/// The rank numbers of all nodes, in their order.
pub fn assign_numbers(nodes: &[StaticNodeInfo]) -> Vec<RankNumbers> {
    let mut sizes: HashMap<&str, usize> = HashMap::new();
    let world_size = nodes.iter().map(|node| node.workers).sum();
    for node in nodes {
        *sizes.entry(&node.role).or_default() += node.workers;
    }
    let (mut first_rank, mut of_role) = (0, HashMap::<&str, usize>::new());
    let mut all = Vec::with_capacity(nodes.len());
    for StaticNodeInfo { role, workers } in nodes {
        let (next, role_size) = (of_role.entry(role).or_default(), sizes[role.as_str()]);
        all.push(RankNumbers { first_rank, world_size, first_role_rank: *next, role_size });
        first_rank += workers;
        *next += workers;
    }
    all
}

/// Names nodes for people: `node 1`, `nodes 1, 2 and 5 to 9`.
pub fn format_nodes(nodes: &[usize]) -> String {
    let mut runs: Vec<(usize, usize)> = Vec::new();
    for &node in nodes {
        match runs.last_mut() {
            Some((_, last)) if *last + 1 == node => *last = node,
            _ => runs.push((node, node)),
        }
    }
    let parts = runs.iter().flat_map(|&(first, last)| match last - first {
        0 => vec![first.to_string()],
        1 => vec![first.to_string(), last.to_string()],
        _ => vec![format!("{first} to {last}")],
    });
    let parts: Vec<String> = parts.collect();
    let listed = match parts.split_last() {
        Some((last, [])) => last.clone(),
        Some((last, rest)) => format!("{} and {last}", rest.join(", ")),
        None => "none".to_owned(),
    };
    format!("{} {listed}", if nodes.len() == 1 { "node" } else { "nodes" })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // A test fails by panicking.
    use super::*;
    use proptest::prelude::*;

    fn info() -> impl Strategy<Value = StaticNodeInfo> {
        ("[a-c\"\\\\é]", 1usize..9).prop_map(|(role, workers)| StaticNodeInfo { role, workers })
    }

    proptest! {
        #[test]
        fn every_worker_has_its_own_number(nodes in prop::collection::vec(info(), 1..12)) {
            let given = assign_numbers(&nodes);
            let (mut ranks, mut of_roles) = (Vec::new(), HashMap::<&str, Vec<usize>>::new());
            for (node, numbers) in nodes.iter().zip(&given) {
                ranks.extend(numbers.first_rank..numbers.first_rank + node.workers);
                let own = numbers.first_role_rank..numbers.first_role_rank + node.workers;
                of_roles.entry(&node.role).or_default().extend(own);
            }
            let world: usize = nodes.iter().map(|node| node.workers).sum();
            prop_assert_eq!(ranks, (0..world).collect::<Vec<_>>());
            for (node, numbers) in nodes.iter().zip(&given) {
                prop_assert_eq!(numbers.world_size, world);
                prop_assert_eq!(&of_roles[node.role.as_str()], &(0..numbers.role_size).collect::<Vec<_>>());
            }
        }

        #[test]
        fn encoded_values_are_decoded(info in info(), node in 0usize..99, all in prop::array::uniform4(0usize..1 << 39)) {
            prop_assert_eq!(StaticNodeInfo::decode(&info.encode(node), node), Some(info.clone()));
            prop_assert_eq!(StaticNodeInfo::decode(&info.encode(node), node + 1), None);
            let [first_rank, world_size, first_role_rank, role_size] = all;
            let numbers = RankNumbers { first_rank, world_size, first_role_rank, role_size };
            prop_assert_eq!(RankNumbers::decode(&numbers.encode()), Ok(numbers));
        }

        #[test]
        fn invalid_values_are_rejected(text in prop::collection::vec(any::<u8>(), 0..60)) {
            let _ = StaticNodeInfo::decode(&text, 0);
            let _ = RankNumbers::decode(&text);
        }
    }

    #[test]
    fn values_of_torchrun_are_decoded() {
        let written = br#"{"role": "trainer", "rank": 2, "local_world_size": 4}"#;
        assert_eq!(StaticNodeInfo::decode(written, 2), Some(StaticNodeInfo { role: "trainer".into(), workers: 4 }));
        let numbers = RankNumbers { first_rank: 2, world_size: 6, first_role_rank: 0, role_size: 4 };
        assert_eq!(RankNumbers::decode(b"[2, 6, 0, 4]"), Ok(numbers));
        assert_eq!(
            RankNumbers::decode(br#""node 1 has not come""#),
            Err(RankNumbersError::Cancelled("node 1 has not come".into()))
        );
        assert!(RankNumbers::decode(b"[1, 2, 3]").is_err());
        assert!(StaticNodeInfo::decode(br#"{"role": "a", "rank": 0, "local_world_size": 0}"#, 0).is_none());
    }

    #[test]
    fn nodes_are_named_in_runs() {
        for (nodes, text) in [
            (&[1][..], "node 1"),
            (&[1, 2], "nodes 1 and 2"),
            (&[0, 2, 3, 4, 5, 9], "nodes 0, 2 to 5 and 9"),
            (&[], "nodes none"),
        ] {
            assert_eq!(format_nodes(nodes), text);
        }
    }
}
