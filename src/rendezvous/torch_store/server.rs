//! The server of torch's store.

use super::limits::StoreLimits;
use super::service::{Renew, StoreService};
use super::sockets::StoreSockets;
use super::watch::StoreWatch;
use crate::net::server::EventLoop;
use crate::net::server::MemoryBudget;
use crate::net::server::ServerLimits;
use crate::net::server::ServerThread;
use crate::sys::clock;
use crossbeam_channel::bounded;
use std::io;
use std::net::TcpListener;

/// A running store. Dropping it ends it.
#[derive(Debug)]
pub struct StoreServer(ServerThread<StoreService>);

/// A store that does nothing until it is resumed: its clients wait. It has no thread, so after a fork both processes have it. Only
/// one of them may resume it; the other has to drop it.
pub struct PausedServer(EventLoop<StoreService>);

impl StoreServer {
    /// Serves on these sockets, with the default limits.
    pub fn start(listeners: Vec<TcpListener>) -> io::Result<Self> {
        Self::start_with(listeners, StoreLimits::default(), None)
    }

    /// Serves on these sockets, in a thread that takes no signals.
    pub fn start_with(
        sockets: impl Into<StoreSockets>,
        limits: StoreLimits,
        watch: Option<StoreWatch>,
    ) -> io::Result<Self> {
        let StoreSockets { listeners, peers } = sockets.into();
        let service = StoreService::new(limits, watch, peers);
        let limits = ServerLimits { connections: limits.connections, budget: MemoryBudget::new(limits.bytes / 2) };
        PausedServer(EventLoop::new(listeners, limits, clock::now, service)?).resume()
    }

    /// Stops the thread, and keeps the connections and all keys.
    pub fn pause(mut self) -> io::Result<PausedServer> {
        self.0.stop().map(PausedServer).ok_or_else(|| io::Error::other("the store's thread has ended"))
    }

    /// Closes all connections, also those that wait to be accepted, and deletes all keys. When it returns, clients that had
    /// connected before cannot read or set anything any more.
    pub fn renew(&self) -> io::Result<()> {
        let (done, wait) = bounded(1);
        self.0.send(Renew(done))?;
        wait.recv().map_err(io::Error::other)?
    }
}

impl PausedServer {
    /// Serves again, in a thread that takes no signals.
    pub fn resume(self) -> io::Result<StoreServer> {
        ServerThread::start("torch-store", self.0).map(StoreServer)
    }
}

#[cfg(test)]
impl StoreServer {
    /// Ends the thread as if it had failed.
    pub fn lose_thread(&mut self) {
        drop(self.0.stop());
    }
}
