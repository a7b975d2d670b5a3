//! The events between a node and the threads of its backend.

use super::gateway::watch::WatchEvent;
use crate::rendezvous::backend::BackendEvent;
use crate::rendezvous::questions::ListenerSlot;
use crossbeam_channel::Sender;
use nix::sys::eventfd::{EfdFlags, EventFd};
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// What the session thread receives.
pub enum SessionEvent {
    /// The node has a new record.
    Put(String),
    /// The node leaves.
    Close { patience: Duration, done: Sender<io::Result<()>> },
    /// The backend was dropped.
    Stop,
    /// There is a new lease: its id, and its number in this node.
    Lease(i64, u16),
    /// The lease has expired.
    Expired,
    /// There is contact again.
    Contact,
    /// Contact is lost.
    Lost(String),
    /// Etcd refuses this node for good.
    Refused(String),
    /// Below `board/`.
    Board(WatchEvent),
    /// Below `nodes/`, for the leader of this term.
    Nodes(i64, WatchEvent),
}

/// The node is leaving.
pub struct Closing {
    pub until: Duration,
    pub done: Sender<io::Result<()>>,
    /// Whether the node's last records are written.
    pub is_announced: bool,
}

/// The events that wait for the node, and a descriptor that is readable while there are some.
pub struct EventQueue {
    events: Mutex<VecDeque<BackendEvent>>,
    events_ready: EventFd,
    /// Receives questions and answers.
    pub questions: ListenerSlot,
}

impl EventQueue {
    pub fn new() -> io::Result<Self> {
        let events_ready = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
        Ok(Self { events: Mutex::default(), events_ready, questions: ListenerSlot::default() })
    }

    pub fn push(&self, event: BackendEvent) {
        self.events.lock().unwrap_or_else(PoisonError::into_inner).push_back(event);
        let _ = self.events_ready.write(1);
    }

    pub fn take(&self) -> Vec<BackendEvent> {
        let mut events = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = self.events_ready.read();
        events.drain(..).collect()
    }
}

impl AsFd for EventQueue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.events_ready.as_fd()
    }
}
