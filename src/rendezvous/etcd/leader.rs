//! The leader: while this node coordinates, it reads the nodes' records, and publishes the job's state with a fence.

use super::event::SessionEvent;
use super::gateway::client::EtcdError;
use super::gateway::codec::{self, MemberList, StoredState, WatchChange};
use super::gateway::watch::{WatchEvent, WatchHandle};
use super::lease_keepalive::grant;
use super::session::EtcdSession;
use crate::protocol::{CoordinatorLogic, Departure, Publication};
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

/// The longest piece of a members' list in one key. Etcd takes 1.5 MiB in one request, which is 1.1 MiB before base64.
const MAX_PIECE: usize = 512 << 10;

/// What came of a turn.
pub enum TurnResult {
    Nothing,
    /// This state was published by that revision, with its members if they have changed.
    Published {
        revision: i64,
        state: StoredState,
        members: Option<String>,
    },
    /// Another node leads, or this one does not know the state or a node: it has to take over again.
    Deposed,
}

/// A node whose lease expired while this node had no contact either.
struct MissingNode {
    since: Duration,
    /// Until when it may come back.
    until: Duration,
}

/// The time of a node as leader.
pub struct Leader {
    pub term: i64,
    coordinator: Box<dyn CoordinatorLogic>,
    /// The revision that wrote the state last; 0: there is none.
    written: i64,
    /// The current members' list.
    list: Option<MemberList>,
    /// The job's lease.
    pub lease: i64,
    job_lease: Arc<AtomicI64>,
    here: BTreeSet<String>,
    missing: BTreeMap<String, MissingNode>,
    /// A lease that expires before then does not mean that its node is lost.
    pub tolerant_until: Duration,
    /// The state of the leader before, which is published again even if the coordinator has nothing new.
    inherited: Option<Publication>,
    /// All records were read at this revision. Earlier changes are ignored: a watch at a member that is behind begins with them.
    revision: i64,
    /// Changes of nodes' records up to this revision are known.
    known: i64,
    /// Whether there may be changes before the watch began.
    is_behind: bool,
    has_changed: bool,
    own_id: String,
    has_left: bool,
    _watch: WatchHandle,
}

impl Drop for Leader {
    fn drop(&mut self) {
        self.job_lease.store(0, Ordering::Relaxed);
    }
}

impl Leader {
    /// Takes over from the leader before, whose key went in the revision `gone` (0: unknown).
    pub fn take_over(
        session: &EtcdSession,
        (term, gone): (i64, i64),
        mut coordinator: Box<dyn CoordinatorLogic>,
        now: Duration,
    ) -> Result<Self, EtcdError> {
        let keys = &session.keys;
        let state = json!({ "request_range": codec::get(&keys.state()) });
        let nodes = json!({ "request_range": codec::range(&keys.nodes()) });
        let response = session.call("txn", &json!({ "success": [state, nodes] }))?;
        let state = codec::key_values_at(&response, 0).pop();
        let nodes = codec::key_values_at(&response, 1);
        let (written, lease) = state.as_ref().map_or((0, 0), |state| (state.written, state.lease));
        let stored = state.and_then(|state| serde_json::from_str::<StoredState>(&state.value).ok());
        let list = stored.as_ref().and_then(|stored| stored.members.clone());
        let members = list.as_ref().map(|list| session.read_members(list)).transpose()?.flatten();
        coordinator.resume(stored.as_ref().map(|stored| stored.state.as_str()), members.as_deref(), now);
        let events = session.events.clone();
        let on_event = move |event| drop(events.send(SessionEvent::Nodes(term, event)));
        let watch = session.watch(keys.nodes(), codec::revision(&response), on_event)?;
        session.job_lease.store(lease, Ordering::Relaxed);
        let predecessor = stored.as_ref().map(|stored| stored.by.clone());
        let inherited = stored.filter(|stored| stored.term != term).map(|stored| Publication {
            state: stored.state,
            members: None,
            requires_all_nodes: false,
        });
        let mut leader = Self {
            term,
            coordinator,
            written,
            list,
            lease,
            job_lease: Arc::clone(&session.job_lease),
            here: BTreeSet::new(),
            missing: BTreeMap::new(),
            tolerant_until: Duration::ZERO,
            inherited,
            revision: codec::revision(&response),
            known: codec::revision(&response),
            is_behind: false,
            has_changed: true,
            own_id: session.id.clone(),
            has_left: false,
            _watch: watch,
        };
        for kv in nodes {
            leader.note_change(session, WatchChange::Put(kv), now);
        }
        if let Some(id) = predecessor.filter(|id| !leader.here.contains(id)) {
            let lapsed = Departure::Lapsed { age: session.times.ttl };
            let departure = if session.had_left(&id, gone) { Departure::Left } else { lapsed };
            leader.coordinator.gone(&id, departure, now);
        }
        Ok(leader)
    }

    /// Takes note of what the watch of the nodes has seen.
    pub fn note_event(&mut self, session: &EtcdSession, event: WatchEvent, now: Duration) {
        match event {
            WatchEvent::Changes(changes) => {
                for change in changes {
                    self.known = self.known.max(change.revision());
                    if change.revision() > self.revision {
                        self.note_change(session, change, now);
                    }
                }
            }
            WatchEvent::All(kvs, revision) => {
                self.revision = revision;
                self.known = self.known.max(revision);
                let there: BTreeSet<String> = kvs.iter().filter_map(|kv| session.keys.node_of(&kv.key)).collect();
                let gone: Vec<String> = self.here.difference(&there).cloned().collect();
                gone.iter().for_each(|id| self.note_expired(id, session.times.ttl, now));
                kvs.into_iter().for_each(|kv| self.note_change(session, WatchChange::Put(kv), now));
            }
            WatchEvent::Behind => (self.is_behind, self.has_changed) = (true, true),
            WatchEvent::Refused(_) | WatchEvent::Failing(_) | WatchEvent::Works => {}
        }
    }

    fn note_change(&mut self, session: &EtcdSession, change: WatchChange, now: Duration) {
        match change {
            WatchChange::Put(kv) => {
                let Some(id) = session.keys.node_of(&kv.key).filter(|id| !(self.has_left && *id == self.own_id)) else {
                    return;
                };
                self.missing.remove(&id);
                if kv.value.is_empty() {
                    // An empty record: the node leaves.
                    return self.remove_node(&id, Departure::Left, now);
                }
                self.has_changed = true;
                self.coordinator.record(&id, &kv.value, now);
                self.here.insert(id);
            }
            WatchChange::Gone { key, .. } => {
                let Some(id) = session.keys.node_of(&key) else { return };
                self.note_expired(&id, session.times.ttl, now);
            }
        }
    }

    /// The lease of a node has expired.
    fn note_expired(&mut self, id: &str, age: Duration, now: Duration) {
        if now >= self.tolerant_until {
            self.remove_node(id, Departure::Lapsed { age }, now);
        } else if self.here.contains(id) {
            let missing = MissingNode { since: now, until: self.tolerant_until };
            self.missing.entry(id.to_owned()).or_insert(missing);
        }
    }

    /// This node leaves; `record` is its last one.
    pub fn leave(&mut self, record: &str, now: Duration) {
        let own = self.own_id.clone();
        if !self.has_left && self.here.contains(&own) {
            self.coordinator.record(&own, record, now);
            self.remove_node(&own, Departure::Left, now);
        }
        self.has_left = true;
    }

    /// When `turn` is to be called next, if ever.
    pub fn next_deadline(&self) -> Option<Duration> {
        self.missing.values().map(|node| node.until).chain(self.coordinator.next_deadline()).min()
    }

    fn remove_node(&mut self, id: &str, departure: Departure, now: Duration) {
        if self.here.remove(id) {
            self.has_changed = true;
            self.coordinator.gone(id, departure, now);
        }
    }

    /// Whether no node needs a leader any more: the job is over, or all other nodes have left.
    pub fn is_over(&self) -> bool {
        self.coordinator.is_over() || self.here.iter().all(|id| *id == self.own_id)
    }

    /// Decides and publishes, if there is a reason to.
    pub fn turn(&mut self, session: &EtcdSession, now: Duration) -> Result<TurnResult, EtcdError> {
        let is_due = self.next_deadline().is_some_and(|at| at <= now);
        if !self.has_changed && !is_due {
            return Ok(TurnResult::Nothing);
        }
        if self.is_behind {
            let (kvs, revision) = session.caller.range(&session.keys.nodes())?;
            self.note_event(session, WatchEvent::All(kvs, revision), now);
            self.is_behind = false;
        }
        let overdue = self.missing.iter().filter(|(_, node)| node.until <= now).map(|(id, _)| id.clone());
        for id in overdue.collect::<Vec<String>>() {
            if let Some(MissingNode { since, .. }) = self.missing.remove(&id) {
                let age = session.times.ttl + now.saturating_sub(since);
                self.remove_node(&id, Departure::Lapsed { age }, now);
            }
        }
        self.has_changed = false;
        let inherited = self.inherited.take();
        match self.coordinator.turn(now).or(inherited) {
            Some(publication) => self.publish(session, publication),
            None => Ok(TurnResult::Nothing),
        }
    }

    /// Writes the members' list, if there is a new one, and the state, on the condition that this node still leads, that the state is
    /// the one it knows, and that no new round begins beside a node that it does not know.
    fn publish(&mut self, session: &EtcdSession, publication: Publication) -> Result<TurnResult, EtcdError> {
        let keys = &session.keys;
        if self.lease == 0 {
            self.lease = grant(&session.caller, session.caller.client.deadline(), session.times.job_ttl)?;
            self.job_lease.store(self.lease, Ordering::Relaxed);
        }
        let leads = codec::is_created_by(&keys.leader(), self.term);
        let mut list = self.list.clone();
        let mut requests = Vec::new();
        if let Some(members) = &publication.members {
            let count = list.as_ref().map_or(0, |list| list.count_in(self.term)) + 1;
            let version = MemberList::version(self.term, count);
            let pieces = codec::split(members, MAX_PIECE);
            for (number, piece) in pieces.iter().enumerate() {
                let put = json!({ "request_put": codec::put(&keys.piece(&version, number), piece, self.lease) });
                let response = session.call("txn", &json!({ "compare": [leads], "success": [put] }))?;
                if !codec::has_succeeded(&response) {
                    return Ok(TurnResult::Deposed);
                }
            }
            let older = json!({
                "key": codec::encode(&keys.members()),
                "range_end": codec::encode(&format!("{}{version}", keys.members())),
            });
            requests.push(json!({ "request_delete_range": older }));
            list = Some(MemberList { version, pieces: pieces.len() });
        }
        let state = StoredState { by: session.id.clone(), term: self.term, members: list, state: publication.state };
        let text = serde_json::to_string(&state).map_err(|error| EtcdError::Unreachable(error.to_string()))?;
        requests.push(json!({ "request_put": codec::put(&keys.state(), &text, self.lease) }));
        let mut fence = vec![leads, codec::is_written_by(&keys.state(), self.written)];
        if publication.requires_all_nodes {
            // A node whose lease had lapsed may have come back, and may be starting its ranks of the round before.
            fence.push(codec::has_no_key_after(&keys.nodes(), self.known));
        }
        let response = session.call("txn", &json!({ "compare": fence, "success": requests }))?;
        if !codec::has_succeeded(&response) {
            return Ok(TurnResult::Deposed);
        }
        self.written = codec::revision(&response);
        self.list.clone_from(&state.members);
        Ok(TurnResult::Published { revision: self.written, state, members: publication.members })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // A test fails by panicking.
    use super::*;
    use crate::rendezvous::etcd::config::EtcdConfig;
    use crate::rendezvous::etcd::gateway::client::{EtcdCaller, EtcdClient};
    use crate::rendezvous::etcd::gateway::codec::JobKeys;
    use crate::rendezvous::etcd::session::SessionTimes;
    use crossbeam_channel::{Receiver, unbounded};
    use std::io::{Read, Write};
    use std::net::TcpListener;

    /// Says which nodes it considers lost.
    struct Lost(crossbeam_channel::Sender<String>);

    impl CoordinatorLogic for Lost {
        fn resume(&mut self, _: Option<&str>, _: Option<&str>, _: Duration) {}
        fn record(&mut self, _: &str, _: &str, _: Duration) {}
        fn gone(&mut self, id: &str, _: Departure, _: Duration) {
            self.0.send(id.to_owned()).unwrap();
        }
        fn turn(&mut self, _: Duration) -> Option<Publication> {
            None
        }
        fn next_deadline(&self) -> Option<Duration> {
            None
        }
        fn is_over(&self) -> bool {
            false
        }
        fn shown_to_paddle(&self) -> Vec<(String, String)> {
            Vec::new()
        }
    }

    /// A cluster with the records of `a` and `b` at revision 10, whose watch comes from a member that is at revision 5.
    fn serve_a_member_that_is_behind() -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = listener.local_addr().unwrap().to_string();
        let key = |id: &str| codec::encode(&JobKeys::new("/p", "job").node(id));
        let record = |id: &str| json!({ "key": key(id), "value": codec::encode("ready"), "mod_revision": "9" });
        let nodes = json!({ "kvs": [record("a"), record("b")] });
        let empty = json!({ "response_range": {} });
        let records = json!({ "header": { "revision": "10" }, "responses": [empty, { "response_range": nodes }] });
        let gone = |id: &str, at: &str| json!({ "type": "DELETE", "kv": { "key": key(id), "mod_revision": at } });
        let created = json!({ "result": { "header": { "revision": "5" }, "created": true } });
        let changes =
            |id: &str, at: &str| json!({ "result": { "header": { "revision": at }, "events": [gone(id, at)] } });
        let watch = format!("{created}\n{}\n{}\n", changes("b", "7"), changes("a", "11"));
        std::thread::spawn(move || {
            for socket in listener.incoming() {
                let mut socket = socket.unwrap();
                let mut bytes = [0; 4096];
                let count = socket.read(&mut bytes).unwrap_or(0);
                let is_watch = bytes[..count].starts_with(b"POST /v3/watch");
                let body = if is_watch { watch.clone() } else { records.to_string() };
                let _ = write!(
                    socket,
                    "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}",
                    body.len()
                );
            }
        });
        endpoint
    }

    #[test]
    fn a_change_before_the_take_over_is_not_taken_for_a_new_one() {
        let config = EtcdConfig::new(vec![serve_a_member_that_is_behind()], "job");
        let client = EtcdClient::new(&config).unwrap();
        client.hold_until(client.now() + Duration::from_secs(60));
        let (events, received) = unbounded();
        let session = EtcdSession {
            caller: EtcdCaller::new(&client),
            keys: JobKeys::new("/p", "job"),
            id: "a".into(),
            times: SessionTimes::of(&config),
            job_lease: Arc::default(),
            events,
        };
        let (lost, lost_nodes) = unbounded();
        let mut leader = Leader::take_over(&session, (1, 0), Box::new(Lost(lost)), Duration::ZERO).unwrap();
        let next = |received: &Receiver<SessionEvent>| match received.recv_timeout(Duration::from_secs(60)).unwrap() {
            SessionEvent::Nodes(1, event) => event,
            _ => panic!("another event"),
        };
        for _ in 0..2 {
            leader.note_event(&session, next(&received), Duration::from_secs(1));
        }
        assert_eq!(lost_nodes.try_iter().collect::<Vec<_>>(), ["a"]);
    }
}
