//! The messages of a link: lines, each a JSON document, preceded by its HMAC where the job has a key. Pure.

use crate::rendezvous::master::auth::{BodyDigest, LinkAuth, digest};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// The longest line, bytes: the list of members of the largest job fits (`admission::MAX_RANKS`).
pub const MAX_LINE: usize = 4 * 1024 * 1024;
/// The longest record of one node, bytes.
pub const MAX_RECORD: usize = 256 * 1024;
/// The longest id, bytes.
const MAX_ID: usize = 64;
/// The HTTP path of a request for a link.
pub const PATH: &str = "/rlaunch/v1";
/// The protocol that such a request upgrades to.
pub const PROTOCOL: &str = "rlaunch";
/// The header with what tells a master from others at its address.
pub const INSTANCE: &str = "rlaunch-instance";
/// The header with each side's nonce.
pub const NONCE: &str = "rlaunch-nonce";
/// The header that says whether the job has a key: `yes` or `no`.
pub const KEYED: &str = "rlaunch-keyed";

/// Whether a text is a valid node id. The job's state, which all nodes receive, contains ids.
pub fn is_id(text: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b":._-".contains(&byte);
    (1..=MAX_ID).contains(&text.len()) && text.bytes().all(fits)
}

/// A message of a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "say", rename_all = "lowercase")]
pub enum FromNode {
    /// The first message.
    Hello {
        /// The launcher's version.
        version: String,
        /// The job that the node joins.
        job: String,
        /// The node's id.
        id: String,
        /// Its record (`NodeRecord`).
        record: String,
    },
    /// The node's record has changed.
    Record {
        /// The whole record.
        record: String,
    },
    /// The node is alive.
    Ping,
    /// The node leaves.
    Leave,
    /// A question to other nodes. Only to a master that knows questions.
    Ask {
        /// Its number.
        number: u64,
        /// The id of the only node that receives it; `None`: all other nodes do.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        to: Option<String>,
        /// The question.
        text: String,
    },
    /// The answer to a question.
    Answer {
        /// The id of the node that has asked.
        asker: String,
        /// The question's number.
        number: u64,
        /// The answer.
        text: String,
    },
}

/// A message of the master.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "say", rename_all = "lowercase")]
pub enum FromMaster {
    /// The first message.
    Hello {
        /// The launcher's version.
        version: String,
        /// The job that the master serves.
        job: String,
        /// A random text that tells this master from another at the same address.
        #[serde(default)]
        instance: String,
        /// Milliseconds without a message before a node is considered lost.
        lease_ms: u64,
    },
    /// The job's state.
    State {
        /// `JobState`.
        state: String,
        /// The list of members (`protocol::member_list`).
        members: Option<String>,
    },
    /// The answer to `Ping`, and to `Hello`.
    Pong {
        /// The number of the node's lease, which is another if the node was considered gone in between.
        lease: u16,
    },
    /// The master closes the link for good.
    Refused {
        /// The reason, for people.
        why: String,
    },
    /// Another node asks. Only to a node that knows questions.
    Asked {
        /// The id of the node that asks.
        asker: String,
        /// The question's number.
        number: u64,
        /// The question.
        text: String,
    },
    /// A node has answered.
    Answered {
        /// The number of the question of the node that receives this.
        number: u64,
        /// The id of the node that answers.
        node: String,
        /// Its answer.
        text: String,
    },
}

/// A message that many nodes receive, encoded once.
#[derive(Clone, Debug)]
pub struct SharedBody {
    /// The JSON text with the end of the line.
    pub text: Arc<[u8]>,
    digest: BodyDigest,
}

impl SharedBody {
    /// Encodes a message.
    pub fn of(message: &impl Serialize) -> Self {
        // Serialization cannot fail: the messages have no maps with other keys than text, and there is no writer.
        let mut text = serde_json::to_vec(message).unwrap_or_default();
        let digest = digest(&text);
        text.push(b'\n');
        Self { text: text.into(), digest }
    }

    /// The HMAC that precedes the text on one link; empty without a key.
    pub fn signature(&self, auth: &mut LinkAuth) -> Vec<u8> {
        auth.sign(&self.digest).unwrap_or_default().into_bytes()
    }

    /// The whole line.
    pub fn line(&self, auth: &mut LinkAuth) -> Vec<u8> {
        [&self.signature(auth), &*self.text].concat()
    }
}

/// Why a link is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// A line is longer than [`MAX_LINE`].
    #[error("a line is longer than {MAX_LINE} bytes")]
    TooLong,
    /// A line's HMAC is wrong: its sender has another key, or it is not the sender's next line.
    #[error("a line is not signed with the job's key")]
    Unauthenticated,
    /// A line is not a known message.
    #[error("a line is not a message of this protocol")]
    Malformed,
}

/// Splits received bytes into messages.
#[derive(Debug, Default)]
pub struct FrameReader {
    bytes: Vec<u8>,
    /// Bytes that contain no end of a line.
    searched: usize,
}

impl FrameReader {
    /// Takes received bytes.
    pub fn feed(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Memory that it holds, in bytes.
    pub fn held(&self) -> usize {
        self.bytes.capacity()
    }

    /// The next message; `None` until it has arrived completely.
    pub fn next_message<T: DeserializeOwned>(&mut self, auth: &mut LinkAuth) -> Result<Option<T>, FrameError> {
        let found = self.bytes[self.searched..].iter().position(|byte| *byte == b'\n');
        let Some(end) = found.map(|at| self.searched + at) else {
            self.searched = self.bytes.len();
            return if self.searched > MAX_LINE { Err(FrameError::TooLong) } else { Ok(None) };
        };
        if end > MAX_LINE {
            return Err(FrameError::TooLong);
        }
        let body = auth.verify(&self.bytes[..end]).ok_or(FrameError::Unauthenticated)?;
        let message = serde_json::from_slice(body).map_err(|_| FrameError::Malformed)?;
        self.bytes.drain(..=end);
        self.searched = 0;
        self.bytes.shrink_to(4 * self.bytes.len().max(1024));
        Ok(Some(message))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rendezvous::master::auth::LinkSide;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn messages_are_the_same_wherever_they_are_cut(
            records in prop::collection::vec(".{0,80}", 1..5), key in prop::option::of("[a-z]{0,9}"), step in 1usize..200,
        ) {
            let mut node = LinkAuth::new(key.as_deref(), "n", "m", LinkSide::Node);
            let mut master = LinkAuth::new(key.as_deref(), "n", "m", LinkSide::Master);
            let sent: Vec<_> = records.into_iter().map(|record| FromNode::Record { record }).collect();
            let bytes: Vec<u8> = sent.iter().flat_map(|one| SharedBody::of(one).line(&mut node)).collect();
            let (mut lines, mut received) = (FrameReader::default(), Vec::new());
            for piece in bytes.chunks(step) {
                lines.feed(piece);
                while let Some(one) = lines.next_message::<FromNode>(&mut master).unwrap() {
                    received.push(one);
                }
            }
            prop_assert_eq!(received, sent);
        }
    }

    #[test]
    fn malformed_lines_have_distinct_errors() {
        let read = |bytes: &[u8], key| {
            let mut lines = FrameReader::default();
            lines.feed(bytes);
            lines.next_message::<FromNode>(&mut LinkAuth::new(key, "n", "m", LinkSide::Master))
        };
        assert_eq!(read(b"{\"say\":\"ping\"}\n", None), Ok(Some(FromNode::Ping)));
        assert_eq!(read(b"{\"say\":\"ping\"}\n", Some("k")), Err(FrameError::Unauthenticated));
        assert_eq!(read(b"{\"say\":\"what\"}\n", None), Err(FrameError::Malformed));
        assert_eq!(read(&vec![b'x'; MAX_LINE + 1], None), Err(FrameError::TooLong));
    }

    #[test]
    fn ids_are_short_and_plain() {
        assert!(["a", "paddle:aaaaaa", "A-z_0.9"].iter().all(|id| is_id(id)) && is_id(&"x".repeat(64)));
        assert!(["", "a b", "a/b", "é", "a\n"].iter().all(|id| !is_id(id)) && !is_id(&"x".repeat(65)));
    }
}
