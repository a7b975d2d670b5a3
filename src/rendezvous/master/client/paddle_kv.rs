//! A node of a job whose master is Paddle's own launcher: a client of its key-value server.

use super::connect::request;
use crate::net::deadline::{Clock, TimeLeft, at_most};
use crate::net::tcp;
use crate::net::traffic::Traffic;
use crate::rendezvous::master::http::{HttpMessage, encode};
use serde_json::Value;
use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::net::Ipv4Addr;
use std::time::Duration;

/// How long one request may take.
const REQUEST: Duration = Duration::from_secs(5);
/// The pause between two reads of the list. Paddle's own launcher reads it every 0.5 s.
const PAUSE: Duration = Duration::from_millis(200);

/// Where the master is.
#[derive(Clone, Debug)]
pub struct KvAddress {
    /// Its host.
    pub host: String,
    /// Its port.
    pub port: u16,
    /// The clock.
    pub clock: Clock,
}

impl KvAddress {
    /// Sends one request, and returns the response.
    pub fn request(&self, method: &str, path: &str, body: &[u8], left: TimeLeft<'_>) -> io::Result<HttpMessage> {
        let mut left = at_most(self.clock, REQUEST, left);
        let response = request((&self.host, self.port), (method, path, body), &Traffic::default(), &mut left)?;
        if response.status() == Some(401) {
            let why = "the job has a secret, which Paddle's key-value protocol cannot prove: start all nodes with rlaunch, and \
                       set RLAUNCH_JOB_SECRET to the same secret on all of them";
            return Err(io::Error::new(ErrorKind::PermissionDenied, why));
        }
        Ok(response)
    }

    fn unexpected(&self, response: &HttpMessage) -> io::Error {
        let master = tcp::host_port(&self.host, self.port);
        io::Error::other(format!("the master at {master} answers {}", response.first[1..].join(" ")))
    }
}

/// This node's entry in the list.
#[derive(Clone, Debug)]
pub struct KvEntry {
    /// The name of its launcher.
    pub name: String,
    /// Its number, if the user gave it one.
    pub rank: Option<usize>,
    /// The value, as Paddle's launcher reads it.
    pub payload: String,
}

/// Receives the keys of the list, or why the list cannot be read.
pub type OnKeys<'a> = &'a mut dyn FnMut(Result<&[String], &str>);

/// All nodes, in the order of their numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KvPeers {
    /// Keys and payloads.
    pub all: Vec<(String, String)>,
    /// The index of this node.
    pub own: usize,
}

/// Puts this node's entry and reads the list, until the list has exactly `size` entries, as Paddle's launchers do. `sort_ip`:
/// nodes are ordered by address. `on_keys` is called whenever the keys, or the reason why they cannot be read, change.
pub fn sync(
    master: &KvAddress,
    job: &str,
    size: usize,
    own: &KvEntry,
    sort_ip: bool,
    left: TimeLeft<'_>,
    on_keys: OnKeys<'_>,
) -> io::Result<KvPeers> {
    let folder = format!("/{}/info", encode(job));
    let rank = own.rank.map_or_else(|| "-1".to_owned(), |rank| rank.to_string());
    let key = format!("{folder}/{}/{rank}", encode(&own.name));
    let mut reported = None;
    loop {
        match put_and_list(master, &folder, &key, &own.payload, left) {
            Ok(found) => {
                let keys: Vec<String> = found.keys().cloned().collect();
                if reported.as_ref() != Some(&Ok(keys.clone())) {
                    on_keys(Ok(&keys));
                    reported = Some(Ok(keys));
                }
                check_ranks(&found, size, (!sort_ip).then_some(own.rank.is_some()))?;
                if found.len() == size {
                    return order_peers(found, &key, own.rank, sort_ip);
                }
            }
            Err(failure) if failure.kind() == ErrorKind::PermissionDenied => return Err(failure),
            Err(failure) => {
                if left()?.is_zero() {
                    return Err(io::Error::new(ErrorKind::TimedOut, failure));
                }
                let why = failure.to_string();
                if reported.as_ref() != Some(&Err(why.clone())) {
                    on_keys(Err(&why));
                    reported = Some(Err(why));
                }
            }
        }
        if left()?.is_zero() {
            return Err(io::Error::new(ErrorKind::TimedOut, "not all nodes joined in time"));
        }
        tcp::pause(PAUSE, left)?;
    }
}

fn put_and_list(
    master: &KvAddress,
    folder: &str,
    key: &str,
    payload: &str,
    left: TimeLeft<'_>,
) -> io::Result<BTreeMap<String, String>> {
    let put = master.request("POST", key, payload.as_bytes(), left)?;
    if put.status() != Some(200) {
        return Err(master.unexpected(&put));
    }
    let list = master.request("GET", folder, b"", left)?;
    match list.status() {
        Some(200) => serde_json::from_slice(&list.body).map_err(io::Error::other),
        Some(404) => Ok(BTreeMap::new()),
        _ => Err(master.unexpected(&list)),
    }
}

fn rank_of(key: &str) -> Option<i64> {
    key.rsplit_once('/')?.1.parse().ok()
}

/// Refuses numbers that can never become valid. `numbered`: whether this node has a number, where numbers make the order.
fn check_ranks(found: &BTreeMap<String, String>, size: usize, numbered: Option<bool>) -> io::Result<()> {
    let invalid = |why: String| Err(io::Error::new(ErrorKind::InvalidInput, why));
    let mut numbers: BTreeMap<i64, &str> = BTreeMap::new();
    for key in found.keys() {
        match rank_of(key) {
            Some(rank) if rank >= size as i64 => {
                return invalid(format!("--rank {rank} ({key}): there are {size} nodes, numbered from 0"));
            }
            Some(rank) if rank >= 0 => {
                if let Some(other) = numbers.insert(rank, key) {
                    return invalid(format!("--rank {rank} is given twice: {other} and {key}"));
                }
            }
            _ => {}
        }
    }
    let differs = |key: &&String| numbered.is_some_and(|numbered| numbered != (rank_of(key) >= Some(0)));
    match found.keys().find(differs) {
        Some(key) if found.len() == size => {
            invalid(format!("{key} and this node: only one of them has a --rank; give it to all nodes or to none"))
        }
        _ => Ok(()),
    }
}

/// Orders the nodes as Paddle's launcher does.
fn order_peers(found: BTreeMap<String, String>, key: &str, rank: Option<usize>, sort_ip: bool) -> io::Result<KvPeers> {
    let mut all: Vec<(String, String)> = found.into_iter().collect();
    if sort_ip {
        all.sort_by_key(|(_, payload)| address(payload));
    } else if rank.is_some() {
        all.sort_by_key(|(key, _)| rank_of(key));
    }
    let own = all.iter().position(|(other, _)| other == key);
    let own = own.ok_or_else(|| io::Error::other("the master's list is full, and this node is not in it"))?;
    Ok(KvPeers { all, own })
}

fn address(payload: &str) -> Option<Ipv4Addr> {
    let payload: Value = serde_json::from_str(payload).ok()?;
    payload.get("candidate")?.as_str()?.split(':').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(keys: &[&str]) -> BTreeMap<String, String> {
        let payload = |at: usize| format!(r#"{{"candidate": "10.0.0.{}:1"}}"#, 10 - at);
        keys.iter().enumerate().map(|(at, key)| (format!("/j/info/{key}"), payload(at))).collect()
    }

    fn ordered(keys: &[&str], own: &str, rank: Option<usize>, sort_ip: bool) -> Vec<String> {
        let peers = order_peers(found(keys), &format!("/j/info/{own}"), rank, sort_ip).unwrap();
        assert_eq!(peers.all[peers.own].0, format!("/j/info/{own}"));
        peers.all.into_iter().map(|(key, _)| key.replace("/j/info/", "")).collect()
    }

    #[test]
    fn nodes_are_ordered_as_by_paddle() {
        assert_eq!(ordered(&["b/-1", "aaaaaa/-1"], "b/-1", None, false), ["aaaaaa/-1", "b/-1"]);
        assert_eq!(ordered(&["a/2", "b/10", "c/0"], "a/2", Some(2), false), ["c/0", "a/2", "b/10"]);
        assert_eq!(ordered(&["a/-1", "b/-1", "c/-1"], "a/-1", None, true), ["c/-1", "b/-1", "a/-1"]);
    }

    #[test]
    fn invalid_ranks_are_named() {
        let why = |keys: &[&str], numbered| check_ranks(&found(keys), 2, numbered).unwrap_err().to_string();
        assert!(why(&["a/0", "b/0"], Some(true)).contains("--rank 0 is given twice: /j/info/a/0 and /j/info/b/0"));
        assert!(why(&["a/2"], Some(false)).contains("--rank 2 (/j/info/a/2): there are 2 nodes"));
        assert!(
            why(&["a/0", "b/-1"], Some(true)).contains("/j/info/b/-1 and this node: only one of them has a --rank")
        );
        assert!(why(&["a/0", "b/-1"], Some(false)).contains("/j/info/a/0 and this node"));
        assert!(check_ranks(&found(&["a/0", "b/-1"]), 2, None).is_ok(), "addresses make the order");
        assert!(check_ranks(&found(&["a/-1", "b/-1", "c/-1"]), 2, Some(false)).is_ok(), "too many may become fewer");
    }
}
