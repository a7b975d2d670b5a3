//! What the master does with its connections: links of nodes, and Paddle's key-value protocol.

use super::config::MasterConfig;
use super::connection::MasterConnection;
use super::kv::{KvChange, KvStore};
use super::links::{JobLinks, refuse};
use crate::model::plain_text::escape;
use crate::net::server::MemoryBudget;
use crate::net::server::{ConnectionEnd, Socket};
use crate::net::server::{ConnectionId, Connections};
use crate::net::server::{Handled, Service};
use crate::protocol::{CoordinatorLogic, Departure};
use crate::rendezvous::master::frame::{self, FrameError};
use crate::rendezvous::master::http::{self, HttpMessage, HttpParser};
use nix::sys::socket::{setsockopt, sockopt};
use std::collections::BTreeSet;
use std::io;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;
use tracing::warn;

/// How long a request may take to arrive, and a response to be sent.
const REQUEST: Duration = Duration::from_secs(30);
/// Different warnings that are logged at most.
const MAX_WARNINGS: usize = 64;
/// Bodies up to this length are sent together with their heads.
const SMALL_BODY: usize = 16 * 1024;

/// Ends the server when no node needs it, or after this time.
pub(super) struct CloseWithin(pub(super) Duration);

/// The master of one job.
pub(super) struct MasterService {
    lease: Duration,
    has_key: bool,
    links: JobLinks,
    kv: KvStore,
    /// How long it serves on, once it is to end.
    patience: Option<Duration>,
    close_by: Option<Duration>,
    warned: BTreeSet<String>,
}

impl MasterService {
    pub(super) fn new(
        config: MasterConfig,
        coordinator: Box<dyn CoordinatorLogic>,
        budget: MemoryBudget,
    ) -> io::Result<Self> {
        Ok(Self {
            lease: config.lease,
            has_key: config.key.is_some(),
            kv: KvStore::new(&config.job),
            links: JobLinks::new(config, coordinator, budget)?,
            patience: None,
            close_by: None,
            warned: BTreeSet::new(),
        })
    }

    /// See `JobLinks::presence`.
    pub(super) fn presence(&self) -> (String, Arc<AtomicBool>) {
        self.links.presence()
    }

    /// Sends what the coordinator has decided to all nodes.
    fn publish(&mut self, connections: &mut Connections<MasterConnection>, now: Duration) {
        while let Some(publication) = self.links.coordinator.turn(now) {
            self.kv.note_publication(&publication, &self.links.coordinator.shown_to_paddle());
            self.links.publish(connections, publication);
        }
    }

    /// Passes a change of the key-value store to the coordinator.
    fn pass_change(&mut self, change: KvChange, now: Duration) {
        match change {
            KvChange::Put { id, record } => self.links.coordinator.record(&id, &record, now),
            KvChange::Gone { id, age } => {
                let departure = if age.is_zero() { Departure::Left } else { Departure::Lapsed { age } };
                self.links.coordinator.gone(&id, departure, now);
            }
        }
    }

    fn expire_launchers(&mut self, now: Duration) {
        for change in self.kv.expire(now) {
            self.pass_change(change, now);
        }
    }

    fn handle_request(
        &mut self,
        connections: &mut Connections<MasterConnection>,
        id: ConnectionId,
        request: &HttpMessage,
        now: Duration,
    ) {
        let [method, path, _] = &request.first;
        if method == "GET" && path == frame::PATH && request.upgrades_to(frame::PROTOCOL) {
            if let Some(connection) = connections.get_mut(id) {
                self.links.upgrade(connection, request);
            }
            return;
        }
        let (status, body) = if self.has_key && !(method == "GET" && path == "/healthy") {
            self.warn_once(
                "refused a launcher that speaks Paddle's key-value protocol: the job has a secret (RLAUNCH_JOB_SECRET), which that \
                 protocol cannot prove; start all nodes with rlaunch"
                    .to_owned(),
            );
            let why = "this job has a secret, which Paddle's own launchers cannot prove: start all nodes with rlaunch, and set \
                       RLAUNCH_JOB_SECRET to the same secret on all of them\n";
            (401, why.into())
        } else {
            self.handle_kv_request(connections, request, now)
        };
        let Some(connection) = connections.get_mut(id) else { return };
        let keep_alive = request.keeps_alive();
        let body = if method == "HEAD" { Vec::new() } else { body };
        let mut head = http::response_head(status, body.len(), keep_alive);
        if body.len() <= SMALL_BODY {
            head.extend_from_slice(&body);
            connection.push(head);
        } else {
            connection.push(head);
            connection.push(body);
        }
        if !keep_alive {
            connection.close_when_sent();
        }
    }

    /// Handles a request of Paddle's key-value protocol, and returns the status and the body of the response.
    fn handle_kv_request(
        &mut self,
        connections: &mut Connections<MasterConnection>,
        request: &HttpMessage,
        now: Duration,
    ) -> (u16, Vec<u8>) {
        let path = &request.first[1];
        let (status, change) = match request.first[0].as_str() {
            "GET" => {
                let found = self.kv.get(path, &self.links.coordinator.shown_to_paddle());
                return found.map_or((404, Vec::new()), |body| (200, body));
            }
            "POST" | "PUT" => self.kv.put(path, request.body.clone(), now),
            "DELETE" => self.kv.delete(path),
            "HEAD" => (405, None),
            _ => (501, None),
        };
        if status == 409 {
            let name = path.rsplit('/').nth(1).unwrap_or_default();
            self.warn_once(format!(
                "{name}, a node that Paddle's own launcher has started, has come too late: the job runs without it"
            ));
        }
        let Some(change) = change else { return (status, Vec::new()) };
        self.pass_change(change.clone(), now);
        self.expire_launchers(now);
        self.publish(connections, now);
        match self.kv.refusal_of(&change) {
            Some(why) => {
                let text = format!("a node that Paddle's own launcher has started cannot take part: {why}");
                self.warn_once(text);
                (409, Vec::new())
            }
            None => (status, Vec::new()),
        }
    }

    /// Paddle's launcher repeats a refused request ten times a second.
    fn warn_once(&mut self, text: String) {
        if self.warned.len() < MAX_WARNINGS && !self.warned.contains(&text) {
            warn!("{}", escape(&text));
            self.warned.insert(text);
        }
    }

    /// Whether no node needs the master any more.
    fn is_over(&self, now: Duration) -> bool {
        self.close_by.is_some_and(|until| {
            now >= until || self.links.coordinator.is_over() || self.links.are_gone() && !self.kv.is_awaited()
        })
    }
}

impl Service for MasterService {
    type State = MasterConnection;
    type Command = CloseWithin;

    fn accept(&mut self, socket: &Socket) -> io::Result<MasterConnection> {
        setsockopt(socket.tcp()?, sockopt::KeepAlive, &true)?;
        Ok(MasterConnection::Http(HttpParser::of_requests()))
    }

    fn opened(&mut self, connections: &mut Connections<MasterConnection>, id: ConnectionId, now: Duration) {
        connections.set_deadline(id, now + REQUEST);
    }

    fn handle_next(
        &mut self,
        connections: &mut Connections<MasterConnection>,
        id: ConnectionId,
        now: Duration,
    ) -> Handled {
        let Some(connection) = connections.get_mut(id) else { return Handled::Incomplete };
        match &mut connection.state {
            MasterConnection::Http(parser) => {
                match parser.next_message() {
                    Ok(None) => return Handled::Incomplete,
                    Ok(Some(request)) => {
                        connections.set_deadline(id, now + REQUEST);
                        self.handle_request(connections, id, &request, now);
                    }
                    Err(error) => {
                        connection.push(http::response_head(error.status(), 0, false));
                        connection.close_when_sent();
                    }
                }
                connections.flush(id);
            }
            MasterConnection::Link(link) => match link.reader.next_message(&mut link.auth) {
                Ok(None) => return Handled::Incomplete,
                Ok(Some(message)) => {
                    self.links.handle_message(connections, id, message, now);
                    let has_joined = connections.get_mut(id).is_some_and(|link| link.state.node_link().is_some());
                    connections.set_deadline(id, now + if has_joined { self.lease } else { REQUEST });
                }
                Err(FrameError::Unauthenticated) => {
                    refuse(
                        connection,
                        "it does not have the job's secret: set RLAUNCH_JOB_SECRET to the same secret on all nodes",
                    );
                }
                Err(FrameError::TooLong | FrameError::Malformed) => return Handled::Violation,
            },
        }
        Handled::Request
    }

    fn closed(&mut self, id: ConnectionId, state: MasterConnection, end: ConnectionEnd, now: Duration) {
        self.links.closed(id, &state, end, now);
    }

    fn timed_out(&mut self, connections: &mut Connections<MasterConnection>, id: ConnectionId, now: Duration) {
        if let Some(connection) = connections.get_mut(id) {
            self.links.timed_out(connection, now);
        }
    }

    fn command(
        &mut self,
        _: &mut Connections<MasterConnection>,
        CloseWithin(patience): CloseWithin,
    ) -> ControlFlow<()> {
        self.patience = Some(patience);
        ControlFlow::Continue(())
    }

    fn before_wait(&mut self, connections: &mut Connections<MasterConnection>, now: Duration) -> ControlFlow<()> {
        if let Some(patience) = self.patience.take() {
            self.close_by = Some(now + patience);
        }
        self.links.expire_disconnected(now);
        self.expire_launchers(now);
        self.publish(connections, now);
        if self.is_over(now) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    /// Nodes send ten messages in each lease.
    fn longest_turn(&self) -> Option<Duration> {
        self.links.has_nodes().then_some(self.lease / 8)
    }

    fn next_deadline(&self) -> Option<Duration> {
        let own = [self.links.coordinator.next_deadline(), self.links.next_deadline(), self.kv.next_deadline()];
        own.into_iter().chain([self.close_by]).flatten().min()
    }
}
