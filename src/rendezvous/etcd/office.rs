//! What a node does while it coordinates: it sees what the nodes say, has it decided, and publishes, fenced.

use super::client::{Caller, Fault, NOT_FOUND};
use super::event::Event;
use super::keeper::grant;
use super::watch::{Seen, Watch};
use super::words::{self, Change, Keys, List, Posted};
use crate::rendezvous::tie::{Decide, Publication};
use crossbeam_channel::Sender;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

/// The most of a members' list in one key: etcd takes 1.5 MiB in one request, which base64 makes out of 1.1.
const PIECE: usize = 512 << 10;
/// How much longer than a node's the job's lease is: who is left takes it over long before it runs out.
const JOBS_TIME: u32 = 12;
const LEAST_JOBS_TIME: Duration = Duration::from_secs(60);

/// What a worker does its requests with.
pub(super) struct Desk {
    pub(super) caller: Caller,
    pub(super) keys: Keys,
    pub(super) id: String,
    /// For how long a node's lease is.
    pub(super) time: Duration,
    /// The job's lease, for its keeper.
    pub(super) jobs: Arc<AtomicI64>,
    pub(super) events: Sender<Event>,
}

impl Desk {
    pub(super) fn own_key(&self) -> String {
        self.keys.node(&self.id)
    }

    pub(super) fn call(&self, what: &str, question: &Value) -> Result<Value, Fault> {
        self.caller.call(&format!("/v3/kv/{what}"), question)
    }

    /// A members' list; `None`: it is not there any more.
    pub(super) fn members(&self, list: &List) -> Result<Option<String>, Fault> {
        let mut text = String::new();
        for number in 0..list.pieces {
            let answer = self.call("range", &words::get(&self.keys.piece(&list.version, number)))?;
            let Some(piece) = words::kvs(&answer).pop() else { return Ok(None) };
            text.push_str(&piece.value);
        }
        Ok(Some(text))
    }

    /// Takes back the node's lease; if no node is left, removes everything, and takes back the job's.
    pub(super) fn clear(&self, lease: i64, jobs: i64) -> Result<(), Fault> {
        self.revoke(lease)?;
        let all = json!({ "request_delete_range": words::range(&self.keys.base) });
        let guard = words::nothing_below(&self.keys.nodes());
        let answer = self.call("txn", &json!({ "compare": [guard], "success": [all] }))?;
        if words::held(&answer) && jobs != 0 {
            self.revoke(jobs)?;
        }
        Ok(())
    }

    fn revoke(&self, lease: i64) -> Result<(), Fault> {
        match self.caller.call("/v3/lease/revoke", &json!({ "ID": lease.to_string() })) {
            Ok(_) | Err(Fault::No { code: NOT_FOUND, .. }) => Ok(()),
            Err(fault) => Err(fault),
        }
    }
}

/// What came of a turn.
pub(super) enum Turn {
    Nothing,
    /// This has been published, by that revision; with its members, if they are new.
    Posted {
        revision: i64,
        posted: Posted,
        members: Option<String>,
    },
    /// Another coordinates, or this node has lost count of what it has written.
    Deposed,
}

/// A node's time as coordinator.
pub(super) struct Office {
    pub(super) term: i64,
    pub(super) decide: Box<dyn Decide>,
    /// The revision that wrote the state last; 0: there is none.
    written: i64,
    /// The members' list that is there.
    list: Option<List>,
    /// The job's.
    pub(super) lease: i64,
    jobs: Arc<AtomicI64>,
    /// The nodes that are here.
    here: BTreeSet<String>,
    /// Whose lease ran out while this node had no contact either: when that was seen, and until when they may come back.
    missing: BTreeMap<String, (Duration, Duration)>,
    /// No lease that has run out before then says that its node is lost.
    pub(super) calm_at: Duration,
    /// What another left behind, which is published anew even if nothing is to be said.
    left: Option<Publication>,
    /// No change up to this revision is news; whether there may be some before the watch began.
    revision: i64,
    behind: bool,
    /// Whether something has happened.
    heard: bool,
    own: String,
    /// Whether this node has left.
    has_left: bool,
    _watch: Watch,
}

impl Drop for Office {
    fn drop(&mut self) {
        self.jobs.store(0, Ordering::Relaxed);
    }
}

impl Office {
    /// Takes over from whoever led before.
    pub(super) fn take(desk: &Desk, term: i64, mut decide: Box<dyn Decide>, now: Duration) -> Result<Self, Fault> {
        let keys = &desk.keys;
        let state = json!({ "request_range": words::get(&keys.state()) });
        let nodes = json!({ "request_range": words::range(&keys.nodes()) });
        let answer = desk.call("txn", &json!({ "success": [state, nodes] }))?;
        let state = words::kvs_of(&answer, 0).pop();
        let nodes = words::kvs_of(&answer, 1);
        let (written, lease) = state.as_ref().map_or((0, 0), |state| (state.written, state.lease));
        let posted = state.and_then(|state| serde_json::from_str::<Posted>(&state.value).ok());
        let list = posted.as_ref().and_then(|posted| posted.members.clone());
        let members = list.as_ref().map(|list| desk.members(list)).transpose()?.flatten();
        decide.resume(posted.as_ref().map(|posted| posted.state.as_str()), members.as_deref(), now);
        let events = desk.events.clone();
        let tell = move |seen| drop(events.send(Event::Nodes(term, seen)));
        let watch = Watch::start(&desk.caller.client, keys.nodes(), words::revision(&answer), tell);
        let watch = watch.map_err(|error| Fault::Contact(error.to_string()))?;
        desk.jobs.store(lease, Ordering::Relaxed);
        let by = posted.as_ref().map(|posted| posted.by.clone());
        let left = posted
            .filter(|posted| posted.term != term)
            .map(|posted| Publication { state: posted.state, members: None });
        let mut office = Self {
            term,
            decide,
            written,
            list,
            lease,
            jobs: Arc::clone(&desk.jobs),
            here: BTreeSet::new(),
            missing: BTreeMap::new(),
            calm_at: Duration::ZERO,
            left,
            revision: 0,
            behind: false,
            heard: true,
            own: desk.id.clone(),
            has_left: false,
            _watch: watch,
        };
        for kv in nodes {
            office.see(desk, Change::Put(kv), now);
        }
        if let Some(by) = by.filter(|by| !office.here.contains(by)) {
            office.decide.gone(&by, desk.time, now);
        }
        Ok(office)
    }

    /// Takes note of what nodes say.
    pub(super) fn hear(&mut self, desk: &Desk, seen: Seen, now: Duration) {
        match seen {
            Seen::Changes(changes) => {
                for change in changes {
                    // All up to there was asked for.
                    if change.revision() > self.revision {
                        self.see(desk, change, now);
                    }
                }
            }
            Seen::All(kvs, revision) => {
                self.revision = revision;
                let there: BTreeSet<String> = kvs.iter().filter_map(|kv| desk.keys.id_of(&kv.key)).collect();
                let gone: Vec<String> = self.here.difference(&there).cloned().collect();
                gone.iter().for_each(|id| self.miss(id, desk.time, now));
                kvs.into_iter().for_each(|kv| self.see(desk, Change::Put(kv), now));
            }
            Seen::Behind => (self.behind, self.heard) = (true, true),
            Seen::Refused(_) => {}
        }
    }

    fn see(&mut self, desk: &Desk, change: Change, now: Duration) {
        match change {
            Change::Put(kv) => {
                let Some(id) = desk.keys.id_of(&kv.key).filter(|id| !(self.has_left && *id == self.own)) else {
                    return;
                };
                self.missing.remove(&id);
                if kv.value.is_empty() {
                    // It leaves in order.
                    return self.forget(&id, Duration::ZERO, now);
                }
                self.heard = true;
                self.decide.record(&id, &kv.value, now);
                self.here.insert(id);
            }
            Change::Gone { key, .. } => {
                let Some(id) = desk.keys.id_of(&key) else { return };
                self.miss(&id, desk.time, now);
            }
        }
    }

    /// The lease of a node has run out.
    fn miss(&mut self, id: &str, age: Duration, now: Duration) {
        if now >= self.calm_at {
            self.forget(id, age, now);
        } else if self.here.contains(id) {
            self.missing.entry(id.to_owned()).or_insert((now, self.calm_at));
        }
    }

    /// This node leaves, with this as its last word.
    pub(super) fn leave(&mut self, record: &str, now: Duration) {
        let own = self.own.clone();
        if !self.has_left && self.here.contains(&own) {
            self.decide.record(&own, record, now);
            self.forget(&own, Duration::ZERO, now);
        }
        self.has_left = true;
    }

    /// When `turn` wants to be called next, if ever.
    pub(super) fn next_deadline(&self) -> Option<Duration> {
        self.missing.values().map(|(_, until)| *until).chain(self.decide.next_deadline()).min()
    }

    /// A node has gone.
    fn forget(&mut self, id: &str, age: Duration, now: Duration) {
        if self.here.remove(id) {
            self.heard = true;
            self.decide.gone(id, age, now);
        }
    }

    /// Whether nobody needs a coordinator any more: the job is over, or all others have gone.
    pub(super) fn is_over(&self) -> bool {
        self.decide.is_over() || self.here.iter().all(|id| *id == self.own)
    }

    /// Decides and publishes, if there is a reason to.
    pub(super) fn turn(&mut self, desk: &Desk, now: Duration) -> Result<Turn, Fault> {
        let is_due = self.next_deadline().is_some_and(|at| at <= now);
        if !self.heard && !is_due {
            return Ok(Turn::Nothing);
        }
        if self.behind {
            let (kvs, revision) = desk.caller.range(&desk.keys.nodes())?;
            self.hear(desk, Seen::All(kvs, revision), now);
            self.behind = false;
        }
        let missed: Vec<String> =
            self.missing.iter().filter(|(_, (_, until))| *until <= now).map(|(id, _)| id.clone()).collect();
        for id in missed {
            if let Some((since, _)) = self.missing.remove(&id) {
                self.forget(&id, desk.time + now.saturating_sub(since), now);
            }
        }
        self.heard = false;
        let left = self.left.take();
        match self.decide.turn(now).or(left) {
            Some(publication) => self.publish(desk, publication),
            None => Ok(Turn::Nothing),
        }
    }

    fn publish(&mut self, desk: &Desk, publication: Publication) -> Result<Turn, Fault> {
        let keys = &desk.keys;
        if self.lease == 0 {
            let time = (desk.time * JOBS_TIME).max(LEAST_JOBS_TIME);
            self.lease = grant(&desk.caller, desk.caller.client.until(), time)?;
            self.jobs.store(self.lease, Ordering::Relaxed);
        }
        let leads = words::made_by(&keys.leader(), self.term);
        let mut list = self.list.clone();
        let mut then = Vec::new();
        if let Some(members) = &publication.members {
            let count = list.as_ref().map_or(0, |list| list.count_in(self.term)) + 1;
            let version = List::version(self.term, count);
            let pieces = words::pieces(members, PIECE);
            for (number, piece) in pieces.iter().enumerate() {
                let put = json!({ "request_put": words::put(&keys.piece(&version, number), piece, self.lease) });
                let answer = desk.call("txn", &json!({ "compare": [leads], "success": [put] }))?;
                if !words::held(&answer) {
                    return Ok(Turn::Deposed);
                }
            }
            let before = json!({
                "key": words::coded(&keys.members()), "range_end": words::coded(&format!("{}{version}", keys.members())),
            });
            then.push(json!({ "request_delete_range": before }));
            list = Some(List { version, pieces: pieces.len() });
        }
        let posted = Posted { by: desk.id.clone(), term: self.term, members: list, state: publication.state };
        let text = serde_json::to_string(&posted).map_err(|error| Fault::Contact(error.to_string()))?;
        then.push(json!({ "request_put": words::put(&keys.state(), &text, self.lease) }));
        let fence = [leads, words::written_by(&keys.state(), self.written)];
        let answer = desk.call("txn", &json!({ "compare": fence, "success": then }))?;
        if !words::held(&answer) {
            return Ok(Turn::Deposed);
        }
        self.written = words::revision(&answer);
        self.list.clone_from(&posted.members);
        Ok(Turn::Posted { revision: self.written, posted, members: publication.members })
    }
}
