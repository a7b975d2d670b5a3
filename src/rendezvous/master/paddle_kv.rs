//! A node of a job whose master is Paddle's own launcher.

use super::dial::{ask, at_most, name};
use super::http::{Message, encode};
use super::{Clock, Traffic, seal};
use crate::rendezvous::torch_store::client::Left;
use serde_json::Value;
use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::net::Ipv4Addr;
use std::time::Duration;

/// How long one request may take.
const REQUEST: Duration = Duration::from_secs(5);
/// How often the list is read; Paddle's own launcher reads it every 0.5 s.
const EVERY: Duration = Duration::from_millis(200);

/// Where the master is.
#[derive(Clone, Debug)]
pub struct Place {
    /// Its host.
    pub host: String,
    /// Its port.
    pub port: u16,
    /// The job's key; Paddle's own server has none.
    pub key: Option<String>,
    /// The clock.
    pub clock: Clock,
}

/// What this node is there.
#[derive(Clone, Debug)]
pub struct Own {
    /// Its launcher's name.
    pub name: String,
    /// Its number, if it was given one.
    pub rank: Option<usize>,
    /// What Paddle's launcher is told of it.
    pub payload: String,
}

/// Told which keys are there, or why that is not known.
pub type Roll<'a> = &'a mut dyn FnMut(Result<&[String], &str>);

/// All nodes, in the order of their numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peers {
    /// Keys and payloads.
    pub all: Vec<(String, String)>,
    /// Which of them is this one.
    pub own: usize,
}

/// Puts its own entry and reads the list, again and again, until there are exactly `size` of them, as Paddle's launchers do.
/// `roll` is told who is there whenever that changes, and why not, if it cannot be known. `sort_ip`: order by address.
pub fn sync(
    place: &Place,
    job: &str,
    size: usize,
    own: &Own,
    sort_ip: bool,
    left: Left<'_>,
    roll: Roll<'_>,
) -> io::Result<Peers> {
    let folder = format!("/{}/info", encode(job));
    let rank = own.rank.map_or_else(|| "-1".to_owned(), |rank| rank.to_string());
    let key = format!("{folder}/{}/{rank}", encode(&own.name));
    let mut said = None;
    loop {
        match turn(place, &folder, &key, &own.payload, left) {
            Ok(found) => {
                let names: Vec<String> = found.keys().cloned().collect();
                if said.as_ref() != Some(&Ok(names.clone())) {
                    roll(Ok(&names));
                    said = Some(Ok(names));
                }
                check(&found, size, (!sort_ip).then_some(own.rank.is_some()))?;
                if found.len() == size {
                    return order(found, &key, own.rank, sort_ip);
                }
            }
            Err(failure) if failure.kind() == ErrorKind::PermissionDenied => return Err(failure),
            Err(failure) => {
                // Whoever has called has had enough.
                if left()?.is_zero() {
                    return Err(io::Error::new(ErrorKind::TimedOut, failure));
                }
                let why = failure.to_string();
                if said.as_ref() != Some(&Err(why.clone())) {
                    roll(Err(&why));
                    said = Some(Err(why));
                }
            }
        }
        pause(place.clock, left)?;
    }
}

/// Time passes, as long as there is any.
fn pause(clock: Clock, left: Left<'_>) -> io::Result<()> {
    let timed_out = || io::Error::new(ErrorKind::TimedOut, "not all nodes have come");
    if left()?.is_zero() {
        return Err(timed_out());
    }
    let end = clock() + EVERY;
    let silent = nix::sys::eventfd::EventFd::from_flags(nix::sys::eventfd::EfdFlags::EFD_CLOEXEC)?;
    let mut rest = || Ok(left()?.min(end.saturating_sub(clock())));
    match crate::rendezvous::torch_store::client::wait(
        std::os::fd::AsFd::as_fd(&silent),
        nix::poll::PollFlags::POLLIN,
        &mut rest,
    ) {
        Err(error) if error.kind() == ErrorKind::TimedOut => Ok(()),
        other => other,
    }
}

fn turn(place: &Place, folder: &str, key: &str, payload: &str, left: Left<'_>) -> io::Result<BTreeMap<String, String>> {
    let master = name(&place.host, place.port);
    let put = request(place, "POST", key, payload.as_bytes(), left)?;
    if put.status() != Some(200) {
        return Err(io::Error::other(format!("the master at {master} answers {}", put.first[1..].join(" "))));
    }
    let found = request(place, "GET", folder, b"", left)?;
    match found.status() {
        Some(200) => serde_json::from_slice(&found.body).map_err(io::Error::other),
        Some(404) => Ok(BTreeMap::new()),
        _ => Err(io::Error::other(format!("the master at {master} answers {}", found.first[1..].join(" ")))),
    }
}

/// One request; with a key, by a challenge, which is asked for first.
pub fn request(place: &Place, method: &str, path: &str, body: &[u8], left: Left<'_>) -> io::Result<Message> {
    let (to, traffic) = ((place.host.as_str(), place.port), Traffic::default());
    let mut left = at_most(place.clock, REQUEST, left);
    let first = ask(to, (method, path, body, ""), &traffic, &mut left)?;
    let (Some(401), Some(challenge)) = (first.status(), first.header("www-authenticate")) else {
        return match place.key {
            Some(_) => {
                let master = name(&place.host, place.port);
                let why = format!(
                    "the master at {master} has no key and lets everybody in; it has to be started with --job_key"
                );
                Err(io::Error::new(ErrorKind::PermissionDenied, why))
            }
            None => Ok(first),
        };
    };
    let denied = |why: &str| io::Error::new(ErrorKind::PermissionDenied, why.to_owned());
    let Some(key) = &place.key else { return Err(denied("the job has a key: give this node its --job_key")) };
    let challenge = challenge.trim_start_matches("RLAUNCH ");
    let proof = seal::proof(key, method, path, challenge, body);
    let more = format!("Authorization: RLAUNCH {challenge} {proof}\r\n");
    let answer = ask(to, (method, path, body, &more), &traffic, &mut left)?;
    let proof = answer.header("authentication-info").unwrap_or_default();
    match answer.status() {
        Some(status) if seal::answers(key, challenge, status, &answer.body, proof) => Ok(answer),
        _ => Err(denied("the master has another key: give all nodes the same --job_key")),
    }
}

fn rank_of(key: &str) -> Option<i64> {
    key.rsplit_once('/')?.1.parse().ok()
}

/// What can never come right. `numbered`: whether this node has a number, where that makes the order.
fn check(found: &BTreeMap<String, String>, size: usize, numbered: Option<bool>) -> io::Result<()> {
    let wrong = |why: String| Err(io::Error::new(ErrorKind::InvalidInput, why));
    let mut numbers: BTreeMap<i64, &str> = BTreeMap::new();
    for key in found.keys() {
        match rank_of(key) {
            Some(rank) if rank >= size as i64 => {
                return wrong(format!("--rank {rank} ({key}): there are {size} nodes, numbered from 0"));
            }
            Some(rank) if rank >= 0 => {
                if let Some(other) = numbers.insert(rank, key) {
                    return wrong(format!("--rank {rank} is given twice: {other} and {key}"));
                }
            }
            _ => {}
        }
    }
    let unlike = |key: &&String| numbered.is_some_and(|numbered| numbered != (rank_of(key) >= Some(0)));
    match found.keys().find(unlike) {
        Some(key) if found.len() == size => {
            wrong(format!("{key} and this node: only one of them has a --rank; give it to all nodes or to none"))
        }
        _ => Ok(()),
    }
}

/// As Paddle's launcher orders them.
fn order(found: BTreeMap<String, String>, key: &str, rank: Option<usize>, sort_ip: bool) -> io::Result<Peers> {
    let mut all: Vec<(String, String)> = found.into_iter().collect();
    if sort_ip {
        all.sort_by_key(|(_, payload)| address(payload));
    } else if rank.is_some() {
        all.sort_by_key(|(key, _)| rank_of(key));
    }
    let own = all.iter().position(|(other, _)| other == key);
    let own = own.ok_or_else(|| io::Error::other("the master's list is full, and this node is not in it"))?;
    Ok(Peers { all, own })
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
        let peers = order(found(keys), &format!("/j/info/{own}"), rank, sort_ip).unwrap();
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
    fn numbers_that_cannot_be_are_named() {
        let why = |keys: &[&str], numbered| check(&found(keys), 2, numbered).unwrap_err().to_string();
        assert!(why(&["a/0", "b/0"], Some(true)).contains("--rank 0 is given twice: /j/info/a/0 and /j/info/b/0"));
        assert!(why(&["a/2"], Some(false)).contains("--rank 2 (/j/info/a/2): there are 2 nodes"));
        assert!(
            why(&["a/0", "b/-1"], Some(true)).contains("/j/info/b/-1 and this node: only one of them has a --rank")
        );
        assert!(why(&["a/0", "b/-1"], Some(false)).contains("/j/info/a/0 and this node"));
        assert!(check(&found(&["a/0", "b/-1"]), 2, None).is_ok(), "addresses make the order");
        assert!(check(&found(&["a/-1", "b/-1", "c/-1"]), 2, Some(false)).is_ok(), "too many may become fewer");
    }
}
