//! What a node shares with the thread of its link to the master: its record, what it sends, the events that wait for it.

use crate::rendezvous::backend::BackendEvent;
use crate::rendezvous::master::frame::FromNode;
use crate::rendezvous::questions::ListenerSlot;
use nix::sys::eventfd::{EfdFlags, EventFd};
use std::collections::VecDeque;
use std::io;
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Questions and answers that may wait to be sent, while there is no link.
const MAX_QUESTIONS: usize = 64;

/// What the node and its link's thread share.
pub(super) struct SharedState {
    link: Mutex<LinkState>,
    /// Receives questions and answers.
    pub questions: ListenerSlot,
    /// Wakes the thread.
    pub wakeup: EventFd,
    /// Readable while there are events.
    pub events_ready: EventFd,
}

/// The node as its link's thread sees it.
#[derive(Default)]
pub(super) struct LinkState {
    pub record: String,
    /// Whether this record has been sent.
    pub is_sent: bool,
    events: VecDeque<BackendEvent>,
    /// Questions and answers that wait to be sent.
    pub questions: VecDeque<FromNode>,
    pub command: ClientCommand,
    pub local: Option<IpAddr>,
}

/// What the thread is to do.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum ClientCommand {
    #[default]
    Stay,
    /// Send a last message, and end.
    Leave,
    End,
}

impl SharedState {
    /// Of a node with this record.
    pub fn new(record: &str) -> io::Result<Self> {
        let event_fd = || EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK);
        let link = Mutex::new(LinkState { record: record.to_owned(), ..LinkState::default() });
        Ok(Self { link, questions: ListenerSlot::default(), wakeup: event_fd()?, events_ready: event_fd()? })
    }

    /// Replaces the node's record.
    pub fn put(&self, record: &str) {
        let mut link = self.lock();
        if link.record != record {
            (link.record, link.is_sent) = (record.to_owned(), false);
            let _ = self.wakeup.write(1);
        }
    }

    /// Sends a question or an answer. It is lost if many wait already.
    pub fn send(&self, message: FromNode) {
        let mut link = self.lock();
        if link.questions.len() < MAX_QUESTIONS {
            link.questions.push_back(message);
            let _ = self.wakeup.write(1);
        }
    }

    /// Takes the events, oldest first.
    pub fn take_events(&self) -> Vec<BackendEvent> {
        let mut link = self.lock();
        let _ = self.events_ready.read();
        link.events.drain(..).collect()
    }

    pub fn lock(&self) -> MutexGuard<'_, LinkState> {
        self.link.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn order(&self, command: ClientCommand) {
        self.lock().command = command;
        let _ = self.wakeup.write(1);
    }

    pub fn command(&self) -> ClientCommand {
        self.lock().command
    }

    pub fn push_event(&self, event: BackendEvent) {
        let mut link = self.lock();
        // A state replaces the one before it, unless that one has the members, which are sent once.
        if matches!(
            (link.events.back(), &event),
            (Some(BackendEvent::State { members: None, .. }), BackendEvent::State { .. })
        ) {
            link.events.pop_back();
        }
        link.events.push_back(event);
        let _ = self.events_ready.write(1);
    }
}
