//! The embedded master's server.

use super::config::MasterConfig;
use super::service::{CloseWithin, MasterService};
use crate::net::server::EventLoop;
use crate::net::server::MemoryBudget;
use crate::net::server::ServerLimits;
use crate::net::server::ServerThread;
use crate::net::traffic::Traffic;
use crate::protocol::CoordinatorLogic;
use std::io;
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// A running master. Dropping it ends it at once.
#[derive(Debug)]
pub struct MasterServer {
    thread: ServerThread<MasterService>,
    traffic: Traffic,
    instance: String,
    has_joined: Arc<AtomicBool>,
}

/// Serves on these sockets, in a thread that takes no signals. `coordinator` decides.
pub fn serve(
    listeners: Vec<TcpListener>,
    config: MasterConfig,
    coordinator: Box<dyn CoordinatorLogic>,
) -> io::Result<MasterServer> {
    let clock = config.clock;
    let budget = MemoryBudget::new(config.memory);
    let limits = ServerLimits { connections: config.connections.clamp(16, 1 << 16), budget };
    let service = MasterService::new(config, coordinator, limits.budget.clone())?;
    let (instance, has_joined) = service.presence();
    let event_loop = EventLoop::new(listeners, limits, clock, service)?;
    let traffic = event_loop.traffic();
    Ok(MasterServer { thread: ServerThread::start("master", event_loop)?, traffic, instance, has_joined })
}

impl MasterServer {
    /// Serves until the job has ended and all its nodes know, or no node is left, for `patience` at most; then ends. Whether it
    /// ended in time.
    pub fn close(&mut self, patience: Duration) -> bool {
        // An error says that the thread has ended already.
        let _ = self.thread.send(CloseWithin(patience));
        // The thread keeps the time itself; the rest is for one that cannot.
        let in_time = self.thread.wait_end(patience + Duration::from_secs(5));
        self.thread.stop();
        in_time
    }

    /// What tells this master from others at its address (`ProbeResult::Rlaunch`).
    pub fn instance(&self) -> &str {
        &self.instance
    }

    /// Whether a node has joined.
    pub fn has_nodes(&self) -> bool {
        self.has_joined.load(Ordering::Acquire)
    }

    /// Bytes received and sent.
    pub fn traffic(&self) -> (u64, u64) {
        (self.traffic.received(), self.traffic.sent())
    }
}
