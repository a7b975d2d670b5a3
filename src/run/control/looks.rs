//! Looks at the ranks, which take a while: which clients and nodes wait for one.

use super::node_answer::{NodeAnswer, NodeQuestion};
use crate::net::server::ConnectionId;
use std::time::Duration;

/// Clients of this node that may wait for a look at the ranks. As many may wait for the one that runs.
const MAX_CLIENTS: usize = 64;
/// The same of other nodes.
const MAX_NODES: usize = 128;
/// How often stacks are read for other nodes alone: each time a process is started.
const READS_APART: Duration = Duration::from_secs(2);

/// Where an answer of this node goes.
pub(super) enum Destination {
    /// To a client that wants the stacks of this node.
    Client(ConnectionId),
    /// Among those of all nodes.
    Gathering(u64),
    /// To another node.
    Node { asker: String, id: String, longest: usize },
}

impl Destination {
    fn is_other_node(&self) -> bool {
        matches!(self, Self::Node { .. })
    }
}

/// A look at the ranks. One of a kind runs at a time, and all that ask meanwhile receive the next one.
#[derive(Default)]
pub(super) struct Look {
    running: Vec<Destination>,
    next: Vec<Destination>,
    /// When the last one began.
    began: Option<Duration>,
}

impl Look {
    /// Has a destination wait for the next look, unless too many wait for it.
    pub fn await_next(&mut self, destination: Destination) -> bool {
        let is_other_node = destination.is_other_node();
        let most = if is_other_node { MAX_NODES } else { MAX_CLIENTS };
        let has_room = self.next.iter().filter(|one| one.is_other_node() == is_other_node).count() < most;
        if has_room {
            self.next.push(destination);
        }
        has_room
    }

    /// When the next look may begin; `None`: no client and no node waits for it, or one runs.
    pub fn due(&self, question: NodeQuestion) -> Option<Duration> {
        if self.next.is_empty() || !self.running.is_empty() {
            return None;
        }
        let is_late = question == NodeQuestion::Stacks && self.next.iter().all(Destination::is_other_node);
        let apart = if is_late { READS_APART } else { Duration::ZERO };
        Some(self.began.map_or(Duration::ZERO, |began| began + apart))
    }

    /// The next look begins.
    pub fn begin(&mut self, now: Duration) {
        (self.running, self.began) = (std::mem::take(&mut self.next), Some(now));
    }

    /// It has ended. Returns who receives it.
    pub fn end(&mut self) -> Vec<Destination> {
        std::mem::take(&mut self.running)
    }
}

type Tell = Box<dyn FnOnce(Result<NodeAnswer, String>) + Send>;

/// Tells what a look has found, also if its thread has panicked or was never started.
pub(super) struct LookOutcome(Option<Tell>);

impl LookOutcome {
    pub fn new(tell: impl FnOnce(Result<NodeAnswer, String>) + Send + 'static) -> Self {
        Self(Some(Box::new(tell)))
    }

    pub fn tell(mut self, answer: Result<NodeAnswer, String>) {
        self.report(answer);
    }

    fn report(&mut self, answer: Result<NodeAnswer, String>) {
        if let Some(tell) = self.0.take() {
            tell(answer);
        }
    }
}

impl Drop for LookOutcome {
    fn drop(&mut self) {
        self.report(Err("it could not look at its ranks".to_owned()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crossbeam_channel::unbounded;

    fn node() -> Destination {
        Destination::Node { asker: "a".into(), id: "1".into(), longest: 9 }
    }

    #[test]
    fn other_nodes_leave_room_and_time_for_this_one() {
        let (mut look, now) = (Look::default(), Duration::from_secs(100));
        assert_eq!(look.due(NodeQuestion::Stacks), None);
        assert!(look.await_next(node()));
        assert_eq!(look.due(NodeQuestion::Stacks), Some(Duration::ZERO));
        look.begin(now);
        let heard = (0..1000).filter(|_| look.await_next(node())).count();
        assert_eq!(heard, MAX_NODES);
        assert_eq!((look.due(NodeQuestion::Stacks), look.end().len()), (None, 1));
        assert_eq!(look.due(NodeQuestion::Status), Some(now));
        assert_eq!(look.due(NodeQuestion::Stacks), Some(now + READS_APART));
        assert!(look.await_next(Destination::Client(7)));
        assert_eq!(look.due(NodeQuestion::Stacks), Some(now));
    }

    #[test]
    fn a_look_that_fails_has_an_outcome() {
        let (to, outcomes) = unbounded();
        let outcome = |to: crossbeam_channel::Sender<_>| LookOutcome::new(move |answer| drop(to.send(answer)));
        let failing = outcome(to.clone());
        let thread = std::thread::spawn(move || {
            let _outcome = failing;
            panic!("as a look might");
        });
        assert!(thread.join().is_err());
        assert_eq!(outcomes.try_recv(), Ok(Err("it could not look at its ranks".to_owned())));
        outcome(to).tell(Err("why".to_owned()));
        assert_eq!(outcomes.try_iter().collect::<Vec<_>>(), [Err("why".to_owned())]);
    }
}
