//! What goes over a link: lines, each a JSON document, behind its proof where there is a key. Pure.

use super::seal::{Seal, Sum, sum};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// The longest line, bytes.
pub const MAX_LINE: usize = 4 * 1024 * 1024;
/// The longest record, bytes: one node's, so that the words of a whole job fit in a line.
pub const MAX_RECORD: usize = 256 * 1024;
/// The longest id, bytes.
const MAX_ID: usize = 64;
/// The path that a link is asked for by.
pub const PATH: &str = "/rlaunch/v1";
/// The protocol's name.
pub const PROTOCOL: &str = "rlaunch";
/// The header with each side's number.
pub const NONCE: &str = "rlaunch-nonce";
/// The header that says whether there is a key: `yes` or `no`.
pub const KEYED: &str = "rlaunch-keyed";

/// Whether it can be an id: what all nodes are told of this one has its id in it.
pub fn is_id(text: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b":._-".contains(&byte);
    (1..=MAX_ID).contains(&text.len()) && text.bytes().all(fits)
}

/// What a node says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "say", rename_all = "lowercase")]
pub enum FromNode {
    /// First.
    Hello {
        /// Its launcher's version.
        version: String,
        /// The job that it wants to take part in.
        job: String,
        /// Who it is.
        id: String,
        /// Its record.
        record: String,
    },
    /// Its record is another now.
    Record {
        /// The whole of it.
        record: String,
    },
    /// It is here.
    Ping,
    /// It goes.
    Leave,
}

/// What the master says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "say", rename_all = "lowercase")]
pub enum FromMaster {
    /// First.
    Hello {
        /// Its launcher's version.
        version: String,
        /// Its job.
        job: String,
        /// Which master it is: another one at the same address says another.
        #[serde(default)]
        instance: String,
        /// A node that has said nothing for so long has gone; milliseconds.
        lease_ms: u64,
    },
    /// The job's state.
    State {
        /// `State`.
        state: String,
        /// `Vec<Member>`.
        members: Option<String>,
    },
    /// It has heard.
    Pong,
    /// It hangs up, for good.
    Refused {
        /// For people.
        why: String,
    },
}

/// A document that many are told.
#[derive(Clone, Debug)]
pub struct Body {
    /// With the end of the line.
    pub text: Arc<[u8]>,
    sum: Sum,
}

impl Body {
    /// Of what is said.
    pub fn of(said: &impl Serialize) -> Self {
        // Nothing here can fail: there are no maps with odd keys, and no writer.
        let mut text = serde_json::to_vec(said).unwrap_or_default();
        let sum = sum(&text);
        text.push(b'\n');
        Self { text: text.into(), sum }
    }

    /// What stands before it in one link; empty without a key.
    pub fn proof(&self, seal: &mut Seal) -> Vec<u8> {
        seal.close(&self.sum).unwrap_or_default().into_bytes()
    }

    /// The whole line.
    pub fn line(&self, seal: &mut Seal) -> Vec<u8> {
        [&self.proof(seal), &*self.text].concat()
    }
}

/// Why a link ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Broken {
    /// A line is too long.
    TooLong,
    /// It was not said by who has the key, or not now.
    Unproved,
    /// It is no document, or an unknown one.
    Unknown,
}

/// Makes documents of what one end sends.
#[derive(Debug, Default)]
pub struct Lines {
    bytes: Vec<u8>,
    looked: usize,
}

impl Lines {
    /// Takes what has come.
    pub fn feed(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Memory it holds, in bytes.
    pub fn held(&self) -> usize {
        self.bytes.capacity()
    }

    /// The next document; `None` when more has to come.
    pub fn next_said<T: DeserializeOwned>(&mut self, seal: &mut Seal) -> Result<Option<T>, Broken> {
        let found = self.bytes[self.looked..].iter().position(|byte| *byte == b'\n');
        let Some(end) = found.map(|at| self.looked + at) else {
            self.looked = self.bytes.len();
            return if self.looked > MAX_LINE { Err(Broken::TooLong) } else { Ok(None) };
        };
        if end > MAX_LINE {
            return Err(Broken::TooLong);
        }
        let body = seal.open(&self.bytes[..end]).ok_or(Broken::Unproved)?;
        let said = serde_json::from_slice(body).map_err(|_| Broken::Unknown)?;
        self.bytes.drain(..=end);
        self.looked = 0;
        self.bytes.shrink_to(4 * self.bytes.len().max(1024));
        Ok(Some(said))
    }
}

#[cfg(test)]
mod tests {
    use super::super::seal::Side;
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn documents_are_the_same_wherever_they_are_cut(
            records in prop::collection::vec(".{0,80}", 1..5), key in prop::option::of("[a-z]{0,9}"), step in 1usize..200,
        ) {
            let mut node = Seal::new(key.as_deref(), "n", "m", Side::Node);
            let mut master = Seal::new(key.as_deref(), "n", "m", Side::Master);
            let said: Vec<_> = records.into_iter().map(|record| FromNode::Record { record }).collect();
            let bytes: Vec<u8> = said.iter().flat_map(|one| Body::of(one).line(&mut node)).collect();
            let (mut lines, mut heard) = (Lines::default(), Vec::new());
            for piece in bytes.chunks(step) {
                lines.feed(piece);
                while let Some(one) = lines.next_said::<FromNode>(&mut master).unwrap() {
                    heard.push(one);
                }
            }
            prop_assert_eq!(heard, said);
        }
    }

    #[test]
    fn what_breaks_the_rules_is_told_apart() {
        let heard = |bytes: &[u8], key| {
            let mut lines = Lines::default();
            lines.feed(bytes);
            lines.next_said::<FromNode>(&mut Seal::new(key, "n", "m", Side::Master))
        };
        assert_eq!(heard(b"{\"say\":\"ping\"}\n", None), Ok(Some(FromNode::Ping)));
        assert_eq!(heard(b"{\"say\":\"ping\"}\n", Some("k")), Err(Broken::Unproved));
        assert_eq!(heard(b"{\"say\":\"what\"}\n", None), Err(Broken::Unknown));
        assert_eq!(heard(&vec![b'x'; MAX_LINE + 1], None), Err(Broken::TooLong));
    }

    #[test]
    fn ids_are_short_words() {
        assert!(["a", "paddle:aaaaaa", "A-z_0.9"].iter().all(|id| is_id(id)) && is_id(&"x".repeat(64)));
        assert!(["", "a b", "a/b", "é", "a\n"].iter().all(|id| !is_id(id)) && !is_id(&"x".repeat(65)));
    }
}
