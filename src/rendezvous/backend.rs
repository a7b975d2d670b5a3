//! The trait of a rendezvous backend: what connects a node with the others of its job. Records and states are JSON text
//! (see [`crate::protocol`]).

use super::questions::{QuestionListener, QuestionSender};
use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

/// What a node receives from its backend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BackendEvent {
    /// The job has a new state.
    State {
        /// `JobState`.
        state: String,
        /// The list of members of the state's round (`protocol::member_list`), unless this node has received them before.
        members: Option<String>,
    },
    /// This node has joined under this lease. The state that it found has come before.
    Joined {
        /// The lease's number.
        lease: u16,
    },
    /// Contact is lost. The backend tries to reconnect until it is closed.
    Lost {
        /// The last failure, for people.
        why: String,
    },
    /// There is contact, and this node keeps its lease, but the backend does not do what else the node asks for.
    Hindered {
        /// The last failure, for people.
        why: String,
    },
    /// There is contact again, and nothing hinders this node.
    Back,
    /// This node is refused, and another attempt is useless: a wrong key, a bad certificate, a server that is too old.
    Refused {
        /// The reason and what to do, for people.
        why: String,
    },
    /// Another job has this node's place: ranks of its nodes may run already.
    Superseded {
        /// The same.
        why: String,
    },
}

/// A node's connection with the others of its job. Its threads end when it is dropped.
pub trait RendezvousBackend: AsFd + Send {
    /// Replaces this node's record, as soon as there is contact. Only the latest record counts.
    fn put(&mut self, record: &str);
    /// Takes the events, oldest first. The descriptor is readable while there are some.
    fn take_events(&mut self) -> Vec<BackendEvent>;
    /// Takes part in questions between nodes from now on. To be called once.
    fn connect_questions(&mut self, listener: QuestionListener) -> Box<dyn QuestionSender>;
    /// Leaves the job: removes the record. A node that coordinates first waits until no other node needs it. Takes `patience` at
    /// most.
    fn close(&mut self, patience: Duration) -> io::Result<()>;
}
