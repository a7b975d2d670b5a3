//! The store's protocol on the connections of a server.

use super::frame::RequestParser;
use super::limits::StoreLimits;
use super::sockets::StorePeers;
use super::state::{Replies, StoreState};
use super::stored_value::StoredValue;
use super::watch::{StoreEvent, StoreWatch};
use crate::net::server::ConnectionState;
use crate::net::server::MemoryBudget;
use crate::net::server::{ConnectionEnd, Socket};
use crate::net::server::{ConnectionId, Connections};
use crate::net::server::{Handled, Service};
use crate::net::tcp;
use crossbeam_channel::Sender;
use std::collections::BTreeSet;
use std::io;
use std::net::IpAddr;
use std::ops::ControlFlow;
use std::time::Duration;
use tracing::warn;

/// No request is handled while as many bytes wait to be sent.
const BACKLOG: usize = 1024 * 1024;

/// Maximum number of refused addresses that are named.
const REFUSED_NAMED: usize = 8;

/// What the store keeps of a client.
#[derive(Debug, Default)]
pub(super) struct StoreConnection {
    parser: RequestParser,
    has_made_a_request: bool,
    /// Whether it has touched a watched key.
    is_watched: bool,
}

impl ConnectionState for StoreConnection {
    type Shared = StoredValue;

    fn feed(&mut self, bytes: &[u8]) {
        self.parser.feed(bytes);
    }

    fn held(&self) -> usize {
        self.parser.held()
    }

    fn may_handle(&self, backlog: usize) -> bool {
        backlog < BACKLOG
    }
}

/// Closes all connections and forgets everything; answers when that is done.
pub(super) struct Renew(pub(super) Sender<io::Result<()>>);

/// The store and its watch.
pub(super) struct StoreService {
    store: StoreState,
    watch: Option<StoreWatch>,
    peers: StorePeers,
    /// Addresses that a warning has named.
    refused: BTreeSet<IpAddr>,
    has_warned: bool,
    /// Empty, with the memory of earlier replies.
    replies: Replies,
}

impl StoreService {
    pub(super) fn new(limits: StoreLimits, watch: Option<StoreWatch>, peers: StorePeers) -> Self {
        Self {
            store: StoreState::new(MemoryBudget::new(limits.bytes / 2)),
            watch,
            peers,
            refused: BTreeSet::new(),
            has_warned: false,
            replies: Replies::new(),
        }
    }

    fn warn_of_refused(&mut self, address: IpAddr) {
        if self.refused.len() < REFUSED_NAMED && self.refused.insert(address) {
            warn!(
                "the store refused a connection from {address}, which no node of this round has. If ranks connect through \
                 address translation, set RLAUNCH_STORE_PEERS=any on all nodes"
            );
        }
    }
}

impl Service for StoreService {
    type State = StoreConnection;
    type Command = Renew;

    fn accept(&mut self, socket: &Socket) -> io::Result<StoreConnection> {
        let socket = socket.tcp()?;
        if let Some(address) = self.peers.refused(socket)? {
            self.warn_of_refused(address);
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        // The loss of the other machine is noticed within half a minute.
        tcp::set_keepalive(socket, 10, 5, 4)?;
        Ok(StoreConnection::default())
    }

    fn handle_next(
        &mut self,
        connections: &mut Connections<StoreConnection>,
        id: ConnectionId,
        _: Duration,
    ) -> Handled {
        let Some(connection) = connections.get_mut(id) else { return Handled::Incomplete };
        let client = &mut connection.state;
        let request = match client.parser.next_request() {
            Ok(Some(request)) => request,
            Ok(None) => return Handled::Incomplete,
            Err(_) => return Handled::Violation,
        };
        if let Some(watch) = &self.watch {
            client.is_watched |= watch.report_request(id, &request);
        }
        if !std::mem::replace(&mut client.has_made_a_request, true) {
            connections.protect(id);
        }
        let handled = self.store.handle(id, request, &mut self.replies);
        for (to, part) in self.replies.drain(..) {
            if let Some(connection) = connections.get_mut(to) {
                connection.push_chunk(part);
            }
        }
        if handled.is_ok() { Handled::Request } else { Handled::Violation }
    }

    fn closed(&mut self, id: ConnectionId, client: StoreConnection, _: ConnectionEnd, _: Duration) {
        self.store.forget(id);
        if let (true, Some(watch)) = (client.is_watched, &self.watch) {
            watch.report(StoreEvent::Left(id));
        }
    }

    fn full(&mut self, connections: usize) {
        if !std::mem::replace(&mut self.has_warned, true) {
            warn!(
                "the store has no room beside its {connections} connections: others wait until one of them closes; raise \
                 the limit of open files (ulimit -Hn)"
            );
        }
    }

    fn command(&mut self, connections: &mut Connections<StoreConnection>, Renew(done): Renew) -> ControlFlow<()> {
        let closed = connections.close_all();
        self.store.clear();
        // The caller may have gone.
        let _ = done.send(closed);
        ControlFlow::Continue(())
    }
}
