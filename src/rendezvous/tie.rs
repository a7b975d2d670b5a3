//! What ties a node to the others of a job that find each other: whoever keeps what they share, etcd or the embedded
//! master, does it behind these words. Records and states are JSON (`agree`); here they are text.

use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

/// What a node hears.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum News {
    /// The job's state is this now; with the members of its round (`Vec<Member>`), unless they have been told before.
    State {
        /// `State`.
        state: String,
        /// `Vec<Member>`.
        members: Option<String>,
    },
    /// There is no contact any more; `why` for people. Tried again until somebody closes the tie.
    Lost {
        /// What happened last.
        why: String,
    },
    /// There is contact again.
    Back,
    /// This node is not let in, and trying again is of no use: the wrong key, a certificate, a server too old.
    Refused {
        /// For people, with the way out.
        why: String,
    },
}

/// A node's tie to the others. Its threads end with it.
pub trait Tie: AsFd + Send {
    /// Replaces this node's record, now or as soon as there is contact; the latest counts.
    fn put(&mut self, record: &str);
    /// What has been heard, oldest first; the descriptor is readable when there is something.
    fn heard(&mut self) -> Vec<News>;
    /// Leaves in order: the record goes at once. On whoever serves or coordinates: waits until nobody needs it, for
    /// `patience` at most.
    fn close(&mut self, patience: Duration) -> io::Result<()>;
}

/// Who decides for a job: `agree::Coordinator` behind words.
pub trait Decide: Send {
    /// Takes over where another left off: the last state and the members of its round, if there are any.
    fn resume(&mut self, state: Option<&str>, members: Option<&str>, now: Duration);
    /// A node's record is this now.
    fn record(&mut self, id: &str, record: &str, now: Duration);
    /// A node has gone; it was last heard of so long ago (zero: it was seen to go).
    fn gone(&mut self, id: &str, age: Duration, now: Duration);
    /// What is to be told to all, if anything is: call it after each of the above and when `next_deadline` has come.
    fn turn(&mut self, now: Duration) -> Option<Publication>;
    /// When `turn` wants to be called next, if ever.
    fn next_deadline(&self) -> Option<Duration>;
    /// Whether the job has ended and no member of it is here any more: nobody needs a coordinator.
    fn is_over(&self) -> bool;
    /// What Paddle's own launchers are to see of nodes: their keys below `/{job}/info` and their payloads.
    fn shown_to_paddle(&self) -> Vec<(String, String)>;
}

/// What is told to all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Publication {
    /// `State`.
    pub state: String,
    /// `Vec<Member>`, with the state that begins a round.
    pub members: Option<String>,
}
