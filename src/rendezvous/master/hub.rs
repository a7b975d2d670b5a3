//! The server's thread: one epoll set. A slow, silent or half-open client stalls nobody, and one that breaks the rules is
//! hung up on.

use super::Traffic;
use super::connection::{CHUNK, Connection, Speaks};
use super::frame::{self, Body, FromMaster};
use super::http;
use super::kv::{Change, Kv};
use super::seal::{self, Challenges};
use super::server::{Config, Order};
use crate::rendezvous::tie::{Decide, Publication};
use crate::rendezvous::torch_store::ledger::Ledger;
use crossbeam_channel::Receiver;
use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::eventfd::EventFd;
use std::collections::{BTreeSet, HashMap};
use std::io;
use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

const BELL: u64 = 0;
const FIRST_LISTENER: u64 = 1;
/// The first client's token. Tokens are not used again, so a late event is nobody else's.
const FIRST_CLIENT: u64 = 1 << 32;

/// Connections accepted before others have their turn.
const AT_ONCE: usize = 64;
/// How long nobody is accepted after the system had no room for another connection.
const PAUSE: Duration = Duration::from_millis(100);
/// How long a request may take to come, and an answer to go.
const UNFINISHED: Duration = Duration::from_secs(30);
/// How long a node whose link has broken may take to come back before it is taken to have ended; of a short lease a part.
const GLITCH: Duration = Duration::from_millis(250);
const PART_OF_LEASE: u32 = 20;
/// What may be held for all connections together, bytes.
const TRAFFIC: usize = 512 * 1024 * 1024;

pub(super) struct Hub {
    epoll: Epoll,
    bell: Arc<EventFd>,
    orders: Receiver<Order>,
    listeners: Vec<TcpListener>,
    /// Nobody is accepted until then.
    paused: Option<Duration>,
    pub(super) config: Config,
    pub(super) decide: Box<dyn Decide>,
    /// The state, with the members of its round.
    pub(super) told: Option<Body>,
    members: Option<String>,
    pub(super) kv: Kv,
    pub(super) challenges: Challenges,
    /// Random: tells this master from another at its address.
    pub(super) instance: String,
    traffic: Traffic,
    ledger: Ledger,
    next: u64,
    pub(super) clients: HashMap<u64, Connection>,
    /// Those that are no links, the oldest first.
    pub(super) guests: BTreeSet<u64>,
    /// Links by their nodes.
    pub(super) links: HashMap<String, u64>,
    /// Nodes whose link has broken: until when each may come back, and what is kept of it, bytes.
    missed: HashMap<String, (Duration, usize)>,
    /// Those to whom there is something new to be sent.
    answered: BTreeSet<u64>,
    /// Nobody's time is over before.
    pub(super) sweep: Duration,
    closing: Option<Duration>,
    /// What has been warned of.
    pub(super) warned: BTreeSet<String>,
    chunk: Vec<u8>,
}

impl Hub {
    pub fn new(
        listeners: Vec<TcpListener>,
        mut config: Config,
        decide: Box<dyn Decide>,
        bell: Arc<EventFd>,
        orders: Receiver<Order>,
        traffic: Traffic,
    ) -> io::Result<Self> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        epoll.add(&*bell, EpollEvent::new(EpollFlags::EPOLLIN, BELL))?;
        for (token, listener) in (FIRST_LISTENER..).zip(&listeners) {
            listener.set_nonblocking(true)?;
            epoll.add(listener, EpollEvent::new(EpollFlags::EPOLLIN, token))?;
        }
        config.connections = config.connections.clamp(16, 1 << 16);
        Ok(Self {
            epoll,
            bell,
            orders,
            listeners,
            paused: None,
            kv: Kv::new(&config.job),
            config,
            decide,
            told: None,
            members: None,
            challenges: Challenges::new(seal::nonce()?),
            instance: seal::nonce()?,
            traffic,
            ledger: Ledger::new(TRAFFIC),
            next: FIRST_CLIENT,
            clients: HashMap::new(),
            guests: BTreeSet::new(),
            links: HashMap::new(),
            missed: HashMap::new(),
            answered: BTreeSet::new(),
            sweep: Duration::MAX,
            closing: None,
            warned: BTreeSet::new(),
            chunk: vec![0; CHUNK],
        })
    }

    fn now(&self) -> Duration {
        (self.config.clock)()
    }

    pub fn run(&mut self) -> io::Result<()> {
        loop {
            self.decide(self.now());
            if self.is_through() {
                return Ok(());
            }
            let mut events = [EpollEvent::empty(); 256];
            let count = match self.epoll.wait(&mut events, self.timeout()) {
                Ok(count) => count,
                Err(Errno::EINTR) => continue,
                Err(error) => return Err(error.into()),
            };
            for event in &events[..count] {
                match event.data() {
                    BELL => {
                        let _ = self.bell.read();
                        while let Ok(order) = self.orders.try_recv() {
                            match order {
                                Order::Stop => return Ok(()),
                                Order::Close(until) => self.closing = Some(until),
                            }
                        }
                    }
                    client @ FIRST_CLIENT.. => self.turn(client, event.events()),
                    listener => self.accept((listener - FIRST_LISTENER) as usize),
                }
            }
            let now = self.now();
            if self.paused.is_some_and(|until| now >= until) {
                self.listen(None);
            }
            if now >= self.sweep {
                self.sweep(now);
            }
            self.miss(now);
            self.kv.sweep(now).into_iter().for_each(|change| self.change(change, now));
        }
    }

    fn is_through(&self) -> bool {
        let Some(until) = self.closing else { return false };
        self.now() >= until
            || self.decide.is_over()
            || self.links.is_empty() && self.missed.is_empty() && !self.kv.is_awaited()
    }

    fn timeout(&self) -> EpollTimeout {
        let missed = self.missed.values().map(|(until, _)| *until).min();
        let (decides, kv) = (self.decide.next_deadline(), self.kv.next_deadline());
        let times = [decides, kv, self.paused, self.closing, Some(self.sweep), missed];
        match times.into_iter().flatten().min() {
            None | Some(Duration::MAX) => EpollTimeout::NONE,
            // Never too early: that would be a turn for nothing.
            Some(time) => {
                let wait = time.saturating_sub(self.now()) + Duration::from_micros(999);
                EpollTimeout::try_from(wait.as_millis().min(60_000) as i32).unwrap_or(EpollTimeout::ZERO)
            }
        }
    }

    /// Tells all what is decided.
    pub(super) fn decide(&mut self, now: Duration) {
        while let Some(told) = self.decide.turn(now) {
            self.kv.hear(&told, &self.decide.shown_to_paddle());
            let Publication { state, members } = told;
            let body = Body::of(&FromMaster::State { state: state.clone(), members: members.clone() });
            self.members = members.or(self.members.take());
            self.told = Some(Body::of(&FromMaster::State { state, members: self.members.clone() }));
            for client in self.links.values() {
                if let Some(connection) = self.clients.get_mut(client) {
                    say(connection, &body);
                    self.answered.insert(*client);
                }
            }
        }
        while let Some(client) = self.answered.pop_first() {
            self.send(client);
        }
    }

    pub(super) fn change(&mut self, change: Change, now: Duration) {
        match change {
            Change::Is { id, record } => self.decide.record(&id, &record, now),
            Change::Gone { id, age } => self.decide.gone(&id, age, now),
        }
    }

    fn accept(&mut self, listener: usize) {
        for _ in 0..AT_ONCE {
            let now = self.now();
            let full = self.clients.len() >= self.config.connections;
            if full && self.guests.is_empty() {
                return self.listen(Some(now + PAUSE));
            }
            let Some(listener) = self.listeners.get(listener) else { return };
            let socket = match listener.accept() {
                Ok((socket, _)) => socket,
                Err(error) => match error.raw_os_error().map(Errno::from_raw) {
                    Some(Errno::EAGAIN) => return,
                    // That connection has gone already; there may be others.
                    Some(Errno::ECONNABORTED | Errno::EINTR) => continue,
                    // No descriptors, no memory: accepting again at once would come to the same.
                    _ => return self.listen(Some(now + PAUSE)),
                },
            };
            if let (true, Some(oldest)) = (full, self.guests.first().copied()) {
                self.close(oldest);
            }
            let client = self.next;
            let Ok(connection) = Connection::new(socket, now) else { continue };
            if self.epoll.add(&connection.socket, EpollEvent::new(EpollFlags::EPOLLIN, client)).is_err() {
                continue;
            }
            self.next += 1;
            self.clients.insert(client, connection);
            self.guests.insert(client);
            self.sweep = self.sweep.min(now + UNFINISHED);
            // What it wants has mostly come with it.
            self.turn(client, EpollFlags::EPOLLIN);
        }
    }

    /// Accepts connections, or none until then.
    fn listen(&mut self, paused: Option<Duration>) {
        let wanted = if paused.is_none() { EpollFlags::EPOLLIN } else { EpollFlags::empty() };
        for (token, listener) in (FIRST_LISTENER..).zip(&self.listeners) {
            let _ = self.epoll.modify(listener, &mut EpollEvent::new(wanted, token));
        }
        self.paused = paused;
    }

    /// Hangs up on those whose time is over.
    fn sweep(&mut self, now: Duration) {
        let lease = self.config.lease;
        let until =
            |connection: &Connection| connection.since + if connection.id().is_some() { lease } else { UNFINISHED };
        let late: Vec<u64> =
            self.clients.iter().filter(|(_, one)| now >= until(one)).map(|(client, _)| *client).collect();
        for client in late {
            // Where this thread had no time itself, what was said meanwhile has still to be read.
            self.turn(client, EpollFlags::EPOLLIN);
            let Some(connection) = self.clients.get(&client).filter(|connection| now >= until(connection)) else {
                continue;
            };
            let age = now.saturating_sub(connection.since);
            if let Some(id) = connection.id().map(str::to_owned) {
                self.links.remove(&id);
                self.decide.gone(&id, age, now);
            }
            self.close(client);
        }
        self.sweep = self.clients.values().map(until).min().unwrap_or(Duration::MAX);
    }

    /// A client's turn: something has come, or can be sent.
    fn turn(&mut self, client: u64, events: EpollFlags) {
        if events.contains(EpollFlags::EPOLLOUT) && !self.send(client) {
            return;
        }
        let Some(connection) = self.clients.get_mut(&client) else { return };
        let mut stays = true;
        let fails = events.intersects(EpollFlags::EPOLLHUP | EpollFlags::EPOLLERR);
        if connection.wants().0 || fails {
            match connection.read(&mut self.chunk) {
                Some(count) => self.traffic.came(count),
                None => stays = false,
            }
        }
        // What has come is done also if nothing more will.
        if self.requests(client) && self.send(client) && !stays {
            self.close(client);
        }
    }

    /// Does what a client has asked for. Whether it is still there.
    fn requests(&mut self, client: u64) -> bool {
        loop {
            let now = self.now();
            let Some(connection) = self.clients.get_mut(&client) else { return false };
            // The next request waits until the last is answered.
            if connection.ends || !connection.wants().0 {
                return true;
            }
            match &mut connection.speaks {
                Speaks::Http(parser) => {
                    match parser.next_message() {
                        Ok(None) => return true,
                        Ok(Some(message)) => {
                            connection.since = now;
                            self.request(client, message, now);
                        }
                        Err(broken) => {
                            connection.push(http::answer(broken.status(), 0, false, ""));
                            connection.ends = true;
                        }
                    }
                    if !self.send(client) {
                        return false;
                    }
                }
                Speaks::Link { lines, seal, .. } => match lines.next_said(seal) {
                    Ok(None) => return true,
                    Ok(Some(said)) => {
                        connection.since = now;
                        self.hear(client, said, now);
                    }
                    Err(frame::Broken::Unproved) => {
                        self.refuse(client, "it does not have the job's key: give all nodes the same --job_key");
                    }
                    Err(_) => {
                        self.close(client);
                        return false;
                    }
                },
            }
        }
    }

    /// Sends what can be sent, counts what is held, and waits for what it waits for. Whether it is still there.
    fn send(&mut self, client: u64) -> bool {
        let Some(connection) = self.clients.get_mut(&client) else { return false };
        let written = connection.write();
        self.traffic.went(written.unwrap_or_default());
        if written.is_none() || connection.is_stuck() || connection.ends && connection.is_through() {
            self.close(client);
            return false;
        }
        let held = connection.held();
        let before = std::mem::replace(&mut connection.counted, held);
        let fits = self.ledger.turn(before, held).is_ok();
        let wants = connection.wants();
        if wants != connection.interest {
            let mut flags = EpollFlags::empty();
            flags.set(EpollFlags::EPOLLIN, wants.0);
            flags.set(EpollFlags::EPOLLOUT, wants.1);
            connection.interest = wants;
            if self.epoll.modify(&connection.socket, &mut EpollEvent::new(flags, client)).is_err() {
                self.close(client);
                return false;
            }
        }
        if !fits {
            let heaviest = self.clients.iter().max_by_key(|(_, connection)| connection.counted);
            if let Some(heaviest) = heaviest.map(|(client, _)| *client) {
                self.close(heaviest);
            }
        }
        self.clients.contains_key(&client)
    }

    pub(super) fn close(&mut self, client: u64) {
        let Some(connection) = self.clients.remove(&client) else { return };
        self.ledger.give(connection.counted);
        self.guests.remove(&client);
        // Another connection of the same node may be in its place.
        if let Some(id) = connection.id()
            && self.links.get(id) == Some(&client)
        {
            self.links.remove(id);
            // A launcher that has ended has closed it; one that is cut off would only be silent. But something between may
            // have closed it as well.
            let (now, kept) = (self.now(), connection.kept());
            if connection.ends || self.ledger.take(kept).is_err() {
                self.decide.gone(id, Duration::ZERO, now);
            } else {
                let until = now + GLITCH.min(self.config.lease / PART_OF_LEASE);
                self.missed.insert(id.to_owned(), (until, kept));
            }
        }
    }

    /// A node is here: it is missed no more.
    pub(super) fn is_here(&mut self, id: &str) {
        if let Some((_, kept)) = self.missed.remove(id) {
            self.ledger.give(kept);
        }
    }

    /// Those that have not come back in time have gone.
    fn miss(&mut self, now: Duration) {
        let late = self.missed.iter().filter(|(_, (until, _))| now >= *until);
        let late: Vec<String> = late.map(|(id, _)| id.clone()).collect();
        for id in late {
            self.is_here(&id);
            self.decide.gone(&id, Duration::ZERO, now);
        }
    }
}

pub(super) fn say(connection: &mut Connection, body: &Body) {
    if let Speaks::Link { seal, .. } = &mut connection.speaks {
        let proof = body.proof(seal);
        connection.push(proof);
        connection.push_shared(&body.text);
    }
}
