//! Questions between the nodes of a job: one node asks, all others answer. They are apart from records and states: a question or an
//! answer may be lost, and nothing depends on it but what a user is shown, and a grace period that a user has shortened.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// The longest question, bytes. A longer one is not passed on.
pub const MAX_QUESTION: usize = 4 << 10;
/// The longest answer, bytes. A longer one is not passed on. Etcd takes 1.5 MiB in one request.
pub const MAX_ANSWER: usize = 256 << 10;

/// A node may ask this often, and so many times at once.
const ASKS_APART: Duration = Duration::from_millis(100);
/// See `ASKS_APART`.
pub const ASKS_AT_ONCE: u32 = 10;

/// How often a node asks: one that asks without end is not heard.
#[derive(Clone, Copy, Debug, Default)]
pub struct AskLimit {
    free_at: Duration,
}

impl AskLimit {
    /// Whether the node may ask now.
    pub fn allow(&mut self, now: Duration) -> bool {
        let free_at = self.free_at.max(now) + ASKS_APART;
        let may = free_at <= now + ASKS_APART * ASKS_AT_ONCE;
        if may {
            self.free_at = free_at;
        }
        may
    }

    /// Whether it has not asked of late.
    pub fn is_idle(&self, now: Duration) -> bool {
        self.free_at <= now
    }
}

/// What a node receives, on a thread of its backend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum QuestionEvent {
    /// Another node asks. It may be received twice.
    Asked {
        /// The id of the node that asks.
        asker: String,
        /// The question's id, for the answer.
        id: String,
        /// The question.
        text: String,
    },
    /// A node has answered, perhaps more than once.
    Answered {
        /// The number of this node's question.
        number: u64,
        /// The id of the node that answers.
        node: String,
        /// Its answer.
        text: String,
    },
}

/// What a node sends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum QuestionMessage {
    /// A question to all other nodes.
    Ask {
        /// Its number, which this node uses once.
        number: u64,
        /// The question.
        text: String,
    },
    /// Something that another node is to know, or all others are, and that has no answer.
    Tell {
        /// Its number, as that of a question.
        number: u64,
        /// The id of the node, which has sent `ReceiveOwn` before; `None`: all other nodes.
        to: Option<String>,
        /// What they receive as a question.
        text: String,
    },
    /// This node receives what others send to it alone from now on.
    ReceiveOwn,
    /// An answer.
    Answer {
        /// The node that has asked.
        asker: String,
        /// The question's id.
        id: String,
        /// The answer.
        text: String,
    },
    /// No further answer to this question is wanted.
    Forget {
        /// Its number.
        number: u64,
    },
}

/// Sends questions and answers. What cannot be sent is lost. It may block for as long as a request to the backend takes.
pub trait QuestionSender: Send {
    /// Sends a message.
    fn send(&mut self, message: QuestionMessage);
}

/// Receives questions and answers. It does not block.
pub type QuestionListener = Box<dyn Fn(QuestionEvent) + Send + Sync>;

/// The place of a listener, which comes after the threads that report to it. Clones share it.
#[derive(Clone, Default)]
pub struct ListenerSlot(Arc<OnceLock<QuestionListener>>);

impl ListenerSlot {
    /// Sets the listener; only the first one counts.
    pub fn set(&self, listener: QuestionListener) {
        let _ = self.0.set(listener);
    }

    /// Reports an event. Without a listener it is lost.
    pub fn report(&self, event: QuestionEvent) {
        if let Some(listener) = self.0.get() {
            listener(event);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_asks_ten_times_at_once_and_then_ten_times_a_second() {
        let (mut limit, now) = (AskLimit::default(), Duration::from_secs(100));
        assert!(limit.is_idle(now));
        assert_eq!((0..1000).filter(|_| limit.allow(now)).count(), ASKS_AT_ONCE as usize);
        assert!(!limit.allow(now + ASKS_APART / 2) && limit.allow(now + ASKS_APART) && !limit.is_idle(now));
    }
}
