//! The session thread, which alone writes. Its events come from the node, the lease keep-alive thread and the watches. After each it
//! does what is left to do; if that fails, it tries again after a pause.

use super::contact::ContactReports;
use super::event::{Closing, EventQueue, SessionEvent};
use super::gateway::client::{EtcdCaller, EtcdError};
use super::gateway::codec::{self, JobKeys, KeyValue, StoredState, WatchChange};
use super::gateway::watch::{WatchEvent, WatchHandle};
use super::gateway::wire::WireHandle;
use super::job_state::JobStateReader;
use super::leader::{Leader, TurnResult};
use super::questions;
use super::retry::RetryTimer;
use super::session::{EtcdSession, SessionTimes};
use crate::protocol::CoordinatorLogic;
use crate::rendezvous::backend::BackendEvent;
use crate::sys::clock;
use crate::sys::random;
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender};
use serde_json::{Value, json};
use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicI64;
use std::time::Duration;

pub struct SessionThread {
    session: EtcdSession,
    received: Receiver<SessionEvent>,
    events: Arc<EventQueue>,
    make_coordinator: Box<dyn Fn() -> Box<dyn CoordinatorLogic> + Send>,
    /// The connection of the keep-alive thread.
    keep_alive_wire: Arc<WireHandle>,
    record: String,
    /// The node's lease; 0: none. Its number, until the node has received that it has joined under it.
    lease: i64,
    unannounced: Option<u16>,
    /// Whether the record exists under this lease, and whether it is the latest.
    has_joined: bool,
    is_record_written: bool,
    contact: ContactReports,
    board: JobStateReader,
    watch: Option<WatchHandle>,
    leader: Option<Leader>,
    /// Whether this node does not know whether it leads.
    is_leader_unknown: bool,
    /// Whether keys below `board/` may have changed before their watch began.
    is_behind: bool,
    /// When to campaign if there is no leader.
    campaign_at: Duration,
    /// Until when nodes that were without contact like this one may come back.
    tolerant_until: Duration,
    /// The state that the node has not received yet, and the revision that wrote it.
    pending: Option<(i64, StoredState)>,
    /// The revision of the last state that the node has received, and the version of its members' list.
    sent_revision: i64,
    sent_list: String,
    retry: RetryTimer,
    closing: Option<Closing>,
    is_refused: bool,
    is_over: bool,
}

impl SessionThread {
    pub fn new(
        (caller, keep_alive_wire): (EtcdCaller, Arc<WireHandle>),
        (keys, id, record): (JobKeys, &str, &str),
        times: SessionTimes,
        (sender, received): (Sender<SessionEvent>, Receiver<SessionEvent>),
        (events, job_lease): (Arc<EventQueue>, Arc<AtomicI64>),
        make_coordinator: Box<dyn Fn() -> Box<dyn CoordinatorLogic> + Send>,
    ) -> Self {
        Self {
            session: EtcdSession { caller, keys, id: id.to_owned(), times, job_lease, events: sender },
            received,
            contact: ContactReports::new(Arc::clone(&events)),
            events,
            make_coordinator,
            keep_alive_wire,
            record: record.to_owned(),
            lease: 0,
            unannounced: None,
            has_joined: false,
            is_record_written: false,
            board: JobStateReader::default(),
            watch: None,
            leader: None,
            is_leader_unknown: false,
            is_behind: false,
            campaign_at: Duration::ZERO,
            tolerant_until: Duration::ZERO,
            pending: None,
            sent_revision: 0,
            sent_list: String::new(),
            retry: RetryTimer::default(),
            closing: None,
            is_refused: false,
            is_over: false,
        }
    }

    pub fn run(mut self) {
        while !self.is_over {
            let event = match self.next_deadline() {
                Some(at) => self.received.recv_timeout(at.saturating_sub(clock::now())),
                None => self.received.recv().map_err(|_| RecvTimeoutError::Disconnected),
            };
            match event {
                Ok(event) => self.handle_event(event),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            while let Ok(event) = self.received.try_recv() {
                self.handle_event(event);
            }
            if self.is_over {
                break;
            }
            self.work().unwrap_or_else(|error| self.handle_error(error));
        }
        self.keep_alive_wire.close();
    }

    /// When there is something to do without an event.
    fn next_deadline(&self) -> Option<Duration> {
        let closes = self.closing.as_ref().map(|closing| closing.until);
        if self.is_refused {
            return closes;
        }
        let campaigns = (self.may_campaign() && self.board.leader.is_none()).then_some(self.campaign_at);
        let decides = self.leader.as_ref().and_then(Leader::next_deadline);
        let retries = self.retry.next().filter(|_| self.lease != 0);
        // What is due before a pause is over waits for its end.
        let due = campaigns.into_iter().chain(decides).min().map(|at| retries.map_or(at, |retry| at.max(retry)));
        due.into_iter().chain(retries).chain(closes).min()
    }

    fn handle_event(&mut self, event: SessionEvent) {
        match event {
            SessionEvent::Put(record) => {
                self.is_record_written = self.is_record_written && record == self.record;
                self.record = record;
            }
            SessionEvent::Close { patience, done } => {
                self.closing = Some(Closing { until: clock::now() + patience, done, is_announced: false });
                self.retry.expedite();
            }
            SessionEvent::Stop => self.is_over = true,
            SessionEvent::Lease(lease, number) => {
                self.tolerate_missing_nodes();
                (self.lease, self.unannounced) = (lease, Some(number));
                self.contact.note_contact(clock::now());
                (self.has_joined, self.is_record_written) = (false, false);
                self.retry.expedite();
            }
            SessionEvent::Contact => {
                self.tolerate_missing_nodes();
                self.contact.note_contact(clock::now());
                self.retry.restart();
            }
            SessionEvent::Expired => {
                (self.lease, self.has_joined) = (0, false);
                self.step_down();
                let silent = self.session.times.ttl.as_secs_f64();
                self.contact.lose(format!("etcd received nothing for {silent} s: this node's lease has lapsed"));
            }
            SessionEvent::Lost(why) => self.contact.lose(format!("etcd: {why}")),
            SessionEvent::Refused(why)
            | SessionEvent::Board(WatchEvent::Refused(why))
            | SessionEvent::Nodes(_, WatchEvent::Refused(why)) => self.end(BackendEvent::Refused { why }),
            SessionEvent::Board(WatchEvent::Failing(why)) => self.note_failing_watch(0, why),
            SessionEvent::Board(WatchEvent::Works) => self.contact.note_watch(0),
            SessionEvent::Nodes(term, WatchEvent::Failing(why)) => self.note_failing_watch(term, why),
            SessionEvent::Nodes(term, WatchEvent::Works) => self.contact.note_watch(term),
            SessionEvent::Board(WatchEvent::Behind) => self.is_behind = true,
            SessionEvent::Board(WatchEvent::All(kvs, revision)) => {
                self.note_board(&kvs, revision).unwrap_or_else(|error| self.handle_error(error));
            }
            SessionEvent::Board(WatchEvent::Changes(changes)) => {
                let noted = changes.into_iter().try_for_each(|change| self.note_change(change));
                noted.unwrap_or_else(|error| self.handle_error(error));
            }
            SessionEvent::Nodes(term, event) => {
                let now = clock::now();
                let is_cut_off = self.contact.is_lost() && !self.contact.has_contact;
                let tolerant_until = if is_cut_off { now + self.session.times.heartbeat } else { self.tolerant_until };
                if let Some(leader) = self.leader.as_mut().filter(|leader| leader.term == term) {
                    leader.tolerant_until = tolerant_until;
                    leader.note_event(&self.session, event, now);
                }
            }
        }
    }

    fn note_failing_watch(&mut self, term: i64, why: String) {
        self.contact.note_failing_watch(term, why, clock::now(), self.session.times.heartbeat);
    }

    /// There is contact again. If no node could reach etcd, the leases of all may have expired: a node that is not back yet is not
    /// lost for that.
    fn tolerate_missing_nodes(&mut self) {
        if self.contact.is_lost() && self.watch.is_some() {
            self.tolerant_until = clock::now() + self.session.times.heartbeat;
            self.campaign_soon(self.tolerant_until);
        }
    }

    fn campaign_soon(&mut self, from: Duration) {
        self.campaign_at = from + self.session.times.campaign_spread.mul_f64(random::rng().f64());
    }

    /// This node may not take part any more.
    fn end(&mut self, event: BackendEvent) {
        if !self.is_refused {
            self.is_refused = true;
            self.step_down();
            self.watch = None;
            self.keep_alive_wire.close();
            self.events.push(event);
        }
    }

    fn step_down(&mut self) {
        if self.leader.take().is_some() {
            self.is_leader_unknown = true;
        }
    }

    /// Takes note of all keys below `board/`.
    fn note_board(&mut self, kvs: &[KeyValue], revision: i64) -> Result<(), EtcdError> {
        if revision < self.board.revision {
            return Ok(());
        }
        kvs.iter().filter(|kv| kv.written > self.board.revision).for_each(|kv| self.note_question(kv));
        self.board.read(&self.session.keys, kvs, revision);
        self.check_leader();
        self.note_state()
    }

    /// Takes note of one change below `board/`.
    fn note_change(&mut self, change: WatchChange) -> Result<(), EtcdError> {
        let (key, revision, kv) = match change {
            WatchChange::Put(kv) => (kv.key.clone(), kv.written, Some(kv)),
            WatchChange::Gone { key, revision } => (key, revision, None),
        };
        if revision <= self.board.revision {
            return Ok(());
        }
        if key == self.session.keys.leader() {
            if kv.is_none() {
                self.board.leader_gone = revision;
                self.campaign_soon(clock::now().max(self.tolerant_until));
            }
            self.board.leader = kv;
            self.check_leader();
        } else if key == self.session.keys.state() {
            self.board.state = kv;
            // Now, not later: its leader may be gone by the next change.
            self.note_state()?;
        } else if let Some(kv) = kv {
            self.note_question(&kv);
        }
        Ok(())
    }

    fn note_question(&self, kv: &KeyValue) {
        if let Some(event) = questions::asked(&self.session.keys, kv, &self.session.id) {
            self.events.questions.report(event);
        }
    }

    /// Stops leading if another node leads.
    fn check_leader(&mut self) {
        let term = self.board.leader.as_ref().map(|leader| leader.created);
        if self.leader.as_ref().is_some_and(|leader| term != Some(leader.term)) {
            self.leader = None;
        }
    }

    fn note_state(&mut self) -> Result<(), EtcdError> {
        if let Some(state) = self.board.current()?.filter(|(written, _)| *written > self.sent_revision) {
            self.pending = Some(state);
        }
        Ok(())
    }

    /// Does what is left to do.
    fn work(&mut self) -> Result<(), EtcdError> {
        if self.closing.is_some() {
            if let Err(error) = self.leave() {
                self.finish(Some(error));
            }
            return Ok(());
        }
        if self.is_refused || self.lease == 0 || self.retry.next().is_some_and(|at| at > clock::now()) {
            return Ok(());
        }
        if !self.has_joined {
            self.join_or_campaign(true)?;
        } else if !self.is_record_written {
            self.session.call("put", &codec::put(&self.session.own_key(), &self.record, self.lease))?;
            self.is_record_written = true;
        }
        if self.is_behind {
            let (kvs, revision) = self.session.caller.range(&self.session.keys.board())?;
            self.is_behind = false;
            self.note_board(&kvs, revision)?;
        }
        if self.is_leader_unknown || self.board.leader.is_none() && clock::now() >= self.campaign_at {
            self.join_or_campaign(false)?;
        }
        self.lead()?;
        self.send_state()?;
        if let Some(lease) = self.unannounced.take_if(|_| !self.board.has_newer(self.sent_revision)) {
            self.events.push(BackendEvent::Joined { lease });
        }
        self.retry.note_success();
        self.contact.restore(self.leader.as_ref().map_or(0, |leader| leader.term));
        Ok(())
    }

    fn may_campaign(&self) -> bool {
        self.lease != 0 && self.has_joined && self.closing.is_none()
    }

    /// One transaction, which writes the record if it is missing, makes this node the leader if there is none and it is time to
    /// campaign, and reads the keys below `board/`.
    fn join_or_campaign(&mut self, with_record: bool) -> Result<(), EtcdError> {
        let keys = &self.session.keys;
        let record = json!({ "request_put": codec::put(&self.session.own_key(), &self.record, self.lease) });
        let leader = json!({ "request_put": codec::put(&keys.leader(), &self.session.id, self.lease) });
        let board = json!({ "request_range": codec::range(&keys.board()) });
        let record: Vec<Value> = with_record.then_some(record).into_iter().collect();
        let leader: Vec<Value> = (clock::now() >= self.campaign_at).then_some(leader).into_iter().collect();
        let without_leader = [&record[..], &leader[..], std::slice::from_ref(&board)].concat();
        let with_leader = [&record[..], &[board]].concat();
        let response = self.session.call(
            "txn",
            &json!({
                "compare": [codec::is_created_by(&keys.leader(), 0)],
                "success": without_leader,
                "failure": with_leader,
            }),
        )?;
        let index = record.len() + if codec::has_succeeded(&response) { leader.len() } else { 0 };
        let revision = codec::revision(&response);
        if with_record {
            (self.has_joined, self.is_record_written) = (true, true);
            self.session.caller.client.note_joined();
        }
        self.is_leader_unknown = false;
        if revision < self.board.revision {
            // Etcd has lost its data, and begins anew.
            self.board.check(0)?;
            (self.board, self.sent_revision, self.pending, self.watch) = (JobStateReader::default(), 0, None, None);
        }
        self.note_board(&codec::key_values_at(&response, index), revision)?;
        if self.watch.is_none() {
            let events = self.session.events.clone();
            let on_event = move |event| drop(events.send(SessionEvent::Board(event)));
            self.contact.note_watch(0);
            self.watch = Some(self.session.watch(self.session.keys.board(), revision, on_event)?);
        }
        let is_own = |leader: &&KeyValue| leader.lease == self.lease && leader.value == self.session.id;
        if let Some(term) = self.board.leader.as_ref().filter(is_own).map(|leader| leader.created)
            && self.leader.is_none()
        {
            let terms = (term, self.board.leader_gone);
            let taken = Leader::take_over(&self.session, terms, (self.make_coordinator)(), clock::now());
            self.is_leader_unknown = taken.is_err();
            let leader = taken?;
            self.contact.note_watch(term);
            self.board.check(leader.lease)?;
            self.leader = Some(leader);
        }
        Ok(())
    }

    /// Coordinates, if this node leads.
    fn lead(&mut self) -> Result<(), EtcdError> {
        let Some(leader) = &mut self.leader else { return Ok(()) };
        match leader.turn(&self.session, clock::now()) {
            Ok(TurnResult::Nothing) => Ok(()),
            Ok(TurnResult::Published { revision, state, members }) => {
                if let (Some(list), Some(members)) = (&state.members, members) {
                    // This node has written the list, and need not read it.
                    self.sent_list.clone_from(&list.version);
                    self.sent_revision = revision;
                    self.events.push(BackendEvent::State { state: state.state, members: Some(members) });
                } else {
                    self.pending = Some((revision, state));
                }
                Ok(())
            }
            Ok(TurnResult::Deposed) => {
                self.step_down();
                Err(EtcdError::Unreachable("another node leads".to_owned()))
            }
            Err(error) => {
                // The state may have been written all the same.
                self.step_down();
                Err(error)
            }
        }
    }

    /// Sends the latest state to the node, with the members if the node does not have them.
    fn send_state(&mut self) -> Result<(), EtcdError> {
        let Some((revision, state)) = &self.pending else { return Ok(()) };
        if *revision > self.sent_revision {
            let new = state.members.as_ref().filter(|list| list.version != self.sent_list);
            let members = match new {
                Some(list) => match self.session.read_members(list)? {
                    Some(members) => Some(members),
                    // The list has been replaced, and with it the state.
                    None => {
                        self.pending = None;
                        return Ok(());
                    }
                },
                None => None,
            };
            if let Some(list) = new {
                self.sent_list.clone_from(&list.version);
            }
            self.sent_revision = *revision;
            self.events.push(BackendEvent::State { state: state.state.clone(), members });
        }
        self.pending = None;
        Ok(())
    }

    fn handle_error(&mut self, error: EtcdError) {
        match error {
            EtcdError::Closed => self.is_over = true,
            EtcdError::Refused(why) => self.end(BackendEvent::Refused { why }),
            EtcdError::Superseded(why) => self.end(BackendEvent::Superseded { why }),
            EtcdError::Unreachable(_) | EtcdError::Denied(_) | EtcdError::Status { .. } => {
                tracing::debug!("etcd: {error}");
                // Etcd may renew the lease, and not take what this node writes.
                if self.retry.note_failure(clock::now()) >= self.session.times.heartbeat {
                    self.contact.hinder(error.to_string());
                }
            }
        }
    }

    /// Leaves: writes the last record, then an empty one. A leader stays until no node needs it, or its patience is over.
    fn leave(&mut self) -> Result<(), EtcdError> {
        let now = clock::now();
        let Some(closing) = &mut self.closing else { return Ok(()) };
        if self.has_joined && !closing.is_announced && !self.is_refused {
            closing.is_announced = true;
            if !self.is_record_written {
                // The last record says why the node leaves.
                self.session.call("put", &codec::put(&self.session.own_key(), &self.record, self.lease))?;
            }
            // The end of the lease may come later; the empty record is seen at once, and for what it means.
            self.session.call("put", &codec::put(&self.session.own_key(), "", self.lease))?;
            if let Some(leader) = &mut self.leader {
                leader.leave(&self.record, now);
            }
        }
        let is_needed = now < closing.until && self.leader.as_ref().is_some_and(|leader| !leader.is_over());
        if is_needed && self.lead().is_ok() && self.leader.is_some() {
            return Ok(());
        }
        self.finish(None);
        Ok(())
    }

    /// Revokes the lease, and with it the node's keys; deletes all keys of the job if no node is left.
    fn finish(&mut self, error: Option<EtcdError>) {
        self.is_over = true;
        self.keep_alive_wire.close();
        let job_lease = self.leader.as_ref().map(|leader| leader.lease);
        let job_lease = job_lease.or(self.board.state.as_ref().map(|state| state.lease)).unwrap_or(0);
        (self.watch, self.leader) = (None, None);
        let result = match error {
            // A node that is refused may still be able to write: its record is not to be left to another job.
            None if self.lease != 0 => self
                .session
                .clear(self.lease, job_lease)
                .or_else(|error| if self.is_refused { Ok(()) } else { Err(error) }),
            None => Ok(()),
            Some(error) => Err(error),
        };
        let Some(closing) = self.closing.take() else { return };
        let result = result.map_err(|error| match error {
            EtcdError::Closed => io::Error::from(io::ErrorKind::ConnectionAborted),
            error => io::Error::new(
                io::ErrorKind::TimedOut,
                format!("etcd: {error}; this node's record goes with its lease"),
            ),
        });
        // The caller may have gone.
        let _ = closing.done.send(result);
    }
}
