//! What is said to etcd and heard from it: keys, and the gateway's JSON, where bytes are base64 and numbers text. Pure.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// The keys of one job. All that end with a slash are the beginnings of others.
#[derive(Clone, Debug)]
pub(super) struct Keys {
    pub(super) base: String,
}

impl Keys {
    pub(super) fn new(prefix: &str, job: &str) -> Self {
        let prefix = prefix.trim_matches('/');
        let slash = if prefix.is_empty() { "" } else { "/" };
        Self { base: format!("{slash}{prefix}/{}/", escaped(job)) }
    }

    pub(super) fn nodes(&self) -> String {
        format!("{}nodes/", self.base)
    }

    pub(super) fn node(&self, id: &str) -> String {
        format!("{}{}", self.nodes(), escaped(id))
    }

    pub(super) fn board(&self) -> String {
        format!("{}board/", self.base)
    }

    pub(super) fn leader(&self) -> String {
        format!("{}board/leader", self.base)
    }

    pub(super) fn state(&self) -> String {
        format!("{}board/state", self.base)
    }

    pub(super) fn members(&self) -> String {
        format!("{}members/", self.base)
    }

    pub(super) fn piece(&self, version: &str, number: usize) -> String {
        format!("{}{version}/{number}", self.members())
    }

    /// The node whose key this is.
    pub(super) fn id_of(&self, key: &str) -> Option<String> {
        key.strip_prefix(&self.nodes()).map(plain)
    }
}

/// A name as one part of a key.
fn escaped(name: &str) -> String {
    name.replace('%', "%25").replace('/', "%2F")
}

fn plain(part: &str) -> String {
    part.replace("%2F", "/").replace("%25", "%")
}

/// The key after all that begin with this, which ends with a slash.
pub(super) fn end(prefix: &str) -> String {
    format!("{}0", prefix.strip_suffix('/').unwrap_or(prefix))
}

pub(super) fn coded(text: &str) -> String {
    STANDARD.encode(text)
}

fn decoded(value: &Value) -> String {
    let bytes = value.as_str().and_then(|text| STANDARD.decode(text).ok()).unwrap_or_default();
    String::from_utf8(bytes).unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
}

/// A number, which is text where it has 64 bits, and left out where it is 0.
pub(super) fn number(value: &Value) -> i64 {
    value.as_i64().or_else(|| value.as_str()?.parse().ok()).unwrap_or(0)
}

/// The revision of the store when an answer was given.
pub(super) fn revision(answer: &Value) -> i64 {
    number(&answer["header"]["revision"])
}

/// A key, and what etcd knows of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Kv {
    pub(super) key: String,
    pub(super) value: String,
    /// The revision that made it.
    pub(super) created: i64,
    /// The revision that wrote it last.
    pub(super) written: i64,
    pub(super) lease: i64,
}

impl Kv {
    fn from(kv: &Value) -> Self {
        Self {
            key: decoded(&kv["key"]),
            value: decoded(&kv["value"]),
            created: number(&kv["create_revision"]),
            written: number(&kv["mod_revision"]),
            lease: number(&kv["lease"]),
        }
    }
}

/// The keys in the answer to a range.
pub(super) fn kvs(range: &Value) -> Vec<Kv> {
    range["kvs"].as_array().map(|kvs| kvs.iter().map(Kv::from).collect()).unwrap_or_default()
}

/// The same, as the `index`th answer of a transaction.
pub(super) fn kvs_of(answer: &Value, index: usize) -> Vec<Kv> {
    kvs(&answer["responses"][index]["response_range"])
}

pub(super) fn held(answer: &Value) -> bool {
    answer["succeeded"].as_bool().unwrap_or(false)
}

/// All keys that begin with this.
pub(super) fn range(prefix: &str) -> Value {
    json!({ "key": coded(prefix), "range_end": coded(&end(prefix)) })
}

pub(super) fn get(key: &str) -> Value {
    json!({ "key": coded(key) })
}

pub(super) fn put(key: &str, value: &str, lease: i64) -> Value {
    json!({ "key": coded(key), "value": coded(value), "lease": lease.to_string() })
}

/// Only if the key was made by that revision; 0: if there is none.
pub(super) fn made_by(key: &str, revision: i64) -> Value {
    json!({ "key": coded(key), "target": "CREATE", "result": "EQUAL", "create_revision": revision.to_string() })
}

/// Only if the key was written last by that revision; 0: if there is none.
pub(super) fn written_by(key: &str, revision: i64) -> Value {
    json!({ "key": coded(key), "target": "MOD", "result": "EQUAL", "mod_revision": revision.to_string() })
}

/// Only if no key begins with this: the comparison is with all that do, or with a key that was never made.
pub(super) fn nothing_below(prefix: &str) -> Value {
    let mut comparison = made_by(prefix, 0);
    comparison["range_end"] = json!(coded(&end(prefix)));
    comparison
}

pub(super) fn first_after(revision: i64) -> String {
    (revision + 1).to_string()
}

/// Something that a watch has seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Change {
    Put(Kv),
    Gone { key: String, revision: i64 },
}

impl Change {
    pub(super) fn revision(&self) -> i64 {
        match self {
            Change::Put(kv) => kv.written,
            Change::Gone { revision, .. } => *revision,
        }
    }
}

/// The changes in a message of a watch.
pub(super) fn changes(result: &Value) -> Vec<Change> {
    let change = |event: &Value| {
        let kv = Kv::from(&event["kv"]);
        match event["type"].as_str() {
            Some("DELETE") => Change::Gone { key: kv.key, revision: kv.written },
            _ => Change::Put(kv),
        }
    };
    result["events"].as_array().map(|events| events.iter().map(change).collect()).unwrap_or_default()
}

/// What is at `board/state`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Posted {
    /// The coordinator that wrote it.
    pub(super) by: String,
    /// Its term.
    pub(super) term: i64,
    /// Where the members' list is.
    pub(super) members: Option<List>,
    /// `State`.
    pub(super) state: String,
}

/// A members' list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct List {
    /// Text that grows with every list.
    pub(super) version: String,
    /// How many pieces it has.
    pub(super) pieces: usize,
}

impl List {
    /// The version of the `count`th list of a term. Terms grow.
    pub(super) fn version(term: i64, count: u32) -> String {
        format!("{term:016x}.{count:08x}")
    }

    /// How many lists that term had up to this one.
    pub(super) fn count_in(&self, term: i64) -> u32 {
        let (of, count) = self.version.split_once('.').unwrap_or_default();
        let is_of_it = i64::from_str_radix(of, 16) == Ok(term);
        if is_of_it { u32::from_str_radix(count, 16).unwrap_or(0) } else { 0 }
    }
}

/// Text in pieces of so many bytes, or a little less.
pub(super) fn pieces(text: &str, most: usize) -> Vec<&str> {
    let (mut rest, mut found) = (text, Vec::new());
    while rest.len() > most {
        let at = (0..=most).rev().find(|at| rest.is_char_boundary(*at)).unwrap_or(0);
        let (piece, after) = rest.split_at(at);
        found.push(piece);
        rest = after;
    }
    found.push(rest);
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_whose_names_begin_alike_share_no_key() {
        let (short, long) = (Keys::new("/rlaunch/", "ex7"), Keys::new("rlaunch", "ex7e"));
        assert_eq!(short.node("a/b%"), "/rlaunch/ex7/nodes/a%2Fb%25");
        assert_eq!(short.id_of("/rlaunch/ex7/nodes/a%2Fb%25").as_deref(), Some("a/b%"));
        let is_below = |key: &str, prefix: &str| key >= prefix && key < end(prefix).as_str();
        assert!(is_below(&short.state(), &short.base) && !is_below(&long.state(), &short.base));
        assert!(!is_below(&Keys::new("/rlaunch", "ex7/e").state(), &short.base));
    }

    #[test]
    fn lists_are_numbered_upwards() {
        let list = |term, count| List { version: List::version(term, count), pieces: 1 };
        assert!(list(9, 300).version < list(10, 1).version);
        assert_eq!((list(10, 7).count_in(10), list(10, 7).count_in(11)), (7, 0));
    }

    #[test]
    fn pieces_make_up_the_text() {
        for text in ["", "abc", "äöü€", "abcdefghij"] {
            let found = pieces(text, 4);
            assert_eq!(found.concat(), text);
            assert!(found.iter().all(|piece| piece.len() <= 4));
        }
    }
}
