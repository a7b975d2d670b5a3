//! What nodes tell each other: keys and values. Pure.

use serde_json::{Value, json};
use std::collections::HashMap;

/// How many have come, as the constructor of torch's TCPStore counts them.
pub const COUNT: &[u8] = b"init/";
/// Who a node is: this and its number.
pub const INFO: &str = "torchelastic/role_info/";
/// The numbers of its workers: this and its number.
pub const NUMBERS: &str = "torchelastic/assigned_ranks/";
/// How many have ended well.
pub const ENDED: &str = "torchelastic/agent/terminal_state/num_members";
/// There once all have.
pub const ALL_ENDED: &str = "torchelastic/agent/terminal_state/last_member";
/// There if node 0's launcher is rlaunch: those who have not come yet, once that is known.
pub const MISSING: &str = "torchelastic/rlaunch/missing";
/// What a node's workers failed of: this and its number.
pub const FAILED: &str = "torchelastic/rlaunch/failed/";
/// What all these keys begin with.
pub const ALL: &str = "torchelastic/";

/// Who a node is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Info {
    /// Its workers' role.
    pub role: String,
    /// How many it has.
    pub workers: usize,
}

/// No node has more workers.
const MOST_WORKERS: u64 = 1 << 20;

impl Info {
    /// As torchrun's agents write it.
    pub fn encode(&self, node: usize) -> Vec<u8> {
        json!({"role": self.role, "rank": node, "local_world_size": self.workers}).to_string().into_bytes()
    }

    /// What a node has written; `None` if it makes no sense.
    pub fn decode(text: &[u8], node: usize) -> Option<Self> {
        let value: Value = serde_json::from_slice(text).ok()?;
        let workers = value["local_world_size"].as_u64().filter(|count| (1..=MOST_WORKERS).contains(count))?;
        let same = value["rank"].as_u64() == Some(node as u64);
        let role = value["role"].as_str().filter(|_| same)?.to_owned();
        Some(Self { role, workers: usize::try_from(workers).ok()? })
    }
}

/// The numbers of a node's workers: the first of them, and how many there are in the job; both again among those of
/// its role.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Numbers {
    /// The first worker's.
    pub first_rank: usize,
    /// Workers in the job.
    pub world_size: usize,
    /// The first worker's among those of its role.
    pub first_role_rank: usize,
    /// Workers of its role.
    pub role_size: usize,
}

impl Numbers {
    /// As torchrun's agents write it.
    pub fn encode(&self) -> Vec<u8> {
        json!([self.first_rank, self.world_size, self.first_role_rank, self.role_size]).to_string().into_bytes()
    }

    /// What node 0 has written: numbers, or why there are none.
    pub fn decode(text: &[u8]) -> Result<Self, String> {
        let senseless = || "what node 0 has written makes no sense".to_owned();
        let value: Value = serde_json::from_slice(text).map_err(|_| senseless())?;
        if let Some(why) = value.as_str() {
            return Err(why.to_owned());
        }
        let number = |at: usize| value[at].as_u64().filter(|n| *n < 1 << 40).and_then(|n| usize::try_from(n).ok());
        let all = (number(0), number(1), number(2), number(3));
        let (Some(first_rank), Some(world_size), Some(first_role_rank), Some(role_size)) = all else {
            return Err(senseless());
        };
        Ok(Self { first_rank, world_size, first_role_rank, role_size })
    }
}

/// Numbers for the workers of all nodes, in the nodes' order.
pub fn numbers(nodes: &[Info]) -> Vec<Numbers> {
    let mut sizes: HashMap<&str, usize> = HashMap::new();
    let world_size = nodes.iter().map(|node| node.workers).sum();
    for node in nodes {
        *sizes.entry(&node.role).or_default() += node.workers;
    }
    let (mut first_rank, mut of_role) = (0, HashMap::<&str, usize>::new());
    let mut all = Vec::with_capacity(nodes.len());
    for Info { role, workers } in nodes {
        let (next, role_size) = (of_role.entry(role).or_default(), sizes[role.as_str()]);
        all.push(Numbers { first_rank, world_size, first_role_rank: *next, role_size });
        first_rank += workers;
        *next += workers;
    }
    all
}

/// `node 1`, `nodes 1, 2 and 5 to 9`.
pub fn named(nodes: &[usize]) -> String {
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

    fn info() -> impl Strategy<Value = Info> {
        ("[a-c\"\\\\é]", 1usize..9).prop_map(|(role, workers)| Info { role, workers })
    }

    proptest! {
        #[test]
        fn every_worker_has_a_number_of_its_own(nodes in prop::collection::vec(info(), 1..12)) {
            let given = numbers(&nodes);
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
        fn what_is_written_is_read(info in info(), node in 0usize..99, all in prop::array::uniform4(0usize..1 << 39)) {
            prop_assert_eq!(Info::decode(&info.encode(node), node), Some(info.clone()));
            prop_assert_eq!(Info::decode(&info.encode(node), node + 1), None);
            let [first_rank, world_size, first_role_rank, role_size] = all;
            let numbers = Numbers { first_rank, world_size, first_role_rank, role_size };
            prop_assert_eq!(Numbers::decode(&numbers.encode()), Ok(numbers));
        }

        #[test]
        fn nonsense_is_harmless(text in prop::collection::vec(any::<u8>(), 0..60)) {
            let _ = Info::decode(&text, 0);
            let _ = Numbers::decode(&text);
        }
    }

    #[test]
    fn torchs_own_words_are_understood() {
        let written = br#"{"role": "trainer", "rank": 2, "local_world_size": 4}"#;
        assert_eq!(Info::decode(written, 2), Some(Info { role: "trainer".into(), workers: 4 }));
        let numbers = Numbers { first_rank: 2, world_size: 6, first_role_rank: 0, role_size: 4 };
        assert_eq!(Numbers::decode(b"[2, 6, 0, 4]"), Ok(numbers));
        assert_eq!(Numbers::decode(br#""node 1 has not come""#), Err("node 1 has not come".into()));
        assert!(Numbers::decode(b"[1, 2, 3]").is_err());
        assert!(Info::decode(br#"{"role": "a", "rank": 0, "local_world_size": 0}"#, 0).is_none());
    }

    #[test]
    fn nodes_are_named_in_runs() {
        for (nodes, text) in [
            (&[1][..], "node 1"),
            (&[1, 2], "nodes 1 and 2"),
            (&[0, 2, 3, 4, 5, 9], "nodes 0, 2 to 5 and 9"),
            (&[], "nodes none"),
        ] {
            assert_eq!(named(nodes), text);
        }
    }
}
