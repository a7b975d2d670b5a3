//! The store's server: one thread, one epoll set. A slow, silent or half-open client stalls nobody, and one that
//! breaks the rules is hung up on.

use super::connection::{CHUNK, Connection};
use super::frame::Request;
use super::ledger::Ledger;
use super::listen::BACKLOG;
use super::state::{ClientId, Replies, Store};
use crossbeam_channel::{Receiver, Sender, unbounded};
use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::signal::{SigSet, SigmaskHow};
use nix::sys::time::{TimeSpec, TimeValLike};
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};
use std::collections::{BTreeSet, HashMap};
use std::io;
use std::net::TcpListener;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use tracing::dispatcher::{get_default, with_default};
use tracing::{Dispatch, warn};

/// What one server holds at most.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Bytes: one half for what is stored, the other for what comes and goes.
    pub bytes: usize,
    /// Connections. When there are more, those that have made no request have to go.
    pub connections: usize,
}

impl Limits {
    /// A quarter of so many bytes of memory (of 4 GiB if nobody knows), but 32 MiB at least and 4 GiB at most; and a
    /// connection for each descriptor that can be spared, but 16 at least and 65536 at most.
    pub fn of(memory: Option<u64>, descriptors: u64) -> Self {
        let quarter = memory.map_or(1 << 30, |bytes| bytes / 4).clamp(32 << 20, 4 << 30);
        Self {
            bytes: usize::try_from(quarter).unwrap_or(usize::MAX),
            connections: descriptors.clamp(16, 1 << 16) as usize,
        }
    }
}

impl Default for Limits {
    /// 1 GiB, and as many connections as the usual limit of descriptors, 1024, allows beside other files.
    fn default() -> Self {
        Self::of(None, 768)
    }
}

/// What is told of the keys that begin in a certain way. Nobody who sends more of it than is taken is waited for: what
/// there is no room for is not told.
#[derive(Clone, Debug)]
pub struct Watch {
    /// What the keys begin with, as they are on the wire.
    pub prefix: Vec<u8>,
    /// Where the news goes.
    pub news: Sender<News>,
    /// Rung after each.
    pub bell: Arc<EventFd>,
}

/// Something has happened to a watched key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum News {
    /// A client has set it, or added to it, to which there is no value.
    Touched {
        /// Who.
        client: ClientId,
        /// The key, without the watched beginning.
        key: Vec<u8>,
        /// The value; nothing but its length if it is long.
        value: Vec<u8>,
    },
    /// The connection of a client that has touched one has closed. Not told when the server closes all of them.
    Left(ClientId),
}

/// Values up to this long are told.
const TOLD: usize = 1024;

impl Watch {
    fn see(&self, client: ClientId, request: &Request) -> bool {
        let (key, value) = match request {
            Request::Set { key, value } => (key, value.as_slice()),
            Request::Add { key, .. } => (key, &[][..]),
            _ => return false,
        };
        let Some(key) = key.strip_prefix(self.prefix.as_slice()) else { return false };
        let value = if value.len() > TOLD { Vec::new() } else { value.to_vec() };
        self.tell(News::Touched { client, key: key.to_vec(), value });
        true
    }

    fn tell(&self, news: News) {
        let _ = self.news.try_send(news);
        let _ = self.bell.write(1);
    }
}

/// A running server. Dropping it ends it.
#[derive(Debug)]
pub struct Server {
    orders: Sender<Order>,
    bell: Arc<EventFd>,
    /// It ends with what is to be gone on with; with nothing, if it could not go on.
    thread: Option<JoinHandle<Option<Hub>>>,
}

/// A server that does nothing until it goes on: its clients wait. It has no thread, so a process that forks has it
/// twice; only one of the two may go on, and the other has to drop it.
pub struct Paused {
    orders: Sender<Order>,
    bell: Arc<EventFd>,
    hub: Hub,
}

#[derive(Debug)]
enum Order {
    Renew(Sender<io::Result<()>>),
    Stop,
}

impl Server {
    /// Serves on these sockets, with the default limits.
    pub fn start(listeners: Vec<TcpListener>) -> io::Result<Self> {
        Self::start_with(listeners, Limits::default(), None)
    }

    /// Serves on these sockets, in a thread that takes no signals.
    pub fn start_with(listeners: Vec<TcpListener>, limits: Limits, watch: Option<Watch>) -> io::Result<Self> {
        let bell = Arc::new(EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?);
        let (orders, received) = unbounded();
        let hub = Hub::new(listeners, limits, watch, Arc::clone(&bell), received)?;
        Paused { orders, bell, hub }.go_on()
    }

    /// Lets it rest; with all that it knows, and its connections.
    pub fn pause(mut self) -> io::Result<Paused> {
        self.order(Order::Stop)?;
        let ended = || io::Error::other("the store's thread has ended");
        let hub = self.thread.take().ok_or_else(ended)?.join().ok().flatten().ok_or_else(ended)?;
        Ok(Paused { orders: self.orders.clone(), bell: Arc::clone(&self.bell), hub })
    }

    /// Begins anew: closes all connections, also those that wait to be accepted, and forgets everything. When it
    /// returns, whoever had connected before can neither see nor set anything any more.
    pub fn renew(&self) -> io::Result<()> {
        let (done, wait) = unbounded();
        self.order(Order::Renew(done))?;
        wait.recv().map_err(io::Error::other)?
    }

    fn order(&self, order: Order) -> io::Result<()> {
        self.orders.send(order).map_err(|_| io::Error::other("the store's thread has ended"))?;
        self.bell.write(1)?;
        Ok(())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let Some(thread) = self.thread.take() else { return };
        if self.order(Order::Stop).is_ok() {
            // It has no way to panic; if it did, there is nobody to tell.
            drop(thread.join());
        }
    }
}

impl Paused {
    /// Serves on, in a thread that takes no signals.
    pub fn go_on(self) -> io::Result<Server> {
        let Self { orders, bell, mut hub } = self;
        let signals = SigSet::all().thread_swap_mask(SigmaskHow::SIG_SETMASK)?;
        let messages = get_default(Dispatch::clone);
        // A thread that fails takes the hub with it: who gives an order then is not left to wait.
        let run = move || with_default(&messages, || hub.run().is_ok().then_some(hub));
        let thread = thread::Builder::new().name("torch-store".to_owned()).spawn(run);
        signals.thread_set_mask()?;
        Ok(Server { orders, bell, thread: Some(thread?) })
    }
}

const BELL: u64 = 0;
const TIMER: u64 = 1;
const FIRST_LISTENER: u64 = 2;
/// The first client's token. Tokens are not used again, so a late event is nobody else's.
const FIRST_CLIENT: ClientId = 1 << 32;

/// Connections accepted before others have their turn.
const AT_ONCE: usize = 64;
/// How long nobody is accepted after the system had no room for another connection.
const PAUSE_MS: i64 = 100;

#[derive(Debug)]
struct Hub {
    epoll: Epoll,
    bell: Arc<EventFd>,
    timer: TimerFd,
    orders: Receiver<Order>,
    listeners: Vec<TcpListener>,
    paused: bool,
    /// That there are too many connections has been said.
    complained: bool,
    store: Store,
    /// What is held for connections.
    traffic: Ledger,
    limits: Limits,
    watch: Option<Watch>,
    next: ClientId,
    clients: HashMap<ClientId, Connection>,
    /// Those that have made no request, the oldest first.
    strangers: BTreeSet<ClientId>,
    /// Those that have had replies from others' requests.
    answered: BTreeSet<ClientId>,
    chunk: Vec<u8>,
}

impl Hub {
    fn new(
        listeners: Vec<TcpListener>,
        limits: Limits,
        watch: Option<Watch>,
        bell: Arc<EventFd>,
        orders: Receiver<Order>,
    ) -> io::Result<Self> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        let timer = TimerFd::new(ClockId::CLOCK_MONOTONIC, TimerFlags::TFD_CLOEXEC | TimerFlags::TFD_NONBLOCK)?;
        epoll.add(&*bell, EpollEvent::new(EpollFlags::EPOLLIN, BELL))?;
        epoll.add(&timer, EpollEvent::new(EpollFlags::EPOLLIN, TIMER))?;
        for (token, listener) in (FIRST_LISTENER..).zip(&listeners) {
            listener.set_nonblocking(true)?;
            epoll.add(listener, EpollEvent::new(EpollFlags::EPOLLIN, token))?;
        }
        Ok(Self {
            epoll,
            bell,
            timer,
            orders,
            listeners,
            paused: false,
            complained: false,
            store: Store::new(Ledger::new(limits.bytes / 2)),
            traffic: Ledger::new(limits.bytes / 2),
            limits,
            watch,
            next: FIRST_CLIENT,
            clients: HashMap::new(),
            strangers: BTreeSet::new(),
            answered: BTreeSet::new(),
            chunk: vec![0; CHUNK],
        })
    }

    fn run(&mut self) -> io::Result<()> {
        loop {
            let mut events = [EpollEvent::empty(); 256];
            let count = match self.epoll.wait(&mut events, EpollTimeout::NONE) {
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
                                Order::Renew(done) => drop(done.send(self.renew())),
                            }
                        }
                    }
                    TIMER => {
                        let _ = self.timer.wait();
                        self.listen(true);
                    }
                    client @ FIRST_CLIENT.. => self.turn(client, event.events()),
                    listener => self.accept((listener - FIRST_LISTENER) as usize),
                }
            }
        }
    }

    fn accept(&mut self, listener: usize) {
        for _ in 0..AT_ONCE {
            let full = self.clients.len() >= self.limits.connections;
            if full && self.strangers.is_empty() {
                self.complain();
                return self.listen(false);
            }
            let Some(listener) = self.listeners.get(listener) else { return };
            let socket = match listener.accept() {
                Ok((socket, _)) => socket,
                Err(error) => match error.raw_os_error().map(Errno::from_raw) {
                    Some(Errno::EAGAIN) => return,
                    // That connection has gone already; there may be others.
                    Some(Errno::ECONNABORTED | Errno::EINTR) => continue,
                    // No descriptors, no memory: accepting again at once would come to the same.
                    _ => {
                        self.complain();
                        return self.listen(false);
                    }
                },
            };
            if let (true, Some(oldest)) = (full, self.strangers.first().copied()) {
                self.close(oldest, true);
            }
            let client = self.next;
            let Ok(connection) = Connection::new(socket) else { continue };
            if self.epoll.add(&connection.socket, EpollEvent::new(EpollFlags::EPOLLIN, client)).is_err() {
                continue;
            }
            self.next += 1;
            self.clients.insert(client, connection);
            self.strangers.insert(client);
            // What it wants has mostly come with it, and then it is no stranger.
            self.turn(client, EpollFlags::EPOLLIN);
        }
    }

    /// Says, once, that somebody waits to be let in.
    fn complain(&mut self) {
        if !std::mem::replace(&mut self.complained, true) {
            let now = self.clients.len();
            warn!(
                "the store has no room beside its {now} connections: others wait until one of them closes; raise the limit \
                 of open files (ulimit -Hn)"
            );
        }
    }

    /// Accepts connections, or none for a moment.
    fn listen(&mut self, now: bool) {
        if now != self.paused {
            return;
        }
        if !now {
            let pause = Expiration::OneShot(TimeSpec::milliseconds(PAUSE_MS));
            if self.timer.set(pause, TimerSetTimeFlags::empty()).is_err() {
                return;
            }
        }
        let wanted = if now { EpollFlags::EPOLLIN } else { EpollFlags::empty() };
        for (token, listener) in (FIRST_LISTENER..).zip(&self.listeners) {
            let _ = self.epoll.modify(listener, &mut EpollEvent::new(wanted, token));
        }
        self.paused = !now;
    }

    /// A client's turn: something has come, or can be sent.
    fn turn(&mut self, client: ClientId, events: EpollFlags) {
        let Some(connection) = self.clients.get_mut(&client) else { return };
        if events.intersects(EpollFlags::EPOLLHUP | EpollFlags::EPOLLERR) {
            connection.deafen();
        } else if events.contains(EpollFlags::EPOLLOUT) {
            connection.write();
        }
        let mut stays = true;
        if connection.wants().0 {
            stays = connection.read(&mut self.chunk).unwrap_or(false);
        }
        stays &= self.requests(client);
        if let Some(connection) = self.clients.get_mut(&client) {
            connection.write();
        }
        while let Some(other) = self.answered.pop_first() {
            if let Some(connection) = self.clients.get_mut(&other) {
                connection.write();
                self.settle(other);
            }
        }
        if stays {
            self.settle(client);
        } else {
            self.close(client, true);
        }
    }

    /// Does what a client has asked for, as far as it takes the replies. Whether it may stay.
    fn requests(&mut self, client: ClientId) -> bool {
        let mut replies = Replies::new();
        while let Some(connection) = self.clients.get_mut(&client) {
            connection.leave_unread(false);
            if !connection.may_go_on() {
                connection.leave_unread(true);
                return true;
            }
            let request = match connection.parser.next_request() {
                Ok(Some(request)) => request,
                Ok(None) => return true,
                Err(_) => return false,
            };
            if !connection.greeted {
                connection.greeted = true;
                self.strangers.remove(&client);
            }
            if let Some(watch) = &self.watch {
                connection.watched |= watch.see(client, &request);
            }
            let done = self.store.handle(client, request, &mut replies);
            for (to, piece) in replies.drain(..) {
                if let Some(connection) = self.clients.get_mut(&to) {
                    connection.push(piece);
                    if to != client {
                        self.answered.insert(to);
                    }
                }
            }
            if done.is_err() {
                return false;
            }
        }
        true
    }

    /// Counts what is held for a client, and waits for what it waits for.
    fn settle(&mut self, client: ClientId) {
        let Some(connection) = self.clients.get_mut(&client) else { return };
        let held = connection.held();
        let before = std::mem::replace(&mut connection.counted, held);
        let fits = self.traffic.turn(before, held).is_ok();
        let wants = connection.wants();
        if wants != connection.interest {
            let mut flags = EpollFlags::empty();
            flags.set(EpollFlags::EPOLLIN, wants.0);
            flags.set(EpollFlags::EPOLLOUT, wants.1);
            connection.interest = wants;
            if self.epoll.modify(&connection.socket, &mut EpollEvent::new(flags, client)).is_err() {
                return self.close(client, true);
            }
        }
        if !fits {
            let heaviest = self.clients.iter().max_by_key(|(_, connection)| connection.counted);
            if let Some(heaviest) = heaviest.map(|(client, _)| *client) {
                self.close(heaviest, true);
            }
        }
    }

    fn close(&mut self, client: ClientId, told: bool) {
        let Some(connection) = self.clients.remove(&client) else { return };
        self.traffic.give(connection.counted);
        self.store.forget(client);
        self.strangers.remove(&client);
        if let (true, true, Some(watch)) = (told, connection.watched, &self.watch) {
            watch.tell(News::Left(client));
        }
    }

    fn renew(&mut self) -> io::Result<()> {
        let all: Vec<ClientId> = self.clients.keys().copied().collect();
        all.into_iter().for_each(|client| self.close(client, false));
        self.store.clear();
        self.listen(true);
        for listener in &self.listeners {
            // Those who wait to be accepted; one more than fit, as the kernel counts.
            for _ in 0..=BACKLOG {
                match listener.accept() {
                    Ok(_) => {}
                    Err(error) => match error.raw_os_error().map(Errno::from_raw) {
                        Some(Errno::EAGAIN) => break,
                        Some(Errno::ECONNABORTED | Errno::EINTR) => {}
                        _ => return Err(error),
                    },
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
impl Server {
    /// Its thread has ended, and nobody has noticed.
    pub fn lose(&mut self) {
        let _ = self.order(Order::Stop);
        drop(self.thread.take().map(JoinHandle::join));
    }
}
