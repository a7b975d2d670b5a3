//! The connections of a server: limits on their number and memory, eviction, deadlines.

use super::acceptor::Acceptor;
use super::connection::{Connection, ConnectionState};
use super::memory_budget::MemoryBudget;
use super::socket::{Listener, Socket};
use crate::net::traffic::Traffic;
use nix::sys::epoll::{Epoll, EpollEvent, EpollFlags};
use std::collections::{BTreeSet, HashMap};
use std::io;
use std::time::Duration;

/// Names a connection. A server never uses an id again, so a late event never reaches another connection.
pub type ConnectionId = u64;

/// The first connection's id. Smaller epoll tokens belong to other descriptors.
pub(super) const FIRST_CONNECTION: ConnectionId = 1 << 32;

/// What a server holds at most.
#[derive(Clone, Debug)]
pub struct ServerLimits {
    /// Connections. Above that, the oldest evictable one whose client waits for no answer is closed; if there is none, new ones wait to
    /// be accepted.
    pub connections: usize,
    /// Memory for what is received and sent. When it is used up, the connection that holds most of it is closed.
    pub budget: MemoryBudget,
}

/// All connections.
pub struct Connections<S: ConnectionState> {
    pub(super) epoll: Epoll,
    pub(super) acceptor: Acceptor,
    pub(super) by_id: HashMap<ConnectionId, Connection<S>>,
    pub(super) limits: ServerLimits,
    pub(super) traffic: Traffic,
    next: ConnectionId,
    /// Those that may be closed to make room.
    evictable: BTreeSet<ConnectionId>,
    /// Those that may have something new to send.
    pub(super) touched: BTreeSet<ConnectionId>,
    /// Those that were closed, which the service does not know yet.
    pub(super) closed: Vec<(ConnectionId, Connection<S>)>,
    /// No connection times out before.
    pub(super) next_deadline: Duration,
}

impl<S: ConnectionState> Connections<S> {
    pub(super) fn new(epoll: Epoll, acceptor: Acceptor, limits: ServerLimits) -> Self {
        Self {
            epoll,
            acceptor,
            by_id: HashMap::new(),
            limits,
            traffic: Traffic::default(),
            next: FIRST_CONNECTION,
            evictable: BTreeSet::new(),
            touched: BTreeSet::new(),
            closed: Vec::new(),
            next_deadline: Duration::MAX,
        }
    }

    /// A connection, if it is open. What is pushed to it is sent at the end of the turn.
    pub fn get_mut(&mut self, id: ConnectionId) -> Option<&mut Connection<S>> {
        let found = self.by_id.get_mut(&id);
        if found.is_some() {
            self.touched.insert(id);
        }
        found
    }

    /// Protects a connection from eviction by new ones.
    pub fn protect(&mut self, id: ConnectionId) {
        self.evictable.remove(&id);
    }

    /// Closes the connection at that time, unless its deadline is moved before.
    pub fn set_deadline(&mut self, id: ConnectionId, deadline: Duration) {
        if let Some(connection) = self.by_id.get_mut(&id) {
            connection.deadline = deadline;
            self.next_deadline = self.next_deadline.min(deadline);
        }
    }

    /// Closes a connection. What it still has to send is lost.
    pub fn close(&mut self, id: ConnectionId) {
        if let Some(connection) = self.by_id.remove(&id) {
            self.limits.budget.release(connection.counted);
            self.evictable.remove(&id);
            let may_be_next = connection.deadline <= self.next_deadline && connection.deadline != Duration::MAX;
            self.closed.push((id, connection));
            if may_be_next {
                self.find_next_deadline();
            }
        }
    }

    /// Accepts connections of this socket too, in place of the one that was given before. To be called on the server's thread.
    pub fn listen(&mut self, listener: impl Into<Listener>) -> io::Result<()> {
        self.acceptor.add(listener.into(), &self.epoll)
    }

    /// Closes all connections, also those that wait to be accepted. The service is not notified of them.
    pub fn close_all(&mut self) -> io::Result<()> {
        let all: Vec<ConnectionId> = self.by_id.keys().copied().collect();
        all.into_iter().for_each(|id| self.close(id));
        self.closed.clear();
        self.acceptor.resume(&self.epoll);
        let rejected = self.acceptor.reject_waiting();
        self.acceptor.close_added();
        rejected
    }

    /// Sends what the socket takes, counts the memory that the connection holds, and waits for what it waits for.
    pub fn flush(&mut self, id: ConnectionId) {
        self.touched.remove(&id);
        let Some(connection) = self.by_id.get_mut(&id) else { return };
        self.traffic.add_sent(connection.write());
        if connection.is_done() {
            return self.close(id);
        }
        let held = connection.held();
        let before = std::mem::replace(&mut connection.counted, held);
        let fits = self.limits.budget.replace(before, held).is_ok();
        let wanted = connection.wanted_interest();
        if wanted != connection.interest {
            connection.interest = wanted;
            let mut flags = EpollFlags::empty();
            flags.set(EpollFlags::EPOLLIN, wanted.0);
            flags.set(EpollFlags::EPOLLOUT, wanted.1);
            if self.epoll.modify(&connection.socket, &mut EpollEvent::new(flags, id)).is_err() {
                return self.close(id);
            }
        }
        if !fits {
            let heaviest = self.by_id.iter().max_by_key(|(_, connection)| connection.counted);
            if let Some(heaviest) = heaviest.map(|(id, _)| *id) {
                self.close(heaviest);
            }
        }
    }

    /// Whether another connection needs the place of an old one.
    pub(super) fn is_full(&self) -> bool {
        self.by_id.len() >= self.limits.connections
    }

    /// Whether another connection can be accepted.
    pub(super) fn has_room(&self) -> bool {
        !self.is_full() || self.find_evictable().is_some()
    }

    /// Closes the oldest connection that may be closed to make room.
    pub(super) fn evict(&mut self) {
        if let Some(oldest) = self.find_evictable() {
            self.close(oldest);
        }
    }

    fn find_evictable(&self) -> Option<ConnectionId> {
        let waits = |id: &ConnectionId| self.by_id.get(id).is_some_and(Connection::awaits_answer);
        self.evictable.iter().copied().find(|id| !waits(id))
    }

    pub(super) fn add(&mut self, socket: Socket, state: S) -> io::Result<ConnectionId> {
        let id = self.next;
        self.epoll.add(&socket, EpollEvent::new(EpollFlags::EPOLLIN, id))?;
        self.next += 1;
        self.by_id.insert(id, Connection::new(socket, state));
        self.evictable.insert(id);
        Ok(id)
    }

    /// Connections whose deadline has come.
    pub(super) fn overdue(&self, now: Duration) -> Vec<ConnectionId> {
        self.by_id.iter().filter(|(_, one)| now >= one.deadline).map(|(id, _)| *id).collect()
    }

    pub(super) fn find_next_deadline(&mut self) {
        self.next_deadline = self.by_id.values().map(|one| one.deadline).min().unwrap_or(Duration::MAX);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // A test fails by panicking.
    use super::*;
    use nix::sys::epoll::EpollCreateFlags;
    use std::os::unix::net::UnixStream;

    struct Nothing;

    impl ConnectionState for Nothing {
        type Shared = Vec<u8>;
        fn feed(&mut self, _: &[u8]) {}
        fn held(&self) -> usize {
            0
        }
        fn may_handle(&self, _: usize) -> bool {
            false
        }
    }

    #[test]
    fn a_connection_that_is_closed_wakes_no_server_later() {
        let epoll = Epoll::new(EpollCreateFlags::empty()).unwrap();
        let acceptor = Acceptor::new(Vec::new(), 0, &epoll).unwrap();
        let limits = ServerLimits { connections: 9, budget: MemoryBudget::new(1000) };
        let mut connections = Connections::new(epoll, acceptor, limits);
        let add = |connections: &mut Connections<Nothing>, seconds: u64| {
            let id = connections.add(Socket::Unix(UnixStream::pair().unwrap().0), Nothing).unwrap();
            connections.set_deadline(id, Duration::from_secs(seconds));
            id
        };
        let (first, second) = (add(&mut connections, 10), add(&mut connections, 20));
        assert_eq!(connections.next_deadline, Duration::from_secs(10));
        connections.close(first);
        assert_eq!(connections.next_deadline, Duration::from_secs(20));
        connections.close(second);
        assert_eq!(connections.next_deadline, Duration::MAX);
    }
}
