//! The control socket's server: as long as the supervisor process runs.

use super::runtime_folder::{self, NoControlSocket};
use super::service::{ControlService, StopSwitch};
use crate::net::server::{EventLoop, MemoryBudget, ServerLimits, ServerThread};
use crate::run::launch::Launch;
use crate::sys::io::fd;
use crate::sys::signals::{STOP, Signals};
use crate::sys::{clock, random};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use thiserror::Error;

/// Clients at once.
const CONNECTIONS: usize = 16;
/// Bytes that all clients together may hold: a few answers with the stacks of a large node.
const MEMORY: usize = 64 << 20;

/// Why a job has no control socket.
#[derive(Debug, Error)]
pub enum ControlUnavailable {
    /// There is no place for it.
    #[error(transparent)]
    NoSocket(#[from] NoControlSocket),
    /// The server could not be started.
    #[error("its server cannot be started: {0}")]
    NoServer(#[from] io::Error),
}

/// The server. Dropping it removes the socket.
pub struct ControlServer {
    path: PathBuf,
    _thread: ServerThread<ControlService>,
}

impl ControlServer {
    /// Serves a launch. `launcher`: a pidfd of the launcher process; `pid`: its process id; `signals`: those that it handles.
    pub fn start(
        launch: &Launch<'_>,
        (launcher, pid): (&OwnedFd, i32),
        signals: &Signals,
    ) -> Result<Self, ControlUnavailable> {
        let launcher = fd::duplicate(launcher.as_raw_fd()).map_err(io::Error::from)?;
        // Process ids repeat in other PID namespaces that have the same folder.
        let (listener, path) = runtime_folder::listen(&format!("{pid}-{}", random::lowercase(6)))?;
        let stops = |signal: &i32| !launch.forwarded_signals.contains(signal) && !signals.is_ignored(*signal);
        let signal = STOP.into_iter().find(stops);
        let answers = Arc::new(OnceLock::new());
        let service = ControlService {
            status: launch.status.clone(),
            reader: launch.stack_reader.clone(),
            stop: StopSwitch { launcher, signal, grace: launch.policy.grace },
            answers: Arc::clone(&answers),
            reads_stacks: Arc::default(),
        };
        let limits = ServerLimits { connections: CONNECTIONS, budget: MemoryBudget::new(MEMORY) };
        let event_loop = EventLoop::new(vec![listener], limits, clock::now, service)?;
        // Set once.
        let _ = answers.set(event_loop.sender());
        Ok(Self { path, _thread: ServerThread::start("rlaunch-control", event_loop)? })
    }
}

impl Drop for ControlServer {
    fn drop(&mut self) {
        // The folder may have been emptied.
        let _ = std::fs::remove_file(&self.path);
    }
}
