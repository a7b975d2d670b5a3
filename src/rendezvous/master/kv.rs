//! What Paddle's own launchers put and get, and what becomes of it: a launcher that puts its key below `/{job}/info` is a
//! node that says this and no more. Pure, in virtual time.
//!
//! Paddle's launcher starts once it reads exactly as many entries as it wants nodes. So until a round has begun it is not
//! shown enough, and from then on it reads the nodes of that round, whoever comes or goes meanwhile.

use super::frame::{MAX_RECORD, is_id};
use super::http;
use crate::rendezvous::agree::record::FORMAT;
use crate::rendezvous::agree::{Member, Offer, Phase, Record, Rules, Standing, State};
use crate::rendezvous::tie::Publication;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::time::Duration;

/// A launcher of Paddle's that waits puts its key twice a second. One that has not for so long has gone.
pub const STALE: Duration = Duration::from_secs(3);
/// All keys and values together, bytes.
pub const MOST: usize = 64 * 1024 * 1024;
/// What an entry costs beside its own bytes, roughly.
const OVERHEAD: usize = 96;

/// What has become of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Its record is this now.
    Is {
        /// Its id.
        id: String,
        /// Its record.
        record: String,
    },
    /// It has gone.
    Gone {
        /// Its id.
        id: String,
        /// It was last heard of so long ago.
        age: Duration,
    },
}

/// A launcher of Paddle's.
#[derive(Debug)]
struct Foreign {
    /// As it stands in an answer.
    value: String,
    heard: Duration,
}

/// Everything that is kept for them.
#[derive(Debug)]
pub struct Kv {
    /// The folder of the job's nodes, as its name is.
    folder: String,
    /// Names with values as they stand in an answer.
    values: BTreeMap<String, String>,
    /// By their keys below the folder.
    foreign: BTreeMap<String, Foreign>,
    held: usize,
    /// Ids of those that cannot take part, and why.
    refused: BTreeMap<String, String>,
    /// The entries of the round that runs, if there are launchers of Paddle's in it.
    round: Option<BTreeMap<String, String>>,
    /// Whether they are part of it until its end.
    runs: bool,
    members: BTreeSet<String>,
}

impl Kv {
    /// For a job of this name.
    pub fn new(job: &str) -> Self {
        let values = BTreeMap::from([("/healthy".to_owned(), r#""/healthy": "ok""#.to_owned())]);
        let (foreign, refused, members) = (BTreeMap::new(), BTreeMap::new(), BTreeSet::new());
        Self { folder: format!("/{job}/info"), values, foreign, held: 0, refused, round: None, runs: false, members }
    }

    /// The key below the folder, `{name}/{rank}`, if it is one.
    fn below<'a>(&self, path: &'a str) -> Option<(&'a str, &'a str)> {
        let (rest, rank) = path.rsplit_once('/')?;
        let (folder, name) = rest.rsplit_once('/')?;
        let is_one = is_id(&id(name)) && rank.parse::<i64>().is_ok() && http::decode(folder) == self.folder;
        is_one.then_some((name, rank))
    }

    /// Puts a value. The answer's status, and what has become of the node.
    pub fn put(&mut self, path: &str, value: Vec<u8>, now: Duration) -> (u16, Option<Change>) {
        let Ok(value) = String::from_utf8(value) else { return (500, None) };
        let node = self.below(path).map(|(name, rank)| (name.to_owned(), rank.to_owned()));
        let record = node.as_ref().and_then(|(name, rank)| record(name, rank, &value));
        if record.as_ref().is_some_and(|record| record.len() > MAX_RECORD) {
            return (413, None);
        }
        let (Some((name, rank)), Some(record)) = (node, record) else {
            let is_node =
                self.below(path).is_some_and(|(name, rank)| self.foreign.contains_key(&format!("{name}/{rank}")));
            let old = self.values.get(path).map_or(0, |old| cost(path, old));
            let pair = format!("{}: {}", quoted(path), quoted(&value));
            if is_node || path == "/healthy" || self.held - old + cost(path, &pair) > MOST {
                return (507, None);
            }
            self.held = self.held - old + cost(path, &pair);
            self.values.insert(path.to_owned(), pair);
            return (200, None);
        };
        let key = format!("{name}/{rank}");
        if self.round.as_ref().is_some_and(|round| !round.contains_key(&key)) {
            // What it would read is the list of the others.
            return (409, None);
        }
        let value = quoted(&value);
        let old = self.foreign.get(&key).map_or(0, |old| cost(&key, &old.value));
        if self.held - old + cost(&key, &value) > MOST {
            return (507, None);
        }
        self.held = self.held - old + cost(&key, &value);
        self.foreign.insert(key, Foreign { value, heard: now });
        self.remove(path);
        (200, Some(Change::Is { id: id(&name), record }))
    }

    /// Why a node that has just put its key cannot take part.
    pub fn refused(&self, change: &Change) -> Option<&str> {
        let Change::Is { id, .. } = change else { return None };
        self.refused.get(id).map(String::as_str)
    }

    /// Takes a value away.
    pub fn delete(&mut self, path: &str) -> (u16, Option<Change>) {
        let key = self.below(path).map(|(name, rank)| (name.to_owned(), format!("{name}/{rank}")));
        if let Some((name, key)) = key
            && let Some(old) = self.foreign.remove(&key)
        {
            self.held -= cost(&key, &old.value);
            return (200, Some(Change::Gone { id: id(&name), age: Duration::ZERO }));
        }
        let is_there = path != "/healthy" && self.remove(path);
        (if is_there { 200 } else { 404 }, None)
    }

    fn remove(&mut self, path: &str) -> bool {
        let old = self.values.remove(path);
        self.held -= old.as_ref().map_or(0, |old| cost(path, old));
        old.is_some()
    }

    /// All that begins with this path, as a JSON object; `None`: there is nothing. `shown`: what other nodes are to be seen as.
    ///
    /// Everything is ready to be copied: who asks for it all costs others no time.
    pub fn get(&self, path: &str, shown: &[(String, String)]) -> Option<Vec<u8>> {
        let trimmed = path.trim_end_matches('/');
        let folder = if http::decode(trimmed) == self.folder { trimmed.to_owned() } else { http::encode(&self.folder) };
        let entries: Vec<(&String, &String)> = match &self.round {
            Some(round) => round.iter().collect(),
            // Those that nobody of ours has met yet would begin without us.
            None if shown.is_empty() => Vec::new(),
            None => {
                let foreign = self.foreign.iter().filter(|(key, _)| !self.refused.contains_key(&id(name_of(key))));
                foreign.map(|(key, one)| (key, &one.value)).collect()
            }
        };
        let mut text = Vec::from(b"{");
        let mut add = |pair: &[&str]| {
            text.extend_from_slice(if text.len() > 1 { b", " } else { b"" });
            pair.iter().for_each(|part| text.extend_from_slice(part.as_bytes()));
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

    /// Takes note of what is told to all.
    pub fn hear(&mut self, told: &Publication, shown: &[(String, String)]) {
        let Ok(state) = serde_json::from_str::<State>(&told.state) else { return };
        self.refused = state.refused;
        self.runs = matches!(state.phase, Phase::Running | Phase::Stopping { .. });
        if let Some(members) = told.members.as_deref().and_then(|text| serde_json::from_str::<Vec<Member>>(text).ok()) {
            self.members = members.iter().map(|member| member.id.clone()).collect();
            let key = |offer: &Offer| format!("{}/{}", offer.name, offer.rank.map_or(-1, |rank| rank as i64));
            let keys: BTreeSet<String> = members.iter().map(|member| key(&member.offer)).collect();
            let foreign = self.foreign.iter().map(|(key, one)| (key.clone(), one.value.clone()));
            let all = foreign.chain(shown.iter().map(|(key, value)| (key.clone(), quoted(value))));
            let round = all.filter(|(key, _)| keys.contains(key));
            self.round = members.iter().any(|member| member.offer.foreign).then(|| round.collect());
        }
        if matches!(state.phase, Phase::Gathering) {
            self.round = None;
        }
    }

    /// When somebody may have gone, if anybody may.
    pub fn next_deadline(&self) -> Option<Duration> {
        let waiting = self.foreign.iter().filter(|(key, _)| !self.stays(key));
        waiting.map(|(_, one)| one.heard + STALE).min()
    }

    /// Whether somebody may not have read yet who is in the round.
    pub fn is_awaited(&self) -> bool {
        self.round.is_some() && !self.foreign.is_empty()
    }

    /// Whether nobody expects it to say anything.
    fn stays(&self, key: &str) -> bool {
        self.runs && self.members.contains(&id(name_of(key)))
    }

    /// Those that have gone.
    pub fn sweep(&mut self, now: Duration) -> Vec<Change> {
        let is_gone = |(key, one): &(&String, &Foreign)| !self.stays(key) && now >= one.heard + STALE;
        let keys: Vec<String> = self.foreign.iter().filter(is_gone).map(|(key, _)| key.clone()).collect();
        let gone = keys.into_iter().filter_map(|key| {
            let old = self.foreign.remove(&key)?;
            self.held -= cost(&key, &old.value);
            Some(Change::Gone { id: id(name_of(&key)), age: now.saturating_sub(old.heard) })
        });
        gone.collect()
    }
}

fn id(name: &str) -> String {
    format!("paddle:{name}")
}

fn name_of(key: &str) -> &str {
    key.rsplit_once('/').map_or(key, |(name, _)| name)
}

/// What a launcher of Paddle's says of itself, as a record; `None`: it is something else.
fn record(name: &str, rank: &str, payload: &str) -> Option<String> {
    let payload: Value = serde_json::from_str(payload).ok()?;
    let text = |name: &str| payload.get(name).and_then(Value::as_str);
    let master = text("candidate")?;
    let address = master.rsplit_once(':')?.0.to_owned();
    let endpoints = text("endpoints")?.split(',').filter(|one| !one.is_empty()).map(str::to_owned).collect();
    let offer = Offer {
        name: name.to_owned(),
        rank: rank.parse().ok(),
        host: address.clone(),
        address,
        address_from: "Paddle's launcher says so".to_owned(),
        ranks: payload.get("replicas").and_then(Value::as_u64).and_then(|count| usize::try_from(count).ok())?,
        device: text("dtype").unwrap_or_default().to_owned(),
        master: master.to_owned(),
        endpoints,
        rules: Rules::default(),
        version: "Paddle's".to_owned(),
        foreign: true,
        ..Offer::default()
    };
    let record = Record { format: FORMAT, offer, standing: Standing::Ready { seen: 0 } };
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
    use crate::rendezvous::agree::Coordinator;
    use crate::rendezvous::tie::Decide;
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
        let rules = Rules { min: max, max, join_ms: 60_000, ..Rules::default() };
        let offer = Offer { name: name.into(), rank, master: "10.0.0.2:1".into(), ranks: 1, rules, ..Offer::default() };
        serde_json::to_string(&Record { format: FORMAT, offer, standing: Standing::Ready { seen: 0 } }).unwrap()
    }

    /// The key-value server, and who decides behind it.
    struct Master {
        kv: Kv,
        decide: Coordinator,
        round: Vec<String>,
    }

    impl Master {
        fn new() -> Self {
            Self { kv: Kv::new("default"), decide: Coordinator::new(at(0)), round: Vec::new() }
        }

        fn record(&mut self, id: &str, record: &str, now: Duration) {
            Decide::record(&mut self.decide, id, record, now);
            self.turn(now);
        }

        fn turn(&mut self, now: Duration) {
            let told = Decide::turn(&mut self.decide, now);
            let Some(told) = told else { return };
            self.kv.hear(&told, &self.decide.shown_to_paddle());
            let members: Vec<Member> =
                told.members.map_or(Vec::new(), |members| serde_json::from_str(&members).unwrap());
            if !members.is_empty() {
                self.round = members.into_iter().map(|member| member.id).collect();
            }
        }

        fn put(&mut self, name: &str, rank: i64, now: Duration) -> u16 {
            let (status, change) =
                self.kv.put(&format!("/default/info/{name}/{rank}"), payload(name, rank).into_bytes(), now);
            match change {
                Some(Change::Is { id, record }) => {
                    self.record(&id, &record, now);
                    if self.kv.refused(&Change::Is { id, record }).is_some() { 409 } else { status }
                }
                _ => status,
            }
        }

        fn keys(&self) -> Vec<String> {
            let text = self.kv.get("/default/info", &self.decide.shown_to_paddle()).unwrap_or(b"{}".to_vec());
            let found: Map<String, Value> = serde_json::from_slice(&text).unwrap();
            found.keys().map(|key| key.trim_start_matches("/default/info/").to_owned()).collect()
        }
    }

    #[test]
    fn a_round_with_launchers_of_paddle_s_has_the_order_that_they_compute() {
        for names in [["aaaaaa", "bbbbbb", "cccccc"], ["node", "node-1", "node.b"], ["x", "b", "a"], ["é", "e", "z"]] {
            let mut master = Master::new();
            master.record("us", &own(names[0], None, 3), at(0));
            assert_eq!(master.put(names[1], -1, at(1)), 200);
            assert!(master.keys().len() < 2, "not shown enough");
            assert_eq!(master.put(names[2], -1, at(2)), 200);
            let keys: Vec<String> = master.keys().iter().map(|key| name_of(key).to_owned()).collect();
            assert_eq!(keys.len(), 3);
            let id = |name: &String| if name == names[0] { "us".to_owned() } else { id(name) };
            assert_eq!(keys.iter().map(id).collect::<Vec<_>>(), master.round, "{names:?}");
        }
    }

    #[test]
    fn numbers_are_those_of_the_users_and_each_is_given_once() {
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
    fn numbers_are_given_to_all_or_to_none() {
        let mut master = Master::new();
        master.record("us", &own("us", None, 2), at(0));
        assert_eq!(master.put("them", 0, at(1)), 409);
        assert_eq!(master.put("others", -1, at(2)), 200);
        assert_eq!(master.round, ["paddle:others", "us"]);
    }

    #[test]
    fn a_key_that_nobody_puts_again_is_nobody_s() {
        let mut master = Master::new();
        master.record("us", &own("us", None, 2), at(0));
        let mut early = Master::new();
        assert_eq!(early.put("dead", -1, at(0)), 200);
        assert!(early.keys().is_empty(), "they would begin without us");
        assert_eq!(early.kv.next_deadline(), Some(STALE));
        assert!(early.kv.sweep(STALE - at(1)).is_empty());
        assert_eq!(early.kv.sweep(STALE), [Change::Gone { id: "paddle:dead".into(), age: STALE }]);
        assert_eq!((early.kv.next_deadline(), early.kv.held), (None, 0));
    }

    #[test]
    fn the_list_of_a_round_stays_while_it_runs() {
        let mut master = Master::new();
        master.record("us", &own("us", None, 2), at(0));
        assert_eq!(master.put("them", -1, at(1)), 200);
        assert_eq!(master.keys(), ["them/-1", "us/-1"]);
        assert!(master.kv.sweep(at(60_000)).is_empty(), "whoever runs puts nothing");
        assert_eq!(master.put("late", -1, at(60_000)), 409);
        let done = own("us", None, 2).replace(r#"{"is":"Ready","seen":0}"#, r#"{"is":"Done","round":1}"#);
        master.record("us", &done, at(60_000));
        assert_eq!(master.keys(), ["them/-1", "us/-1"], "a slow one reads it when all are through");
        assert_eq!(master.kv.sweep(at(60_000)).len(), 1, "nobody needs it once the job has ended");
    }

    proptest! {
        #[test]
        fn texts_come_back(text in ".*") {
            let quoted = quoted(&text);
            prop_assert!(quoted.bytes().all(|byte| matches!(byte, b' '..=b'~' | 0x7f)));
            prop_assert_eq!(serde_json::from_str::<String>(&quoted).unwrap(), text);
        }
    }

    #[test]
    fn other_keys_are_kept_as_they_are() {
        let mut kv = Kv::new("a b");
        assert_eq!(kv.get("/x", &[]), None);
        assert_eq!(kv.put("/x/1", "é\"\u{1F600}\u{7f}".as_bytes().to_vec(), at(0)), (200, None));
        assert_eq!(kv.put("/x/2", b"2".to_vec(), at(0)), (200, None));
        let text = kv.get("/x", &[]).unwrap();
        assert_eq!(String::from_utf8(text).unwrap(), r#"{"/x/1": "\u00e9\"\ud83d\ude00\u007f", "/x/2": "2"}"#);
        assert_eq!(kv.get("/healthy", &[]).unwrap(), br#"{"/healthy": "ok"}"#);
        assert_eq!((kv.delete("/x/1").0, kv.delete("/x/1").0, kv.delete("/healthy").0), (200, 404, 404));
        assert_eq!(kv.put("/x/3", vec![0xff], at(0)).0, 500);
        assert_eq!(kv.put("/big", vec![b'x'; MOST], at(0)).0, 507);
        let (status, change) = kv.put("/a%20b/info/pod/-1", payload("pod", -1).into_bytes(), at(0));
        assert!(status == 200 && change.is_some(), "names are compared as they are meant");
        let shown = [("us/-1".to_owned(), "{}".to_owned())];
        assert!(kv.get("/a%20b/info", &shown).unwrap().starts_with(br#"{"/a%20b/info/pod/-1": "#));
        assert!(kv.put("/a/info/pod/-1", payload("pod", -1).into_bytes(), at(0)).1.is_none(), "another job");
    }
}
