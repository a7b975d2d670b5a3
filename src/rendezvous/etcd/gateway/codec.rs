//! The job's keys, and the messages of etcd's JSON gateway, in which bytes are base64 and numbers are text. Pure.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// The keys of one job. Those that end with a slash are prefixes.
#[derive(Clone, Debug)]
pub struct JobKeys {
    pub base: String,
}

impl JobKeys {
    pub fn new(prefix: &str, job: &str) -> Self {
        let prefix = prefix.trim_matches('/');
        let slash = if prefix.is_empty() { "" } else { "/" };
        Self { base: format!("{slash}{prefix}/{}/", escape(job)) }
    }

    pub fn nodes(&self) -> String {
        format!("{}nodes/", self.base)
    }

    pub fn node(&self, id: &str) -> String {
        below(&self.nodes(), id)
    }

    pub fn board(&self) -> String {
        format!("{}board/", self.base)
    }

    pub fn leader(&self) -> String {
        format!("{}board/leader", self.base)
    }

    pub fn state(&self) -> String {
        format!("{}board/state", self.base)
    }

    pub fn members(&self) -> String {
        format!("{}members/", self.base)
    }

    pub fn piece(&self, version: &str, number: usize) -> String {
        format!("{}{version}/{number}", self.members())
    }

    /// The id of the node with this key.
    pub fn node_of(&self, key: &str) -> Option<String> {
        unescaped_after(key, &self.nodes())
    }

    fn questions(&self) -> String {
        format!("{}questions/", self.board())
    }

    pub fn question(&self, id: &str) -> String {
        below(&self.questions(), id)
    }

    /// The id of the question with this key.
    pub fn question_of(&self, key: &str) -> Option<String> {
        unescaped_after(key, &self.questions())
    }

    pub fn answers(&self, id: &str) -> String {
        format!("{}answers/{}/", self.base, escape(id))
    }

    /// What other nodes send to this one alone.
    pub fn sent_to(&self, node: &str) -> String {
        format!("{}sent/{}/", self.base, escape(node))
    }
}

/// The key of a name below a prefix.
pub fn below(prefix: &str, name: &str) -> String {
    format!("{prefix}{}", escape(name))
}

/// The name of a key below a prefix.
pub fn unescaped_after(key: &str, prefix: &str) -> Option<String> {
    key.strip_prefix(prefix).map(unescape)
}

/// Escapes a name to one part of a key.
fn escape(name: &str) -> String {
    name.replace('%', "%25").replace('/', "%2F")
}

fn unescape(part: &str) -> String {
    part.replace("%2F", "/").replace("%25", "%")
}

/// The key after all keys with this prefix, which ends with a slash.
pub fn range_end(prefix: &str) -> String {
    format!("{}0", prefix.strip_suffix('/').unwrap_or(prefix))
}

pub fn encode(text: &str) -> String {
    STANDARD.encode(text)
}

fn decode(value: &Value) -> String {
    let bytes = value.as_str().and_then(|text| STANDARD.decode(text).ok()).unwrap_or_default();
    String::from_utf8(bytes).unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
}

/// A number: text if it has 64 bits, absent if it is 0.
pub fn number(value: &Value) -> i64 {
    value.as_i64().or_else(|| value.as_str()?.parse().ok()).unwrap_or(0)
}

/// The revision of the store at the time of a response.
pub fn revision(answer: &Value) -> i64 {
    number(&answer["header"]["revision"])
}

/// A key with its value and metadata.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyValue {
    pub key: String,
    pub value: String,
    /// The revision that created it.
    pub created: i64,
    /// The revision that wrote it last.
    pub written: i64,
    pub lease: i64,
}

impl KeyValue {
    fn from(kv: &Value) -> Self {
        Self {
            key: decode(&kv["key"]),
            value: decode(&kv["value"]),
            created: number(&kv["create_revision"]),
            written: number(&kv["mod_revision"]),
            lease: number(&kv["lease"]),
        }
    }
}

/// The keys in the response to a range request.
pub fn key_values(range: &Value) -> Vec<KeyValue> {
    range["kvs"].as_array().map(|kvs| kvs.iter().map(KeyValue::from).collect()).unwrap_or_default()
}

/// The same for the range request at `index` in a transaction.
pub fn key_values_at(answer: &Value, index: usize) -> Vec<KeyValue> {
    key_values(&answer["responses"][index]["response_range"])
}

/// Whether the comparisons of a transaction held.
pub fn has_succeeded(answer: &Value) -> bool {
    answer["succeeded"].as_bool().unwrap_or(false)
}

/// A request for all keys with this prefix.
pub fn range(prefix: &str) -> Value {
    json!({ "key": encode(prefix), "range_end": encode(&range_end(prefix)) })
}

pub fn get(key: &str) -> Value {
    json!({ "key": encode(key) })
}

/// The key as it was then.
pub fn get_at(key: &str, revision: i64) -> Value {
    json!({ "key": encode(key), "revision": revision.to_string() })
}

pub fn put(key: &str, value: &str, lease: i64) -> Value {
    json!({ "key": encode(key), "value": encode(value), "lease": lease.to_string() })
}

/// A comparison: the key was created by that revision; 0: it does not exist.
pub fn is_created_by(key: &str, revision: i64) -> Value {
    json!({ "key": encode(key), "target": "CREATE", "result": "EQUAL", "create_revision": revision.to_string() })
}

/// A comparison: the key was last written by that revision; 0: it does not exist.
pub fn is_written_by(key: &str, revision: i64) -> Value {
    json!({ "key": encode(key), "target": "MOD", "result": "EQUAL", "mod_revision": revision.to_string() })
}

/// A comparison: no key has this prefix. It compares all keys with the prefix, or one that never existed.
pub fn is_empty(prefix: &str) -> Value {
    let mut comparison = is_created_by(prefix, 0);
    comparison["range_end"] = json!(encode(&range_end(prefix)));
    comparison
}

/// A comparison: no key with this prefix was created after that revision.
pub fn has_no_key_after(prefix: &str, revision: i64) -> Value {
    json!({
        "key": encode(prefix), "range_end": encode(&range_end(prefix)),
        "target": "CREATE", "result": "LESS", "create_revision": first_after(revision),
    })
}

pub fn first_after(revision: i64) -> String {
    revision.saturating_add(1).to_string()
}

/// A change that a watch has received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WatchChange {
    Put(KeyValue),
    Gone { key: String, revision: i64 },
}

impl WatchChange {
    pub fn revision(&self) -> i64 {
        match self {
            WatchChange::Put(kv) => kv.written,
            WatchChange::Gone { revision, .. } => *revision,
        }
    }
}

/// The changes in a message of a watch.
pub fn changes(result: &Value) -> Vec<WatchChange> {
    let change = |event: &Value| {
        let kv = KeyValue::from(&event["kv"]);
        match event["type"].as_str() {
            Some("DELETE") => WatchChange::Gone { key: kv.key, revision: kv.written },
            _ => WatchChange::Put(kv),
        }
    };
    result["events"].as_array().map(|events| events.iter().map(change).collect()).unwrap_or_default()
}

/// The value of `board/state`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredState {
    /// The coordinator that wrote it.
    pub by: String,
    /// Its term.
    pub term: i64,
    /// The place of the members' list.
    pub members: Option<MemberList>,
    /// `JobState`.
    pub state: String,
}

/// The place of a members' list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberList {
    /// Text that grows with every list.
    pub version: String,
    /// The number of its pieces.
    pub pieces: usize,
}

impl MemberList {
    /// The version of the `count`th list of a term. Terms grow.
    pub fn version(term: i64, count: u32) -> String {
        format!("{term:016x}.{count:08x}")
    }

    /// The number of lists of that term up to this one; 0 if it is of another.
    pub fn count_in(&self, term: i64) -> u32 {
        let (of, count) = self.version.split_once('.').unwrap_or_default();
        let is_of_it = i64::from_str_radix(of, 16) == Ok(term);
        if is_of_it { u32::from_str_radix(count, 16).unwrap_or(0) } else { 0 }
    }
}

/// Splits a text into pieces of so many bytes, or a little less.
pub fn split(text: &str, most: usize) -> Vec<&str> {
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
    fn jobs_with_a_common_prefix_share_no_key() {
        let (short, long) = (JobKeys::new("/rlaunch/", "ex7"), JobKeys::new("rlaunch", "ex7e"));
        assert_eq!(short.node("a/b%"), "/rlaunch/ex7/nodes/a%2Fb%25");
        assert_eq!(short.node_of("/rlaunch/ex7/nodes/a%2Fb%25").as_deref(), Some("a/b%"));
        let is_below = |key: &str, prefix: &str| key >= prefix && key < range_end(prefix).as_str();
        assert!(is_below(&short.state(), &short.base) && !is_below(&long.state(), &short.base));
        assert!(!is_below(&JobKeys::new("/rlaunch", "ex7/e").state(), &short.base));
    }

    #[test]
    fn the_largest_revision_has_no_next_one() {
        let answer = json!({ "header": { "revision": i64::MAX.to_string() } });
        assert_eq!(first_after(revision(&answer)), i64::MAX.to_string());
        assert_eq!(first_after(8), "9");
    }

    #[test]
    fn lists_are_numbered_upwards() {
        let list = |term, count| MemberList { version: MemberList::version(term, count), pieces: 1 };
        assert!(list(9, 300).version < list(10, 1).version);
        assert_eq!((list(10, 7).count_in(10), list(10, 7).count_in(11)), (7, 0));
    }

    #[test]
    fn pieces_make_up_the_text() {
        for text in ["", "abc", "äöü€", "abcdefghij"] {
            let found = split(text, 4);
            assert_eq!(found.concat(), text);
            assert!(found.iter().all(|piece| piece.len() <= 4));
        }
    }
}
