//! The trait by which a rendezvous backend drives a coordinator: records and states are JSON text.

use std::time::Duration;

/// Decides for a job. [`Coordinator`](crate::protocol::Coordinator) implements it.
pub trait CoordinatorLogic: Send {
    /// Continues where another coordinator stopped: the last state and the members of its round, if there are any.
    fn resume(&mut self, state: Option<&str>, members: Option<&str>, now: Duration);
    /// A node has a new record.
    fn record(&mut self, id: &str, record: &str, now: Duration);
    /// A node is gone. `age`: the time since it was last heard from; zero if its end was seen.
    fn gone(&mut self, id: &str, age: Duration, now: Duration);
    /// What all nodes are to receive, if anything. To be called after each of the above and when `next_deadline` has come.
    fn turn(&mut self, now: Duration) -> Option<Publication>;
    /// When `turn` is to be called next, if ever.
    fn next_deadline(&self) -> Option<Duration>;
    /// Whether the job has ended and all its members have left, so that no node needs a coordinator.
    fn is_over(&self) -> bool;
    /// The nodes as Paddle's own launchers see them: their keys below `/{job}/info` and their payloads.
    fn shown_to_paddle(&self) -> Vec<(String, String)>;
}

/// What all nodes receive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Publication {
    /// `JobState`.
    pub state: String,
    /// `Vec<RoundMember>`, with the state that begins a round.
    pub members: Option<String>,
}
