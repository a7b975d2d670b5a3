//! A bounded, non-blocking server: one event loop, and a [`Service`] that implements the protocol.
//!
//! The event loop accepts connections, reads and writes, and keeps the limits: on connections, on memory, on time. Clients need not
//! authenticate, so every client is treated as hostile:
//!
//! - Above the limit of connections, the oldest *evictable* one is closed: one that the service has not protected. If none is
//!   evictable, or the system has no descriptors left, new connections wait in the kernel.
//! - When the memory budget is used up, the connection that holds most of it is closed.
//! - While too much waits to be sent on a connection, none of its requests is handled, and none is read.
//! - A connection whose deadline comes is closed.

mod acceptor;
mod connection;
mod connections;
mod event_loop;
mod memory_budget;
mod outbox;
mod server_thread;
mod service;
mod socket;

pub use connection::{Connection, ConnectionEnd, ConnectionState};
pub use connections::{ConnectionId, Connections, ServerLimits};
pub use event_loop::{CommandSender, EventLoop};
pub use memory_budget::{BudgetExceeded, MemoryBudget, OVERHEAD};
pub use outbox::OutputChunk;
pub use server_thread::ServerThread;
pub use service::{Handled, Service};
pub use socket::{Listener, Socket};
