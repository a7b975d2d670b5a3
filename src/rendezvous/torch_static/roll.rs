//! Who has come, who has ended well and who has gone, as node 0's store sees it. Pure: one transition function.

use super::words::{self, Info};
use crate::rendezvous::torch_store::{ClientId, News};
use std::collections::BTreeMap;

/// Where a node stands.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub enum Stands {
    /// It has not come, or has gone again before all were there.
    #[default]
    Missing,
    /// It is there.
    Here,
    /// Its workers have ended well, and its launcher is still there.
    Ended,
    /// Its workers have ended well, and its launcher has gone.
    Left,
    /// Its launcher has gone before that.
    Lost,
}

/// All nodes of a job.
#[derive(Clone, Debug)]
pub struct Roll {
    nodes: Vec<Node>,
    clients: BTreeMap<ClientId, usize>,
    /// All have come: from now on, who goes does not come again.
    complete: bool,
}

#[derive(Clone, Debug, Default)]
struct Node {
    stands: Stands,
    info: Option<Info>,
    why: Option<String>,
}

/// What a piece of news comes to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// A node has come.
    Came(usize),
    /// Two say that they are this node.
    Twice(usize),
    /// A node has gone before all were there.
    WentAgain(usize),
    /// A node's workers have ended well.
    Ended(usize),
    /// The launcher of a node that had ended well has gone.
    Left(usize),
    /// The launcher of a node has gone before its workers had ended well, and what it says of that.
    Lost(usize, Option<String>),
}

impl Roll {
    /// Nobody has come.
    pub fn new(nodes: usize) -> Self {
        Self { nodes: vec![Node::default(); nodes], clients: BTreeMap::new(), complete: false }
    }

    /// Takes in what the store tells.
    pub fn heard(&mut self, news: &News) -> Option<Change> {
        match news {
            News::Touched { client, key, value } => self.touched(*client, std::str::from_utf8(key).ok()?, value),
            News::Left(client) => {
                let number = self.clients.remove(client)?;
                let complete = self.complete;
                let node = &mut self.nodes[number];
                let (stands, change) = match node.stands {
                    Stands::Ended => (Stands::Left, Change::Left(number)),
                    _ if complete => (Stands::Lost, Change::Lost(number, node.why.take())),
                    _ => (Stands::Missing, Change::WentAgain(number)),
                };
                node.stands = stands;
                Some(change)
            }
        }
    }

    fn touched(&mut self, client: ClientId, key: &str, value: &[u8]) -> Option<Change> {
        let key = format!("{}{key}", words::ALL);
        if let Some(number) = key.strip_prefix(words::INFO) {
            let number: usize = number.parse().ok()?;
            let node = self.nodes.get_mut(number)?;
            // A torch agent that starts its workers again says who it is again.
            if self.complete || self.clients.get(&client) == Some(&number) {
                return None;
            }
            let info = Info::decode(value, number)?;
            if node.stands != Stands::Missing || self.clients.contains_key(&client) {
                return Some(Change::Twice(number));
            }
            *node = Node { stands: Stands::Here, info: Some(info), why: None };
            self.clients.insert(client, number);
            return Some(Change::Came(number));
        }
        let number = *self.clients.get(&client)?;
        let node = &mut self.nodes[number];
        if key == words::ENDED && node.stands == Stands::Here {
            node.stands = Stands::Ended;
            return Some(Change::Ended(number));
        }
        if key == format!("{}{number}", words::FAILED) {
            node.why = Some(String::from_utf8_lossy(value).chars().filter(|c| !c.is_control()).collect());
        }
        None
    }

    /// All nodes' words, once the last has come; nobody is missed from then on.
    pub fn complete(&mut self) -> Option<Vec<Info>> {
        let all: Option<Vec<Info>> = self.nodes.iter().map(|node| node.info.clone()).collect();
        self.complete = all.is_some() && self.with(|stands| *stands == Stands::Missing).is_empty();
        all.filter(|_| self.complete)
    }

    /// Those that stand in a certain way.
    pub fn with(&self, stands: impl Fn(&Stands) -> bool) -> Vec<usize> {
        (0..self.nodes.len()).filter(|&number| stands(&self.nodes[number].stands)).collect()
    }

    /// Those that have not come.
    pub fn missing(&self) -> Vec<usize> {
        self.with(|stands| *stands == Stands::Missing)
    }

    /// Those that are still at work.
    pub fn at_work(&self) -> Vec<usize> {
        self.with(|stands| *stands == Stands::Here)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // A test fails by panicking.
    use super::*;

    fn touch(client: ClientId, key: &str, value: &[u8]) -> News {
        let key = key.strip_prefix(words::ALL).unwrap().as_bytes().to_vec();
        News::Touched { client, key, value: value.to_vec() }
    }

    fn comes(client: ClientId, node: usize) -> News {
        let info = Info { role: "default".into(), workers: 1 + node };
        touch(client, &format!("{}{node}", words::INFO), &info.encode(node))
    }

    #[test]
    fn who_goes_before_all_are_there_may_come_again() {
        let mut roll = Roll::new(2);
        assert_eq!(roll.heard(&comes(7, 1)), Some(Change::Came(1)));
        assert_eq!(roll.heard(&News::Left(7)), Some(Change::WentAgain(1)));
        assert_eq!(roll.heard(&comes(8, 0)), Some(Change::Came(0)));
        assert_eq!((roll.complete(), roll.missing()), (None, vec![1]));
        assert_eq!(roll.heard(&comes(9, 1)), Some(Change::Came(1)));
        assert_eq!(roll.complete().unwrap().iter().map(|info| info.workers).collect::<Vec<_>>(), [1, 2]);
        assert_eq!(roll.heard(&News::Left(7)), None);
    }

    #[test]
    fn nobody_is_taken_for_another() {
        let mut roll = Roll::new(2);
        roll.heard(&comes(7, 1));
        assert_eq!(roll.heard(&comes(8, 1)), Some(Change::Twice(1)));
        assert_eq!(roll.heard(&comes(7, 1)), None, "the same again");
        assert_eq!(roll.heard(&comes(7, 0)), Some(Change::Twice(0)), "one that is two");
        assert_eq!(roll.heard(&comes(9, 5)), None, "no node");
        assert_eq!(roll.heard(&touch(9, "torchelastic/role_info/0", b"{}")), None);
        assert_eq!(roll.missing(), [0]);
    }

    #[test]
    fn ends_are_told_apart() {
        let mut roll = Roll::new(4);
        for node in 0..4 {
            roll.heard(&comes(10 + node as u64, node));
        }
        roll.complete().unwrap();
        assert_eq!(roll.heard(&touch(11, words::ENDED, b"")), Some(Change::Ended(1)));
        assert_eq!(roll.heard(&touch(11, words::ENDED, b"")), None);
        assert_eq!(roll.heard(&touch(99, words::ENDED, b"")), None, "a stranger");
        assert_eq!(roll.heard(&News::Left(11)), Some(Change::Left(1)));
        assert_eq!(roll.heard(&News::Left(12)), Some(Change::Lost(2, None)));
        assert_eq!(roll.heard(&touch(13, "torchelastic/rlaunch/failed/2", b"no")), None);
        assert_eq!(roll.heard(&touch(13, "torchelastic/rlaunch/failed/3", b"rank 3\nfailed")), None);
        assert_eq!(roll.heard(&News::Left(13)), Some(Change::Lost(3, Some("rank 3failed".into()))));
        assert_eq!(roll.at_work(), [0]);
        assert_eq!(roll.heard(&comes(14, 2)), None, "too late");
    }
}
