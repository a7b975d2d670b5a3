//! Reports of changes to keys with a prefix, for the launcher that serves the store.

use super::frame::StoreRequest;
use crate::net::server::ConnectionId;
use crossbeam_channel::Sender;
use nix::sys::eventfd::EventFd;
use std::sync::Arc;

/// Values up to this length are reported.
const MAX_VALUE: usize = 1024;

/// Where changes of keys with a prefix are reported. The server never waits for the receiver: events that the channel has no room
/// for are lost.
#[derive(Clone, Debug)]
pub struct StoreWatch {
    /// The prefix of the keys, as they are on the wire.
    pub prefix: Vec<u8>,
    /// Receives the events.
    pub events: Sender<StoreEvent>,
    /// Written to after each event.
    pub events_ready: Arc<EventFd>,
}

/// An event at a watched key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum StoreEvent {
    /// A client has set the key, or added to its number.
    Touched {
        /// The client.
        client: ConnectionId,
        /// The key without the prefix.
        key: Vec<u8>,
        /// The value; empty if it is long, or was added to.
        value: Vec<u8>,
    },
    /// The connection of a client that has touched a watched key has closed. Not reported when the server closes all connections.
    Left(ConnectionId),
}

impl StoreWatch {
    /// Reports a request if it touches a watched key. Whether it does.
    pub(super) fn report_request(&self, client: ConnectionId, request: &StoreRequest) -> bool {
        let (key, value) = match request {
            StoreRequest::Set { key, value } => (key, value.as_slice()),
            StoreRequest::Add { key, .. } => (key, &[][..]),
            _ => return false,
        };
        let Some(key) = key.strip_prefix(self.prefix.as_slice()) else { return false };
        let value = if value.len() > MAX_VALUE { Vec::new() } else { value.to_vec() };
        self.report(StoreEvent::Touched { client, key: key.to_vec(), value });
        true
    }

    pub(super) fn report(&self, event: StoreEvent) {
        let _ = self.events.try_send(event);
        let _ = self.events_ready.write(1);
    }
}
