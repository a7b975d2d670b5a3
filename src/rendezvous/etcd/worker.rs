//! The worker of a tie: it alone writes. Its events come from the node, the keeper of the lease and the watches; after each
//! it does what is left to do, and again after a pause where that failed.

use super::board::Board;
use super::client::{Caller, Fault};
use super::event::Event;
use super::keeper::Backoff;
use super::office::{Desk, Office, Turn};
use super::tie::Outbox;
use super::watch::{Seen, Watch};
use super::wire::Line;
use super::words::{self, Change, Keys, Kv, Posted};
use crate::rendezvous::tie::{Decide, News};
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender};
use serde_json::{Value, json};
use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicI64;
use std::time::{Duration, Instant};

/// How far apart nodes try to lead when nobody does.
const APART_MS: u64 = 50;

struct Closing {
    until: Duration,
    done: Sender<io::Result<()>>,
    /// Whether the others have been told.
    said: bool,
}

pub(super) struct Worker {
    desk: Desk,
    events: Receiver<Event>,
    outbox: Arc<Outbox>,
    decide: Box<dyn Fn() -> Box<dyn Decide> + Send>,
    keeper: Arc<Line>,
    began: Instant,
    record: String,
    lease: i64,
    /// Whether the record is there, and is the latest.
    joined: bool,
    written: bool,
    /// Whether the node believes that there is no contact; whether the keeper has some.
    lost: bool,
    contact: bool,
    board: Board,
    watch: Option<Watch>,
    office: Option<Office>,
    /// Whether it is not known who leads.
    unsure: bool,
    /// Whether the board may have changed before its watch began.
    behind: bool,
    /// When to try to lead.
    stand_at: Duration,
    /// Until when those who have been without contact like this node may come back.
    calm_at: Duration,
    /// What is to be told, by which revision, and what has been.
    news: Option<(i64, Posted)>,
    told: i64,
    told_list: String,
    retry_at: Duration,
    backoff: Backoff,
    closing: Option<Closing>,
    refused: bool,
    over: bool,
}

impl Worker {
    pub(super) fn new(
        (caller, keeper): (Caller, Arc<Line>),
        (keys, id, record): (Keys, &str, &str),
        time: Duration,
        (sender, events): (Sender<Event>, Receiver<Event>),
        (outbox, jobs): (Arc<Outbox>, Arc<AtomicI64>),
        decide: Box<dyn Fn() -> Box<dyn Decide> + Send>,
    ) -> Self {
        #[expect(clippy::disallowed_methods, reason = "a floor's siblings do not use each other: sys is one")]
        let began = Instant::now();
        Self {
            desk: Desk { caller, keys, id: id.to_owned(), time, jobs, events: sender },
            events,
            outbox,
            decide,
            keeper,
            began,
            record: record.to_owned(),
            lease: 0,
            joined: false,
            written: false,
            lost: false,
            contact: false,
            board: Board::default(),
            watch: None,
            office: None,
            unsure: false,
            behind: false,
            stand_at: Duration::ZERO,
            calm_at: Duration::ZERO,
            news: None,
            told: 0,
            told_list: String::new(),
            retry_at: Duration::ZERO,
            backoff: Backoff::default(),
            closing: None,
            refused: false,
            over: false,
        }
    }

    pub(super) fn run(mut self) {
        while !self.over {
            let event = match self.wake_at() {
                Some(at) => self.events.recv_timeout(at.saturating_sub(self.now())),
                None => self.events.recv().map_err(|_| RecvTimeoutError::Disconnected),
            };
            match event {
                Ok(event) => self.hear(event),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            while let Ok(event) = self.events.try_recv() {
                self.hear(event);
            }
            if self.over {
                break;
            }
            match self.act() {
                Ok(()) => self.backoff = Backoff::default(),
                Err(fault) => self.fail(fault),
            }
        }
        self.keeper.close();
    }

    fn now(&self) -> Duration {
        self.began.elapsed()
    }

    /// When there is something to do though nothing happens.
    fn wake_at(&self) -> Option<Duration> {
        let closes = self.closing.as_ref().map(|closing| closing.until);
        if self.refused {
            return closes;
        }
        let stands = (self.may_stand() && self.board.leader.is_none()).then_some(self.stand_at);
        let decides = self.office.as_ref().and_then(|office| office.next_deadline());
        let retries = (self.retry_at > self.now()).then_some(self.retry_at);
        // What is due before a pause is over waits for its end.
        let due = stands.into_iter().chain(decides).min().map(|at| at.max(self.retry_at));
        due.into_iter().chain(retries).chain(closes).min()
    }

    fn hear(&mut self, event: Event) {
        match event {
            Event::Put(record) => {
                self.written = self.written && record == self.record;
                self.record = record;
            }
            Event::Close { patience, done } => {
                self.closing = Some(Closing { until: self.now() + patience, done, said: false });
                self.retry_at = Duration::ZERO;
            }
            Event::Stop => self.over = true,
            Event::Lease(lease) => {
                self.come_back();
                (self.lease, self.contact, self.joined, self.written) = (lease, true, false, false);
                self.retry_at = Duration::ZERO;
            }
            Event::Contact => {
                self.come_back();
                self.contact = true;
                self.retry_at = Duration::ZERO;
            }
            Event::Expired => {
                (self.lease, self.joined) = (0, false);
                self.step_down();
                let time = self.desk.time.as_secs_f64();
                self.lose(format!("etcd heard nothing of this node for {time} s, and takes it to have gone"));
            }
            Event::Lost(why) => self.lose(format!("etcd: {why}")),
            Event::Refused(why) | Event::Board(Seen::Refused(why)) | Event::Nodes(_, Seen::Refused(why)) => {
                self.refuse(why);
            }
            Event::Board(Seen::Behind) => self.behind = true,
            Event::Board(Seen::All(kvs, revision)) => {
                let looked = self.look(&kvs, revision);
                looked.unwrap_or_else(|fault| self.fail(fault));
            }
            Event::Board(Seen::Changes(changes)) => {
                let seen = changes.into_iter().try_for_each(|change| self.see(change));
                seen.unwrap_or_else(|fault| self.fail(fault));
            }
            Event::Nodes(term, seen) => {
                let now = self.now();
                let calm_at = if self.lost && !self.contact { now + self.desk.time } else { self.calm_at };
                if let Some(office) = self.office.as_mut().filter(|office| office.term == term) {
                    office.calm_at = calm_at;
                    office.hear(&self.desk, seen, now);
                }
            }
        }
    }

    fn lose(&mut self, why: String) {
        self.contact = false;
        if !self.lost {
            self.lost = true;
            self.outbox.tell(News::Lost { why });
        }
    }

    /// Where nobody could reach etcd the leases of all may have run out: whoever is not there yet is not lost for that.
    fn come_back(&mut self) {
        if self.lost && self.watch.is_some() {
            self.calm_at = self.now() + self.desk.time;
            self.stand_at = self.calm_at + Duration::from_millis(fastrand::u64(0..APART_MS));
        }
    }

    fn refuse(&mut self, why: String) {
        if !self.refused {
            self.refused = true;
            self.step_down();
            self.watch = None;
            self.keeper.close();
            self.outbox.tell(News::Refused { why });
        }
    }

    fn step_down(&mut self) {
        if self.office.take().is_some() {
            self.unsure = true;
        }
    }

    /// Takes note of the whole board.
    fn look(&mut self, kvs: &[Kv], revision: i64) -> Result<(), Fault> {
        if revision < self.board.revision {
            return Ok(());
        }
        self.board.read(&self.desk.keys, kvs, revision);
        self.check_office();
        self.note_state()
    }

    /// Takes note of one change on it.
    fn see(&mut self, change: Change) -> Result<(), Fault> {
        let (key, revision, kv) = match change {
            Change::Put(kv) => (kv.key.clone(), kv.written, Some(kv)),
            Change::Gone { key, revision } => (key, revision, None),
        };
        if revision <= self.board.revision {
            return Ok(());
        }
        if key == self.desk.keys.leader() {
            if kv.is_none() {
                let from = self.now().max(self.calm_at);
                self.stand_at = from + Duration::from_millis(fastrand::u64(0..APART_MS));
            }
            self.board.leader = kv;
            self.check_office();
        } else if key == self.desk.keys.state() {
            self.board.state = kv;
            // Now, not later: its coordinator may be gone by the next change.
            self.note_state()?;
        }
        Ok(())
    }

    fn check_office(&mut self) {
        let term = self.board.leader.as_ref().map(|leader| leader.created);
        if self.office.as_ref().is_some_and(|office| term != Some(office.term)) {
            self.office = None;
        }
    }

    fn note_state(&mut self) -> Result<(), Fault> {
        if let Some(news) = self.board.posted()?.filter(|(written, _)| *written > self.told) {
            self.news = Some(news);
        }
        Ok(())
    }

    /// Does what is left to do.
    fn act(&mut self) -> Result<(), Fault> {
        if self.closing.is_some() {
            let result = self.leave();
            if let Err(fault) = result {
                self.finish(Some(fault));
            }
            return Ok(());
        }
        if self.refused || self.lease == 0 || self.now() < self.retry_at {
            return Ok(());
        }
        if !self.joined {
            self.enter(true)?;
        } else if !self.written {
            self.desk.call("put", &words::put(&self.desk.own_key(), &self.record, self.lease))?;
            self.written = true;
        }
        if self.lost && self.contact {
            self.lost = false;
            self.outbox.tell(News::Back);
        }
        if self.behind {
            let (kvs, revision) = self.desk.caller.range(&self.desk.keys.board())?;
            self.behind = false;
            self.look(&kvs, revision)?;
        }
        if self.unsure || self.board.leader.is_none() && self.now() >= self.stand_at {
            self.enter(false)?;
        }
        self.decide()?;
        self.tell()
    }

    /// Whether this node would lead.
    fn may_stand(&self) -> bool {
        self.lease != 0 && self.joined && self.closing.is_none()
    }

    /// Leads if nobody does and it is time, with its record where that is not there yet, and looks at the board: all at once.
    fn enter(&mut self, with_record: bool) -> Result<(), Fault> {
        let keys = &self.desk.keys;
        let record = json!({ "request_put": words::put(&self.desk.own_key(), &self.record, self.lease) });
        let leader = json!({ "request_put": words::put(&keys.leader(), &self.desk.id, self.lease) });
        let board = json!({ "request_range": words::range(&keys.board()) });
        let record: Vec<Value> = with_record.then_some(record).into_iter().collect();
        let leader: Vec<Value> = (self.now() >= self.stand_at).then_some(leader).into_iter().collect();
        let won = [&record[..], &leader[..], std::slice::from_ref(&board)].concat();
        let lost = [&record[..], &[board]].concat();
        let answer = self.desk.call(
            "txn",
            &json!({
                "compare": [words::made_by(&keys.leader(), 0)],
                "success": won,
                "failure": lost,
            }),
        )?;
        let index = record.len() + if words::held(&answer) { leader.len() } else { 0 };
        let revision = words::revision(&answer);
        if with_record {
            (self.joined, self.written) = (true, true);
        }
        self.unsure = false;
        if revision < self.board.revision {
            // Etcd has lost its data, and begins anew.
            self.board.check(0)?;
            (self.board, self.told, self.news, self.watch) = (Board::default(), 0, None, None);
        }
        self.look(&words::kvs_of(&answer, index), revision)?;
        if self.watch.is_none() {
            let events = self.desk.events.clone();
            let tell = move |seen| drop(events.send(Event::Board(seen)));
            let started = Watch::start(&self.desk.caller.client, self.desk.keys.board(), revision, tell);
            self.watch = Some(started.map_err(|error| Fault::Contact(error.to_string()))?);
        }
        let is_own = |leader: &&Kv| leader.lease == self.lease && leader.value == self.desk.id;
        if let Some(term) = self.board.leader.as_ref().filter(is_own).map(|leader| leader.created)
            && self.office.is_none()
        {
            let taken = Office::take(&self.desk, term, (self.decide)(), self.now());
            self.unsure = taken.is_err();
            let office = taken?;
            self.board.check(office.lease)?;
            self.office = Some(office);
        }
        Ok(())
    }

    /// Coordinates, if this node does.
    fn decide(&mut self) -> Result<(), Fault> {
        let now = self.now();
        let Some(office) = &mut self.office else { return Ok(()) };
        match office.turn(&self.desk, now) {
            Ok(Turn::Nothing) => Ok(()),
            Ok(Turn::Posted { revision, posted, members }) => {
                if let (Some(list), Some(members)) = (&posted.members, members) {
                    // It need not fetch what it has written.
                    self.told_list.clone_from(&list.version);
                    self.told = revision;
                    self.outbox.tell(News::State { state: posted.state, members: Some(members) });
                } else {
                    self.news = Some((revision, posted));
                }
                Ok(())
            }
            Ok(Turn::Deposed) => {
                self.step_down();
                Err(Fault::Contact("another coordinates".to_owned()))
            }
            Err(fault) => {
                // It may have been written all the same.
                self.step_down();
                Err(fault)
            }
        }
    }

    /// Tells the node the latest state, with the members where it does not have them.
    fn tell(&mut self) -> Result<(), Fault> {
        let Some((revision, posted)) = &self.news else { return Ok(()) };
        if *revision > self.told {
            let new = posted.members.as_ref().filter(|list| list.version != self.told_list);
            let members = match new {
                Some(list) => match self.desk.members(list)? {
                    Some(members) => Some(members),
                    // There are others already, and with them a newer state.
                    None => {
                        self.news = None;
                        return Ok(());
                    }
                },
                None => None,
            };
            if let Some(list) = new {
                self.told_list.clone_from(&list.version);
            }
            self.told = *revision;
            self.outbox.tell(News::State { state: posted.state.clone(), members });
        }
        self.news = None;
        Ok(())
    }

    fn fail(&mut self, fault: Fault) {
        match fault {
            Fault::Closed => self.over = true,
            Fault::Refused(why) => self.refuse(why),
            Fault::Contact(why) | Fault::No { message: why, .. } => {
                tracing::debug!("etcd: {why}");
                self.retry_at = self.now() + self.backoff.next();
            }
        }
    }

    /// Leaves in order: says so, and goes; who coordinates stays until nobody needs that, or for as long as it may.
    fn leave(&mut self) -> Result<(), Fault> {
        let now = self.now();
        let Some(closing) = &mut self.closing else { return Ok(()) };
        if self.joined && !closing.said && !self.refused {
            closing.said = true;
            if !self.written {
                // Its last word: why it leaves.
                self.desk.call("put", &words::put(&self.desk.own_key(), &self.record, self.lease))?;
            }
            // The lease may take its time to go; this is seen at once, and for what it is.
            self.desk.call("put", &words::put(&self.desk.own_key(), "", self.lease))?;
            if let Some(office) = &mut self.office {
                office.leave(&self.record, now);
            }
        }
        let is_needed = now < closing.until && self.office.as_ref().is_some_and(|office| !office.is_over());
        if is_needed && self.decide().is_ok() && self.office.is_some() {
            return Ok(());
        }
        self.finish(None);
        Ok(())
    }

    /// Takes the lease back, and with it all that goes with it; and everything else, if nobody is left.
    fn finish(&mut self, fault: Option<Fault>) {
        self.over = true;
        self.keeper.close();
        let jobs = self.office.as_ref().map(|office| office.lease);
        let jobs = jobs.or(self.board.state.as_ref().map(|state| state.lease)).unwrap_or(0);
        (self.watch, self.office) = (None, None);
        let result = match fault {
            // Refused is also who may still write: its record is not to be left to another job.
            None if self.lease != 0 => {
                self.desk.clear(self.lease, jobs).or_else(|fault| if self.refused { Ok(()) } else { Err(fault) })
            }
            None => Ok(()),
            Some(fault) => Err(fault),
        };
        let Some(closing) = self.closing.take() else { return };
        let result = result.map_err(|fault| match fault {
            Fault::Contact(why) | Fault::Refused(why) | Fault::No { message: why, .. } => {
                io::Error::new(io::ErrorKind::TimedOut, format!("etcd: {why}; this node's record goes with its lease"))
            }
            Fault::Closed => io::Error::from(io::ErrorKind::ConnectionAborted),
        });
        // Who asked may have gone.
        let _ = closing.done.send(result);
    }
}
