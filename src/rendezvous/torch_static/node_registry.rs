//! The registry of nodes, as node 0 sees them in its store: which have joined, finished and left. Pure.

use crate::model::plain_text::escape;
use crate::net::server::ConnectionId;
use crate::rendezvous::torch_static::codec;
use crate::rendezvous::torch_static::codec::StaticNodeInfo;
use crate::rendezvous::torch_store::StoreEvent;
use std::collections::{BTreeMap, BTreeSet};

/// Where a node stands.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub enum NodeStage {
    /// It has not joined, or has left before all had joined.
    #[default]
    Missing,
    /// It has joined.
    Here,
    /// Its workers have exited successfully, and its launcher is still connected.
    Finished,
    /// Its workers have exited successfully, and its launcher has disconnected.
    Left,
    /// Its launcher has disconnected before that.
    Lost,
}

/// All nodes of a job.
#[derive(Clone, Debug)]
pub struct NodeRegistry {
    nodes: Vec<RegisteredNode>,
    clients: BTreeMap<ConnectionId, usize>,
    /// Launchers with the number of another one.
    duplicates: BTreeSet<ConnectionId>,
    /// All have joined: from now on a node that leaves cannot join again.
    is_complete: bool,
}

#[derive(Clone, Debug, Default)]
struct RegisteredNode {
    stage: NodeStage,
    info: Option<StaticNodeInfo>,
    failure: Option<String>,
    /// It listens for the end of the job, and has not learned it yet.
    listens: bool,
}

/// What an event of the store means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RegistryChange {
    /// A node has joined.
    Joined(usize),
    /// Two launchers have the number of this node.
    Duplicate(usize),
    /// A node has left before all had joined.
    LeftEarly(usize),
    /// A node's workers have exited successfully.
    Finished(usize),
    /// The launcher of a node that had finished has disconnected.
    Left(usize),
    /// A node has written how the job ended.
    JobEnded,
    /// The launcher of a node has disconnected before its workers had exited successfully; with the reason that it gave.
    Lost(usize, Option<String>),
}

impl NodeRegistry {
    /// No node has joined.
    pub fn new(nodes: usize) -> Self {
        Self {
            nodes: vec![RegisteredNode::default(); nodes],
            clients: BTreeMap::new(),
            duplicates: BTreeSet::new(),
            is_complete: false,
        }
    }

    /// Takes note of an event of the store.
    pub fn note_event(&mut self, event: &StoreEvent) -> Option<RegistryChange> {
        match event {
            StoreEvent::Touched { client, key, value } => {
                self.note_touched(*client, std::str::from_utf8(key).ok()?, value)
            }
            StoreEvent::Left(client) => {
                self.duplicates.remove(client);
                let number = self.clients.remove(client)?;
                let is_complete = self.is_complete;
                let node = &mut self.nodes[number];
                let (stage, change) = match node.stage {
                    NodeStage::Finished => (NodeStage::Left, RegistryChange::Left(number)),
                    _ if is_complete => (NodeStage::Lost, RegistryChange::Lost(number, node.failure.take())),
                    _ => (NodeStage::Missing, RegistryChange::LeftEarly(number)),
                };
                (node.stage, node.listens) = (stage, false);
                Some(change)
            }
        }
    }

    fn note_touched(&mut self, client: ConnectionId, key: &str, value: &[u8]) -> Option<RegistryChange> {
        let key = format!("{}{key}", codec::ALL);
        if let Some(number) = key.strip_prefix(codec::INFO) {
            let number: usize = number.parse().ok()?;
            let node = self.nodes.get_mut(number)?;
            // A torch agent that restarts its workers registers again.
            if self.is_complete || self.clients.get(&client) == Some(&number) {
                return None;
            }
            let info = StaticNodeInfo::decode(value, number)?;
            if node.stage != NodeStage::Missing || self.clients.contains_key(&client) {
                self.duplicates.insert(client);
                return Some(RegistryChange::Duplicate(number));
            }
            *node = RegisteredNode { stage: NodeStage::Here, info: Some(info), ..RegisteredNode::default() };
            self.clients.insert(client, number);
            return Some(RegistryChange::Joined(number));
        }
        let number = *self.clients.get(&client)?;
        let node = &mut self.nodes[number];
        if key == codec::ENDED && node.stage == NodeStage::Here {
            node.stage = NodeStage::Finished;
            return Some(RegistryChange::Finished(number));
        }
        if key == format!("{}{number}", codec::FAILED) {
            node.failure = Some(escape(&String::from_utf8_lossy(value)));
        } else if key == format!("{}{number}", codec::LISTENS) {
            node.listens = true;
        } else if key == format!("{}{number}", codec::LEARNED) {
            node.listens = false;
        }
        (key == codec::END).then_some(RegistryChange::JobEnded)
    }

    /// The information of all nodes, once all have joined. From then on the registry is complete.
    pub fn complete(&mut self) -> Option<Vec<StaticNodeInfo>> {
        let all: Option<Vec<StaticNodeInfo>> = self.nodes.iter().map(|node| node.info.clone()).collect();
        self.is_complete = all.is_some() && self.missing().is_empty();
        all.filter(|_| self.is_complete)
    }

    /// Whether a launcher other than node 0's is still connected.
    pub fn has_others(&self) -> bool {
        let is_gone = |stage: &NodeStage| matches!(stage, NodeStage::Left | NodeStage::Lost | NodeStage::Missing);
        !self.duplicates.is_empty() || self.in_stage(|stage| !is_gone(stage)).iter().any(|node| *node != 0)
    }

    /// Whether a node still has to learn how the job ended.
    pub fn has_listeners(&self) -> bool {
        self.nodes.iter().any(|node| node.listens)
    }

    /// The nodes in certain stages.
    pub fn in_stage(&self, fits: impl Fn(&NodeStage) -> bool) -> Vec<usize> {
        (0..self.nodes.len()).filter(|&number| fits(&self.nodes[number].stage)).collect()
    }

    /// The nodes that have not joined.
    pub fn missing(&self) -> Vec<usize> {
        self.in_stage(|stage| *stage == NodeStage::Missing)
    }

    /// The nodes whose workers still run.
    pub fn unfinished(&self) -> Vec<usize> {
        self.in_stage(|stage| *stage == NodeStage::Here)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // A test fails by panicking.
    use super::*;

    fn touch(client: ConnectionId, key: &str, value: &[u8]) -> StoreEvent {
        let key = key.strip_prefix(codec::ALL).unwrap().as_bytes().to_vec();
        StoreEvent::Touched { client, key, value: value.to_vec() }
    }

    fn joins(client: ConnectionId, node: usize) -> StoreEvent {
        let info = StaticNodeInfo { role: "default".into(), workers: 1 + node };
        touch(client, &format!("{}{node}", codec::INFO), &info.encode(node))
    }

    #[test]
    fn a_node_that_leaves_early_may_join_again() {
        let mut registry = NodeRegistry::new(2);
        assert_eq!(registry.note_event(&joins(7, 1)), Some(RegistryChange::Joined(1)));
        assert_eq!(registry.note_event(&StoreEvent::Left(7)), Some(RegistryChange::LeftEarly(1)));
        assert_eq!(registry.note_event(&joins(8, 0)), Some(RegistryChange::Joined(0)));
        assert_eq!((registry.complete(), registry.missing()), (None, vec![1]));
        assert_eq!(registry.note_event(&joins(9, 1)), Some(RegistryChange::Joined(1)));
        assert_eq!(registry.complete().unwrap().iter().map(|info| info.workers).collect::<Vec<_>>(), [1, 2]);
        assert_eq!(registry.note_event(&StoreEvent::Left(7)), None);
    }

    #[test]
    fn nodes_are_not_confused() {
        let mut registry = NodeRegistry::new(2);
        registry.note_event(&joins(7, 1));
        assert_eq!(registry.note_event(&joins(8, 1)), Some(RegistryChange::Duplicate(1)));
        assert!(registry.has_others());
        assert_eq!(registry.note_event(&StoreEvent::Left(7)), Some(RegistryChange::LeftEarly(1)));
        assert!(registry.has_others(), "the second launcher with this number");
        assert_eq!(registry.note_event(&StoreEvent::Left(8)), None);
        assert!(!registry.has_others());
        assert_eq!(registry.note_event(&joins(7, 1)), Some(RegistryChange::Joined(1)));
        assert_eq!(registry.note_event(&joins(8, 1)), Some(RegistryChange::Duplicate(1)));
        assert_eq!(registry.note_event(&joins(7, 1)), None, "the same again");
        assert_eq!(registry.note_event(&joins(7, 0)), Some(RegistryChange::Duplicate(0)), "one that is two");
        assert_eq!(registry.note_event(&joins(9, 5)), None, "no node");
        assert_eq!(registry.note_event(&touch(9, "torchelastic/role_info/0", b"{}")), None);
        assert_eq!(registry.missing(), [0]);
    }

    #[test]
    fn ends_are_distinguished() {
        let mut registry = NodeRegistry::new(4);
        for node in 0..4 {
            registry.note_event(&joins(10 + node as u64, node));
        }
        registry.complete().unwrap();
        assert_eq!(registry.note_event(&touch(11, codec::ENDED, b"")), Some(RegistryChange::Finished(1)));
        assert_eq!(registry.note_event(&touch(11, codec::ENDED, b"")), None);
        assert_eq!(registry.note_event(&touch(99, codec::ENDED, b"")), None, "a stranger");
        assert_eq!(registry.note_event(&StoreEvent::Left(11)), Some(RegistryChange::Left(1)));
        assert_eq!(registry.note_event(&StoreEvent::Left(12)), Some(RegistryChange::Lost(2, None)));
        assert_eq!(registry.note_event(&touch(13, "torchelastic/rlaunch/failed/2", b"no")), None);
        assert_eq!(registry.note_event(&touch(13, "torchelastic/rlaunch/failed/3", b"rank 3\nfailed")), None);
        assert_eq!(
            registry.note_event(&StoreEvent::Left(13)),
            Some(RegistryChange::Lost(3, Some("rank 3\\nfailed".into())))
        );
        assert_eq!(registry.unfinished(), [0]);
        assert_eq!(registry.note_event(&joins(14, 2)), None, "too late");
    }

    #[test]
    fn a_node_listens_until_it_has_learned_the_end_or_has_gone() {
        let mut registry = NodeRegistry::new(3);
        for node in 0..3 {
            registry.note_event(&joins(10 + node as u64, node));
        }
        registry.complete().unwrap();
        let key = |name: &str, node: usize| format!("{name}{node}");
        for (client, node) in [(11, 1), (12, 2), (99, 0), (11, 0)] {
            assert_eq!(registry.note_event(&touch(client, &key(codec::LISTENS, node), b"1")), None);
        }
        assert_eq!(registry.note_event(&touch(99, codec::END, b"{}")), None, "a stranger");
        assert_eq!(registry.note_event(&touch(11, codec::END, b"{}")), Some(RegistryChange::JobEnded));
        registry.note_event(&touch(11, &key(codec::LEARNED, 1), b"1"));
        assert!(registry.has_listeners());
        registry.note_event(&StoreEvent::Left(12));
        assert!(!registry.has_listeners());
    }
}
