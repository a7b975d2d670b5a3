//! The key-value store of the embedded master, as Paddle's own launchers use it. A launcher that puts its key below `/{job}/info`
//! is a node whose record says no more than that value. Pure, in virtual time.
//!
//! Paddle's launcher starts its ranks when it reads exactly as many entries as it wants nodes. So until a round has begun, it
//! reads fewer; from then on it reads the nodes of that round, whichever nodes join or leave meanwhile.

use crate::net::server::OVERHEAD;
use crate::protocol::Publication;
use crate::protocol::member_list;
use crate::protocol::record::FORMAT;
use crate::protocol::{JobPhase, JobState, NodeInfo, NodeRecord, NodeStatus, read_paddle_payload};
use crate::rendezvous::master::frame::{MAX_RECORD, is_id};
use crate::rendezvous::master::http;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::time::Duration;

/// A waiting launcher of Paddle's puts its key twice a second. One that has not done so for this long is considered gone.
pub const STALE: Duration = Duration::from_secs(3);
/// All keys and values together, bytes.
pub const MAX_HELD: usize = 64 * 1024 * 1024;

/// A change of a node that Paddle's launcher has started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KvChange {
    /// It has a new record.
    Put {
        /// Its id.
        id: String,
        /// Its record.
        record: String,
    },
    /// It is gone.
    Gone {
        /// Its id.
        id: String,
        /// The time since its last request.
        age: Duration,
    },
}

/// A launcher of Paddle's.
#[derive(Debug)]
struct PaddleLauncher {
    /// Its value, quoted for a response.
    value: String,
    last_put: Duration,
}

/// The keys and values.
#[derive(Debug)]
pub struct KvStore {
    /// The folder of the job's nodes, decoded.
    folder: String,
    /// Other keys, with their pairs as a response has them.
    values: BTreeMap<String, String>,
    /// Paddle's launchers by their keys below the folder.
    launchers: BTreeMap<String, PaddleLauncher>,
    held: usize,
    /// Ids of nodes that cannot take part, and why.
    refused: BTreeMap<String, String>,
    /// The entries of the round that runs, if Paddle's launchers are members of it.
    round: Option<BTreeMap<String, String>>,
    /// Whether a round runs: its members do not put their keys any more.
    is_running: bool,
    members: BTreeSet<String>,
}

impl KvStore {
    /// An empty store for a job of this name.
    pub fn new(job: &str) -> Self {
        Self {
            folder: format!("/{job}/info"),
            values: BTreeMap::from([("/healthy".to_owned(), r#""/healthy": "ok""#.to_owned())]),
            launchers: BTreeMap::new(),
            held: 0,
            refused: BTreeMap::new(),
            round: None,
            is_running: false,
            members: BTreeSet::new(),
        }
    }

    /// Splits the path of a node's entry into name and rank; `None`: another path.
    fn parse_node_path<'a>(&self, path: &'a str) -> Option<(&'a str, &'a str)> {
        let (rest, rank) = path.rsplit_once('/')?;
        let (folder, name) = rest.rsplit_once('/')?;
        let is_node = is_id(&node_id(name)) && rank.parse::<i64>().is_ok() && http::decode(folder) == self.folder;
        is_node.then_some((name, rank))
    }

    /// Puts a value. Returns the status of the response, and the change of the node if it is a node's entry.
    pub fn put(&mut self, path: &str, value: Vec<u8>, now: Duration) -> (u16, Option<KvChange>) {
        let Ok(value) = String::from_utf8(value) else { return (500, None) };
        let node = self.parse_node_path(path).map(|(name, rank)| (name.to_owned(), rank.to_owned()));
        let record = node.as_ref().and_then(|(name, rank)| parse_record(name, rank, &value));
        if record.as_ref().is_some_and(|record| record.len() > MAX_RECORD) {
            return (413, None);
        }
        let (Some((name, rank)), Some(record)) = (node, record) else {
            return (self.put_other(path, &value), None);
        };
        let key = format!("{name}/{rank}");
        if self.round.as_ref().is_some_and(|round| !round.contains_key(&key)) {
            // The list that it would read is that of a round without it.
            return (409, None);
        }
        let value = quoted(&value);
        let old = self.launchers.get(&key).map_or(0, |old| cost(&key, &old.value));
        if self.held - old + cost(&key, &value) > MAX_HELD {
            return (507, None);
        }
        self.held = self.held - old + cost(&key, &value);
        self.launchers.insert(key, PaddleLauncher { value, last_put: now });
        self.remove_other(path);
        (200, Some(KvChange::Put { id: node_id(&name), record }))
    }

    fn put_other(&mut self, path: &str, value: &str) -> u16 {
        let node = self.parse_node_path(path);
        let is_node = node.is_some_and(|(name, rank)| self.launchers.contains_key(&format!("{name}/{rank}")));
        let old = self.values.get(path).map_or(0, |old| cost(path, old));
        let pair = format!("{}: {}", quoted(path), quoted(value));
        if is_node || path == "/healthy" || self.held - old + cost(path, &pair) > MAX_HELD {
            return 507;
        }
        self.held = self.held - old + cost(path, &pair);
        self.values.insert(path.to_owned(), pair);
        200
    }

    /// Why a node that has just put its entry cannot take part.
    pub fn refusal_of(&self, change: &KvChange) -> Option<&str> {
        let KvChange::Put { id, .. } = change else { return None };
        self.refused.get(id).map(String::as_str)
    }

    /// Deletes a value. Returns the status of the response, and the change of the node if it is a node's entry.
    pub fn delete(&mut self, path: &str) -> (u16, Option<KvChange>) {
        let key = self.parse_node_path(path).map(|(name, rank)| (name.to_owned(), format!("{name}/{rank}")));
        if let Some((name, key)) = key
            && let Some(old) = self.launchers.remove(&key)
        {
            self.held -= cost(&key, &old.value);
            return (200, Some(KvChange::Gone { id: node_id(&name), age: Duration::ZERO }));
        }
        let existed = path != "/healthy" && self.remove_other(path);
        (if existed { 200 } else { 404 }, None)
    }

    fn remove_other(&mut self, path: &str) -> bool {
        let old = self.values.remove(path);
        self.held -= old.as_ref().map_or(0, |old| cost(path, old));
        old.is_some()
    }

    /// All entries whose path begins with this one, as a JSON object; `None` if there are none. `own_nodes`: the entries of nodes
    /// that rlaunch has started.
    ///
    /// Every entry is stored as the response has it, so that a request for all of them delays no other client.
    pub fn get(&self, path: &str, own_nodes: &[(String, String)]) -> Option<Vec<u8>> {
        let trimmed = path.trim_end_matches('/');
        let folder = if http::decode(trimmed) == self.folder { trimmed.to_owned() } else { http::encode(&self.folder) };
        let entries: Vec<(&String, &String)> = match &self.round {
            Some(round) => round.iter().collect(),
            // While no node of rlaunch is here, Paddle's launchers would begin without one.
            None if own_nodes.is_empty() => Vec::new(),
            None => {
                let fit = self.launchers.iter().filter(|(key, _)| !self.refused.contains_key(&node_id(name_of(key))));
                fit.map(|(key, launcher)| (key, &launcher.value)).collect()
            }
        };
        let mut text = Vec::from(b"{");
        let mut add = |parts: &[&str]| {
            text.extend_from_slice(if text.len() > 1 { b", " } else { b"" });
            parts.iter().for_each(|part| text.extend_from_slice(part.as_bytes()));
        };
        for (key, value) in entries {
            let name = format!("{folder}/{key}");
            if name.starts_with(path) {
                add(&[&quoted(&name), ": ", value]);
            }
        }
        let values = self.values.range::<str, _>((Bound::Included(path), Bound::Unbounded));
        values.take_while(|(name, _)| name.starts_with(path)).for_each(|(_, pair)| add(&[pair]));
        if text.len() == 1 {
            return None;
        }
        text.push(b'}');
        Some(text)
    }

    /// Takes note of what all nodes are sent. `own_nodes`: the entries of nodes that rlaunch has started.
    pub fn note_publication(&mut self, publication: &Publication, own_nodes: &[(String, String)]) {
        let Ok(state) = serde_json::from_str::<JobState>(&publication.state) else { return };
        self.refused = state.refused;
        self.is_running = matches!(state.phase, JobPhase::Running | JobPhase::Stopping { .. });
        if let Some(members) = publication.members.as_deref().and_then(member_list::read) {
            self.members = members.iter().map(|member| member.id.clone()).collect();
            let key = |info: &NodeInfo| format!("{}/{}", info.name, info.rank.map_or(-1, |rank| rank as i64));
            let keys: BTreeSet<String> = members.iter().map(|member| key(&member.info)).collect();
            let launchers = self.launchers.iter().map(|(key, launcher)| (key.clone(), launcher.value.clone()));
            let all = launchers.chain(own_nodes.iter().map(|(key, value)| (key.clone(), quoted(value))));
            let round = all.filter(|(key, _)| keys.contains(key));
            self.round = members.iter().any(|member| member.info.is_paddle_launcher).then(|| round.collect());
        }
        if matches!(state.phase, JobPhase::Gathering) {
            self.round = None;
        }
    }

    /// When the first waiting launcher becomes stale.
    pub fn next_deadline(&self) -> Option<Duration> {
        let waiting = self.launchers.iter().filter(|(key, _)| !self.is_silent(key));
        waiting.map(|(_, launcher)| launcher.last_put + STALE).min()
    }

    /// Whether a launcher may not have read yet which nodes are in the round.
    pub fn is_awaited(&self) -> bool {
        self.round.is_some() && !self.launchers.is_empty()
    }

    /// Whether the launcher with this key does not put it any more, because its ranks run.
    fn is_silent(&self, key: &str) -> bool {
        self.is_running && self.members.contains(&node_id(name_of(key)))
    }

    /// Removes stale launchers.
    pub fn expire(&mut self, now: Duration) -> Vec<KvChange> {
        let is_stale = |(key, one): &(&String, &PaddleLauncher)| !self.is_silent(key) && now >= one.last_put + STALE;
        let keys: Vec<String> = self.launchers.iter().filter(is_stale).map(|(key, _)| key.clone()).collect();
        let gone = keys.into_iter().filter_map(|key| {
            let old = self.launchers.remove(&key)?;
            self.held -= cost(&key, &old.value);
            Some(KvChange::Gone { id: node_id(name_of(&key)), age: now.saturating_sub(old.last_put) })
        });
        gone.collect()
    }
}

fn node_id(name: &str) -> String {
    format!("paddle:{name}")
}

fn name_of(key: &str) -> &str {
    key.rsplit_once('/').map_or(key, |(name, _)| name)
}

/// Makes a node's record of the entry of a launcher of Paddle's; `None` if it is something else.
fn parse_record(name: &str, rank: &str, payload: &str) -> Option<String> {
    let payload: Value = serde_json::from_str(payload).ok()?;
    let info = NodeInfo {
        name: name.to_owned(),
        rank: rank.parse().ok(),
        address_from: "Paddle's launcher says so".to_owned(),
        version: "Paddle's".to_owned(),
        ..read_paddle_payload(&payload)?
    };
    let record = NodeRecord { format: FORMAT, info, status: NodeStatus::Ready { seen: 0 } };
    serde_json::to_string(&record).ok()
}

fn cost(key: &str, value: &str) -> usize {
    key.len() + value.len() + OVERHEAD
}

/// A string of JSON as Python writes it: nothing but ASCII.
fn quoted(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    let mut rest = text;
    while let Some(at) = rest.bytes().position(|byte| !matches!(byte, b' '..=b'~') || matches!(byte, b'"' | b'\\')) {
        out.push_str(&rest[..at]);
        let mut chars = rest[at..].chars();
        match chars.next() {
            Some(char @ ('"' | '\\')) => out.extend(['\\', char]),
            Some('\n') => out.push_str("\\n"),
            Some('\r') => out.push_str("\\r"),
            Some('\t') => out.push_str("\\t"),
            Some('\u{8}') => out.push_str("\\b"),
            Some('\u{c}') => out.push_str("\\f"),
            other => {
                for unit in other.unwrap_or_default().encode_utf16(&mut [0; 2]) {
                    out.push_str(&format!("\\u{unit:04x}"));
                }
            }
        }
        rest = chars.as_str();
    }
    out.push_str(rest);
    out.push('"');
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::Coordinator;
    use crate::protocol::{CoordinatorLogic, JobRules};
    use proptest::prelude::*;
    use serde_json::Map;

    const fn at(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn payload(name: &str, rank: i64) -> String {
        format!(
            r#"{{"name": "{name}", "rank": {rank}, "replicas": 2, "dtype": "cpu", "candidate": "10.0.0.1:{}", "endpoints": "10.0.0.1:7,10.0.0.1:8"}}"#,
            4000 + name.len()
        )
    }

    fn own(name: &str, rank: Option<usize>, max: usize) -> String {
        let rules = JobRules { min: max, max, join_ms: 60_000, ..JobRules::default() };
        let info =
            NodeInfo { name: name.into(), rank, master: "10.0.0.2:1".into(), ranks: 1, rules, ..NodeInfo::default() };
        serde_json::to_string(&NodeRecord { format: FORMAT, info, status: NodeStatus::Ready { seen: 0 } }).unwrap()
    }

    /// The key-value store, and the coordinator behind it.
    struct Master {
        kv: KvStore,
        coordinator: Coordinator,
        round: Vec<String>,
    }

    impl Master {
        fn new() -> Self {
            Self { kv: KvStore::new("default"), coordinator: Coordinator::new(at(0)), round: Vec::new() }
        }

        fn record(&mut self, id: &str, record: &str, now: Duration) {
            CoordinatorLogic::record(&mut self.coordinator, id, record, now);
            self.turn(now);
        }

        fn turn(&mut self, now: Duration) {
            let publication = CoordinatorLogic::turn(&mut self.coordinator, now);
            let Some(publication) = publication else { return };
            self.kv.note_publication(&publication, &self.coordinator.shown_to_paddle());
            let members = publication.members.map_or(Vec::new(), |list| member_list::read(&list).unwrap());
            if !members.is_empty() {
                self.round = members.into_iter().map(|member| member.id).collect();
            }
        }

        fn put(&mut self, name: &str, rank: i64, now: Duration) -> u16 {
            let (status, change) =
                self.kv.put(&format!("/default/info/{name}/{rank}"), payload(name, rank).into_bytes(), now);
            match change {
                Some(KvChange::Put { id, record }) => {
                    self.record(&id, &record, now);
                    if self.kv.refusal_of(&KvChange::Put { id, record }).is_some() { 409 } else { status }
                }
                _ => status,
            }
        }

        fn keys(&self) -> Vec<String> {
            let text = self.kv.get("/default/info", &self.coordinator.shown_to_paddle()).unwrap_or(b"{}".to_vec());
            let found: Map<String, Value> = serde_json::from_slice(&text).unwrap();
            found.keys().map(|key| key.trim_start_matches("/default/info/").to_owned()).collect()
        }
    }

    #[test]
    fn a_round_with_paddle_launchers_has_the_order_that_they_compute() {
        for names in [["aaaaaa", "bbbbbb", "cccccc"], ["node", "node-1", "node.b"], ["x", "b", "a"], ["é", "e", "z"]] {
            let mut master = Master::new();
            master.record("us", &own(names[0], None, 3), at(0));
            assert_eq!(master.put(names[1], -1, at(1)), 200);
            assert!(master.keys().len() < 2, "not shown enough");
            assert_eq!(master.put(names[2], -1, at(2)), 200);
            let keys: Vec<String> = master.keys().iter().map(|key| name_of(key).to_owned()).collect();
            assert_eq!(keys.len(), 3);
            let id = |name: &String| if name == names[0] { "us".to_owned() } else { node_id(name) };
            assert_eq!(keys.iter().map(id).collect::<Vec<_>>(), master.round, "{names:?}");
        }
    }

    #[test]
    fn ranks_are_those_of_the_users_and_each_is_given_once() {
        let mut master = Master::new();
        master.record("us", &own("us", Some(1), 3), at(0));
        assert_eq!(master.put("second", 2, at(1)), 200);
        assert_eq!(master.put("again", 2, at(2)), 409);
        assert_eq!(master.put("many", 7, at(2)), 409);
        assert_eq!(master.put("first", 0, at(3)), 200);
        assert_eq!(master.keys(), ["first/0", "second/2", "us/1"]);
        assert_eq!(master.round, ["paddle:first", "us", "paddle:second"]);
    }

    #[test]
    fn ranks_are_given_to_all_or_to_none() {
        let mut master = Master::new();
        master.record("us", &own("us", None, 2), at(0));
        assert_eq!(master.put("them", 0, at(1)), 409);
        assert_eq!(master.put("others", -1, at(2)), 200);
        assert_eq!(master.round, ["paddle:others", "us"]);
    }

    #[test]
    fn a_key_that_is_not_put_again_expires() {
        let mut master = Master::new();
        master.record("us", &own("us", None, 2), at(0));
        let mut early = Master::new();
        assert_eq!(early.put("dead", -1, at(0)), 200);
        assert!(early.keys().is_empty(), "they would begin without us");
        assert_eq!(early.kv.next_deadline(), Some(STALE));
        assert!(early.kv.expire(STALE - at(1)).is_empty());
        assert_eq!(early.kv.expire(STALE), [KvChange::Gone { id: "paddle:dead".into(), age: STALE }]);
        assert_eq!((early.kv.next_deadline(), early.kv.held), (None, 0));
    }

    #[test]
    fn the_list_of_a_round_is_unchanged_while_it_runs() {
        let mut master = Master::new();
        master.record("us", &own("us", None, 2), at(0));
        assert_eq!(master.put("them", -1, at(1)), 200);
        assert_eq!(master.keys(), ["them/-1", "us/-1"]);
        assert!(master.kv.expire(at(60_000)).is_empty(), "a launcher whose ranks run puts nothing");
        assert_eq!(master.put("late", -1, at(60_000)), 409);
        let done = own("us", None, 2).replace(r#"{"is":"Ready","seen":0}"#, r#"{"is":"Done","round":1}"#);
        master.record("us", &done, at(60_000));
        assert_eq!(master.keys(), ["them/-1", "us/-1"], "a slow one reads it when all are through");
        assert_eq!(master.kv.expire(at(60_000)).len(), 1, "not needed once the job has ended");
    }

    proptest! {
        #[test]
        fn quoted_texts_are_read_back(text in ".*") {
            let quoted = quoted(&text);
            prop_assert!(quoted.bytes().all(|byte| matches!(byte, b' '..=b'~' | 0x7f)));
            prop_assert_eq!(serde_json::from_str::<String>(&quoted).unwrap(), text);
        }
    }

    #[test]
    fn other_keys_are_kept_as_they_are() {
        let mut kv = KvStore::new("a b");
        assert_eq!(kv.get("/x", &[]), None);
        assert_eq!(kv.put("/x/1", "é\"\u{1F600}\u{7f}".as_bytes().to_vec(), at(0)), (200, None));
        assert_eq!(kv.put("/x/2", b"2".to_vec(), at(0)), (200, None));
        let text = kv.get("/x", &[]).unwrap();
        assert_eq!(String::from_utf8(text).unwrap(), r#"{"/x/1": "\u00e9\"\ud83d\ude00\u007f", "/x/2": "2"}"#);
        assert_eq!(kv.get("/healthy", &[]).unwrap(), br#"{"/healthy": "ok"}"#);
        assert_eq!((kv.delete("/x/1").0, kv.delete("/x/1").0, kv.delete("/healthy").0), (200, 404, 404));
        assert_eq!(kv.put("/x/3", vec![0xff], at(0)).0, 500);
        assert_eq!(kv.put("/big", vec![b'x'; MAX_HELD], at(0)).0, 507);
        let (status, change) = kv.put("/a%20b/info/pod/-1", payload("pod", -1).into_bytes(), at(0));
        assert!(status == 200 && change.is_some(), "names are compared as they are meant");
        let shown = [("us/-1".to_owned(), "{}".to_owned())];
        assert!(kv.get("/a%20b/info", &shown).unwrap().starts_with(br#"{"/a%20b/info/pod/-1": "#));
        assert!(kv.put("/a/info/pod/-1", payload("pod", -1).into_bytes(), at(0)).1.is_none(), "another job");
    }
}
