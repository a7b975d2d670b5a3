//! What the master keeps of one connection: HTTP requests, or a node's link.

use crate::net::server::ConnectionState;
use crate::rendezvous::master::auth::LinkAuth;
use crate::rendezvous::master::frame::FrameReader;
use crate::rendezvous::master::http::HttpParser;
use crate::rendezvous::questions::AskLimit;
use std::sync::Arc;
use std::time::Duration;

/// A node that lets more wait does not read any more, bytes.
const MAX_BACKLOG: usize = 32 * 1024 * 1024;
/// How many times its text's length a parsed record may need: an empty string of three bytes needs 24.
const PARSED_FACTOR: usize = 8;

/// The protocol of a connection.
#[derive(Debug)]
pub enum MasterConnection {
    /// Requests of HTTP: of Paddle's key-value protocol, or for a link.
    Http(HttpParser),
    /// A node's link.
    Link(NodeLink),
}

/// The master's end of a link.
#[derive(Debug)]
pub struct NodeLink {
    /// Received bytes.
    pub reader: FrameReader,
    /// Signs and verifies lines.
    pub auth: LinkAuth,
    /// The node, once it has said hello.
    pub id: Option<String>,
    /// Memory for the node's record, bytes.
    pub record_cost: usize,
    /// The number of the node's lease.
    pub lease: u16,
    /// When the node was last heard from.
    pub heard: Duration,
    /// Whether it has said that it leaves.
    pub has_left: bool,
    /// How often it asks.
    pub asks: AskLimit,
}

impl NodeLink {
    /// A link whose first bytes may have arrived.
    pub fn new(auth: LinkAuth, rest: &[u8]) -> Self {
        let mut reader = FrameReader::default();
        reader.feed(rest);
        let heard = Duration::ZERO;
        Self { reader, auth, id: None, record_cost: 0, lease: 0, heard, has_left: false, asks: AskLimit::default() }
    }

    /// Counts the memory of the node's record.
    pub fn count_record(&mut self, record: &str) {
        self.record_cost = record.len() * PARSED_FACTOR;
    }
}

impl MasterConnection {
    /// The node's link, if this is one and the node has said hello.
    pub fn node_link(&self) -> Option<(&str, &NodeLink)> {
        match self {
            Self::Link(link) => Some((link.id.as_deref()?, link)),
            Self::Http(_) => None,
        }
    }
}

impl ConnectionState for MasterConnection {
    type Shared = Arc<[u8]>;

    fn feed(&mut self, bytes: &[u8]) {
        match self {
            Self::Http(parser) => parser.feed(bytes),
            Self::Link(link) => link.reader.feed(bytes),
        }
    }

    fn held(&self) -> usize {
        match self {
            Self::Http(parser) => parser.held(),
            Self::Link(link) => link.reader.held() + link.record_cost,
        }
    }

    /// An HTTP request waits until the response to the last one is sent.
    fn may_handle(&self, backlog: usize) -> bool {
        backlog == 0 || matches!(self, Self::Link(_))
    }

    fn max_backlog(&self) -> usize {
        if self.node_link().is_some() { MAX_BACKLOG } else { usize::MAX }
    }
}
