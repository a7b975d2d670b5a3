//! The links of nodes: what the master does with their messages, and what it sends to them.

use super::config::MasterConfig;
use super::connection::{MasterConnection, NodeLink};
use crate::net::server::Connection;
use crate::net::server::ConnectionEnd;
use crate::net::server::MemoryBudget;
use crate::net::server::{ConnectionId, Connections};
use crate::protocol::{CoordinatorLogic, Departure, Publication};
use crate::rendezvous::lease::next_number;
use crate::rendezvous::master::auth::{self, LinkAuth, LinkSide};
use crate::rendezvous::master::frame::{self, FromMaster, FromNode, SharedBody};
use crate::rendezvous::master::http::{self, HttpMessage, HttpParser};
use crate::rendezvous::questions::{MAX_ANSWER, MAX_QUESTION};
use std::collections::HashMap;
use std::io;
use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// How long a node whose link was closed may take to come back before it is considered gone; at most a twentieth of the lease.
const RECONNECT: Duration = Duration::from_millis(250);
/// The same after a reset; at most a fifth of the lease, and no longer than what is left of it.
const RECONNECT_AFTER_RESET: Duration = Duration::from_secs(10);
const PART_OF_LEASE: u32 = 20;

/// Bytes that may wait for a node with a question or an answer among them.
const MAX_QUESTIONS_WAITING: usize = 8 << 20;

/// No line's signature is longer, bytes.
const SIGNATURE: usize = 128;

/// A node whose link has broken, and that may come back.
struct DisconnectedNode {
    /// When the coordinator considers it gone; `None`: it does. Its lease goes on: no round begins before that has lapsed.
    until: Option<Duration>,
    /// Memory for its record, bytes; 0 once it is gone.
    record_cost: usize,
    /// The number of its lease.
    lease: u16,
    /// When it was last heard from.
    heard: Duration,
}

/// All links of a job, and the coordinator behind them.
pub(super) struct JobLinks {
    config: MasterConfig,
    pub(super) coordinator: Box<dyn CoordinatorLogic>,
    /// Random: tells this master from another at the same address.
    instance: String,
    /// The last state with its members, for nodes that join.
    published: Option<SharedBody>,
    members: Option<String>,
    by_node: HashMap<String, ConnectionId>,
    disconnected: HashMap<String, DisconnectedNode>,
    /// The number of the last lease.
    leases: u16,
    budget: MemoryBudget,
    /// Set once a node has joined.
    has_joined: Arc<AtomicBool>,
}

impl JobLinks {
    pub(super) fn new(
        config: MasterConfig,
        coordinator: Box<dyn CoordinatorLogic>,
        budget: MemoryBudget,
    ) -> io::Result<Self> {
        Ok(Self {
            config,
            coordinator,
            instance: auth::nonce()?,
            published: None,
            members: None,
            by_node: HashMap::new(),
            disconnected: HashMap::new(),
            leases: 0,
            budget,
            has_joined: Arc::default(),
        })
    }

    /// What tells this master from others, and whether a node has joined it.
    pub(super) fn presence(&self) -> (String, Arc<AtomicBool>) {
        (self.instance.clone(), Arc::clone(&self.has_joined))
    }

    /// Whether nodes have links, or may come back.
    pub(super) fn has_nodes(&self) -> bool {
        !self.are_gone()
    }

    /// Whether no node has a link, and none may come back.
    pub(super) fn are_gone(&self) -> bool {
        self.by_node.is_empty() && self.disconnected.values().all(|node| node.until.is_none())
    }

    /// When the first disconnected node is considered gone.
    pub(super) fn next_deadline(&self) -> Option<Duration> {
        self.disconnected.values().filter_map(|node| node.until).min()
    }

    /// Sends the coordinator's decision to all nodes.
    pub(super) fn publish(&mut self, connections: &mut Connections<MasterConnection>, publication: Publication) {
        let Publication { state, members, .. } = publication;
        let body = state_message(state.clone(), members.clone());
        self.members = members.or(self.members.take());
        self.published = Some(state_message(state, self.members.clone()));
        for id in self.by_node.values() {
            if let Some(connection) = connections.get_mut(*id) {
                push_message(connection, &body);
            }
        }
    }

    /// Makes a link of an HTTP connection.
    pub(super) fn upgrade(&self, connection: &mut Connection<MasterConnection>, request: &HttpMessage) {
        let (Some(theirs), Ok(own)) = (request.header(frame::NONCE), auth::nonce()) else {
            connection.push(http::response_head(400, 0, false));
            return connection.close_when_sent();
        };
        let mut auth = LinkAuth::new(self.config.key.as_deref(), theirs, &own, LinkSide::Master);
        let keyed = if self.config.key.is_some() { "yes" } else { "no" };
        let head = format!(
            "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: {}\r\n{}: {own}\r\n{}: {keyed}\r\n{}: {}\r\n\r\n",
            frame::PROTOCOL,
            frame::NONCE,
            frame::KEYED,
            frame::INSTANCE,
            self.instance
        );
        connection.push(head.into_bytes());
        let version = env!("CARGO_PKG_VERSION").to_owned();
        let lease_ms = u64::try_from(self.config.lease.as_millis()).unwrap_or(u64::MAX);
        let (job, instance) = (self.config.job.clone(), self.instance.clone());
        connection.push(SharedBody::of(&FromMaster::Hello { version, job, instance, lease_ms }).line(&mut auth));
        let parser = HttpParser::of_requests();
        let before = std::mem::replace(&mut connection.state, MasterConnection::Http(parser));
        if let MasterConnection::Http(parser) = before {
            connection.state = MasterConnection::Link(NodeLink::new(auth, &parser.into_rest()));
        }
    }

    /// Handles a message of a node.
    pub(super) fn handle_message(
        &mut self,
        connections: &mut Connections<MasterConnection>,
        id: ConnectionId,
        message: FromNode,
        now: Duration,
    ) {
        let Some(connection) = connections.get_mut(id) else { return };
        let MasterConnection::Link(link) = &mut connection.state else { return };
        link.heard = now;
        match (link.id.clone(), message) {
            (None, FromNode::Hello { job, .. }) if job != self.config.job => {
                refuse(connection, &format!("it is of job {job}, and this is the master of job {}", self.config.job));
            }
            (None, FromNode::Hello { id: node, .. }) if !frame::is_id(&node) => {
                refuse(connection, "its id is not a valid id");
            }
            (_, FromNode::Hello { record, .. } | FromNode::Record { record }) if record.len() > frame::MAX_RECORD => {
                refuse(connection, "its record is too long");
            }
            (None, FromNode::Hello { id: node, record, .. }) => {
                link.id = Some(node.clone());
                link.count_record(&record);
                self.has_joined.store(true, Ordering::Release);
                let disconnected = self.forget_disconnected(&node, now);
                // The node has come back before its old connection was seen to close.
                let replaced = self.by_node.insert(node.clone(), id);
                let old = replaced.and_then(|old| connections.get_mut(old)?.state.node_link());
                let lease = disconnected.or(old.map(|(_, link)| link.lease)).unwrap_or_else(|| {
                    self.leases = next_number(self.leases);
                    self.leases
                });
                if let Some(old) = replaced {
                    connections.close(old);
                }
                connections.protect(id);
                if let Some(connection) = connections.get_mut(id) {
                    if let MasterConnection::Link(link) = &mut connection.state {
                        link.lease = lease;
                    }
                    if let Some(state) = &self.published {
                        push_message(connection, state);
                    }
                    push_message(connection, &SharedBody::of(&FromMaster::Pong { lease }));
                }
                self.coordinator.record(&node, &record, now);
            }
            (Some(node), FromNode::Record { record }) => {
                link.count_record(&record);
                self.coordinator.record(&node, &record, now);
            }
            (Some(_), FromNode::Ping) => {
                let lease = link.lease;
                push_message(connection, &SharedBody::of(&FromMaster::Pong { lease }));
            }
            (Some(asker), FromNode::Ask { number, to, text }) => {
                if link.asks.allow(now) {
                    self.pass_question(connections, to, FromMaster::Asked { asker, number, text });
                }
            }
            (Some(node), FromNode::Answer { asker, number, text }) => {
                self.pass_answer(connections, &asker, FromMaster::Answered { number, node, text });
            }
            (Some(_), FromNode::Leave) => {
                link.has_left = true;
                connection.close_when_sent();
            }
            (Some(_), FromNode::Hello { .. }) | (None, _) => connection.close_when_sent(),
        }
    }

    /// Passes a question on to the node with this id, or to all other nodes.
    fn pass_question(&self, connections: &mut Connections<MasterConnection>, to: Option<String>, question: FromMaster) {
        let FromMaster::Asked { asker, text, .. } = &question else { return };
        if text.len() > MAX_QUESTION {
            return;
        }
        let is_asked = |node: &String| node != asker && to.as_ref().is_none_or(|to| node == to);
        let asked = self.by_node.iter().filter(|(node, _)| is_asked(node)).map(|(_, id)| *id);
        let asked: Vec<ConnectionId> = asked.collect();
        let body = SharedBody::of(&question);
        for id in asked {
            self.push_if_roomy(connections, id, &body);
        }
    }

    /// Passes an answer on to the node that has asked, if it is still there.
    fn pass_answer(&self, connections: &mut Connections<MasterConnection>, asker: &str, answer: FromMaster) {
        let body = SharedBody::of(&answer);
        if let Some(id) = self.by_node.get(asker).filter(|_| body.text.len() <= 2 * MAX_ANSWER) {
            self.push_if_roomy(connections, *id, &body);
        }
    }

    /// Sends what may be lost to a node. If there is little room, it is lost: states and pongs come first.
    fn push_if_roomy(&self, connections: &mut Connections<MasterConnection>, id: ConnectionId, body: &SharedBody) {
        let Some(connection) = connections.get_mut(id) else { return };
        let length = body.text.len();
        let is_roomy = connection.backlog() + length <= MAX_QUESTIONS_WAITING && self.budget.check(2 * length).is_ok();
        if let MasterConnection::Link(link) = &mut connection.state
            && is_roomy
            && link.id.is_some()
        {
            let line = body.line(&mut link.auth);
            connection.push(line);
        }
    }

    /// A link was closed. `by_service`: the node left, or was refused.
    pub(super) fn closed(&mut self, id: ConnectionId, state: &MasterConnection, end: ConnectionEnd, now: Duration) {
        let Some((node, link)) = state.node_link() else { return };
        let NodeLink { record_cost, lease, heard, has_left, .. } = *link;
        // The node may have another link by now.
        if self.by_node.get(node) != Some(&id) {
            return;
        }
        self.by_node.remove(node);
        // If the connection was closed, the launcher of the node has probably ended: one that is cut off would only send nothing.
        // But something between the two machines may have closed it as well.
        if has_left {
            self.coordinator.gone(node, Departure::Left, now);
        } else if end == ConnectionEnd::ByService || self.budget.reserve(record_cost).is_err() {
            self.coordinator.gone(node, Departure::Disconnected { age: now.saturating_sub(heard) }, now);
        } else {
            let lease_part = self.config.lease / PART_OF_LEASE;
            let after_reset =
                (4 * lease_part).min(RECONNECT_AFTER_RESET).min((heard + self.config.lease).saturating_sub(now));
            let time = RECONNECT.min(lease_part);
            let until = Some(now + if end == ConnectionEnd::Reset { after_reset.max(time) } else { time });
            let disconnected = DisconnectedNode { until, record_cost, lease, heard };
            self.disconnected.insert(node.to_owned(), disconnected);
        }
    }

    /// The node of a link has sent nothing for a lease.
    pub(super) fn timed_out(&mut self, connection: &Connection<MasterConnection>, now: Duration) {
        if let Some((node, _)) = connection.state.node_link() {
            let age = self.config.lease + now.saturating_sub(connection.deadline());
            self.by_node.remove(node);
            self.coordinator.gone(node, Departure::Lapsed { age }, now);
        }
    }

    /// Considers disconnected nodes gone that have not come back in time.
    pub(super) fn expire_disconnected(&mut self, now: Duration) {
        let lease = self.config.lease;
        // Strangers may come and go as often as they like.
        let is_full = self.disconnected.len() > self.config.connections;
        self.disconnected.retain(|_, node| node.until.is_some() || !is_full && now < node.heard + lease);
        for (id, node) in &mut self.disconnected {
            if node.until.is_some_and(|until| now >= until) {
                node.until = None;
                self.budget.release(mem::take(&mut node.record_cost));
                self.coordinator.gone(id, Departure::Disconnected { age: now.saturating_sub(node.heard) }, now);
            }
        }
    }

    /// Returns the number of its lease, if that has not lapsed while the node was disconnected.
    fn forget_disconnected(&mut self, node: &str, now: Duration) -> Option<u16> {
        let DisconnectedNode { record_cost, lease, heard, .. } = self.disconnected.remove(node)?;
        self.budget.release(record_cost);
        (now < heard + self.config.lease).then_some(lease)
    }
}

/// A state as nodes receive it; why there is none, if they could not read it.
fn state_message(state: String, members: Option<String>) -> SharedBody {
    let body = SharedBody::of(&FromMaster::State { state, members });
    let (length, most) = (body.text.len() + SIGNATURE, frame::MAX_LINE);
    if length <= most {
        return body;
    }
    let why = format!(
        "the list of this job's nodes has {length} bytes, and a message {most} at most; start fewer nodes or ranks, or use etcd"
    );
    SharedBody::of(&FromMaster::Refused { why })
}

/// Closes a link for good, and sends the reason.
pub(super) fn refuse(connection: &mut Connection<MasterConnection>, why: &str) {
    push_message(connection, &SharedBody::of(&FromMaster::Refused { why: why.to_owned() }));
    connection.close_when_sent();
}

fn push_message(connection: &mut Connection<MasterConnection>, body: &SharedBody) {
    if let MasterConnection::Link(link) = &mut connection.state {
        let signature = body.signature(&mut link.auth);
        connection.push(signature);
        connection.push_shared(body.text.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_receive_why_a_list_cannot_be_sent() {
        let text = |length: usize| {
            let body = state_message("{}".into(), Some("x".repeat(length)));
            String::from_utf8_lossy(&body.text).into_owned()
        };
        assert!(text(1000).contains(r#""members":"xxx"#));
        let refused = text(frame::MAX_LINE);
        assert!(refused.len() < 1000 && refused.contains("the list of this job's nodes has"), "{refused}");
    }
}
