//! The trait that a server's protocol implements.

use super::connection::{ConnectionEnd, ConnectionState};
use super::connections::{ConnectionId, Connections};
use super::socket::Socket;
use std::io;
use std::ops::ControlFlow;
use std::os::fd::RawFd;
use std::time::Duration;

/// What came of an attempt to handle a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Handled {
    /// A request was handled; more may have arrived.
    Request,
    /// No complete request has arrived.
    Incomplete,
    /// The client broke the protocol: its connection is closed.
    Violation,
}

/// What a server does. The event loop calls it on its own thread; times are monotonic.
pub trait Service: Send + 'static {
    /// What it keeps of each connection.
    type State: ConnectionState<Shared: Send> + Send;
    /// What other threads can order.
    type Command: Send;

    /// Called once, on the thread of the event loop, before it serves. `own`: the descriptors that the event loop uses.
    fn begin(&mut self, _own: &[RawFd]) {}

    /// Called once, on the thread of the event loop, after it has served.
    fn end(&mut self, _connections: &mut Connections<Self::State>) {}

    /// Prepares a new connection, which is non-blocking already; TCP sends without delay.
    fn accept(&mut self, socket: &Socket) -> io::Result<Self::State>;

    /// A connection was accepted.
    fn opened(&mut self, _connections: &mut Connections<Self::State>, _id: ConnectionId, _now: Duration) {}

    /// Handles the next request of a connection.
    fn handle_next(&mut self, connections: &mut Connections<Self::State>, id: ConnectionId, now: Duration) -> Handled;

    /// A connection has ended.
    fn closed(&mut self, id: ConnectionId, state: Self::State, end: ConnectionEnd, now: Duration);

    /// The deadline of a connection has come. It is closed after this call.
    fn timed_out(&mut self, _connections: &mut Connections<Self::State>, _id: ConnectionId, _now: Duration) {}

    /// New connections wait until others close: there are `connections`, or no more descriptors.
    fn full(&mut self, _connections: usize) {}

    /// Carries out a command. `Break` ends the event loop.
    fn command(&mut self, connections: &mut Connections<Self::State>, command: Self::Command) -> ControlFlow<()>;

    /// Called before each wait for events. `Break` ends the event loop.
    fn before_wait(&mut self, _connections: &mut Connections<Self::State>, _now: Duration) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }

    /// The longest time between two turns of the event loop. If more passes, this process did not run meanwhile (it was suspended), nor
    /// may its clients have: the time beyond counts for no deadline, and the times that the service receives leave it out.
    fn longest_turn(&self) -> Option<Duration> {
        None
    }

    /// When `before_wait` is to be called next, whatever happens.
    fn next_deadline(&self) -> Option<Duration> {
        None
    }
}
