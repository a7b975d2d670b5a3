//! A node's connection with the others: a client of node 0's store, and on node 0 the store itself.

use crate::model::plain_text::escape;
use crate::net::deadline::TimeLeft;
use crate::net::tcp::{SLICE, wait};
use crate::protocol::JobEnd;
use crate::rendezvous::torch_static::codec;
use crate::rendezvous::torch_static::codec::{RankNumbers, RankNumbersError, StaticNodeInfo};
use crate::rendezvous::torch_static::node_registry::{NodeRegistry, RegistryChange};
use crate::rendezvous::torch_store::client::{StoreClient, wire_key};
use crate::rendezvous::torch_store::{PausedServer, StoreEvent, StoreLimits, StoreServer, StoreWatch};
use crossbeam_channel::{Receiver, bounded};
use nix::poll::PollFlags;
use nix::sys::eventfd::{EfdFlags, EventFd};
use std::io;
use std::net::{IpAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

/// Events that may wait, beside a few for each node.
const MAX_EVENTS: usize = 4096;
/// How long the store may take for a request that it answers at once.
pub(super) const REQUEST: Duration = Duration::from_secs(5);
/// How long node 0 waits for others to disconnect once they may, or to learn how the job ended.
pub(super) const DISCONNECT: Duration = Duration::from_secs(2);
/// How often a node's number may be found taken: the node that had it may just have left.
const MAX_ATTEMPTS: u32 = 20;
const ATTEMPT_PAUSE: Duration = Duration::from_millis(100);

/// A node of a static rendezvous. After a fork both processes have it: one of them has to drop it.
pub struct StaticPeers {
    pub(super) node: usize,
    nnodes: usize,
    pub(super) run_id: String,
    /// Where the store is.
    pub(super) address: (String, u16),
    pub(super) client: StoreClient,
    pub(super) host: Option<Box<StoreHost>>,
    /// Another node's connection that waits for the end of the job, if it can be had. Node 0 sees it in its registry.
    pub(super) listener: Option<StoreClient>,
    /// It waits still.
    pub(super) is_waiting: bool,
    pub(super) end: Option<Box<JobEnd>>,
}

/// What node 0 has in addition.
pub(super) struct StoreHost {
    server: Option<ServedStore>,
    events: Receiver<StoreEvent>,
    pub(super) events_ready: Arc<EventFd>,
    pub(super) registry: NodeRegistry,
}

enum ServedStore {
    Running(StoreServer),
    Paused(Box<PausedServer>),
}

/// What has happened while workers run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PeerEvent {
    /// A node has disconnected before its workers had exited successfully; with the reason that it gave.
    Lost(usize, Option<String>),
    /// Another node has reported how the job ended.
    JobEnded(JobEnd),
    /// Node 0's store is lost.
    StoreGone,
}

impl StaticPeers {
    /// Node 0: serves the store.
    pub fn serve(
        (listeners, limits): (Vec<TcpListener>, StoreLimits),
        run_id: &str,
        nnodes: usize,
        left: TimeLeft<'_>,
    ) -> io::Result<Self> {
        let at = listeners.first().ok_or_else(|| io::Error::other("nowhere to listen"))?.local_addr()?;
        let events_ready = Arc::new(EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?);
        let (sender, events) = bounded(MAX_EVENTS + 4 * nnodes);
        let prefix = wire_key(run_id, codec::ALL);
        let watch = StoreWatch { prefix, events: sender, events_ready: Arc::clone(&events_ready) };
        let server = StoreServer::start_with(listeners, limits, Some(watch))?;
        let client = StoreClient::connect(&at.ip().to_string(), at.port(), left)?;
        let host = StoreHost {
            server: Some(ServedStore::Running(server)),
            events,
            events_ready,
            registry: NodeRegistry::new(nnodes),
        };
        let run_id = run_id.to_owned();
        let mut nodes = Self {
            node: 0,
            nnodes,
            run_id,
            address: (at.ip().to_string(), at.port()),
            client,
            host: Some(Box::new(host)),
            listener: None,
            is_waiting: false,
            end: None,
        };
        nodes.publish_missing(left)?;
        Ok(nodes)
    }

    /// Another node: connects, as soon as the store listens.
    pub fn connect(
        (host, port): (&str, u16),
        run_id: &str,
        (node, nnodes): (usize, usize),
        left: TimeLeft<'_>,
    ) -> io::Result<Self> {
        let client = StoreClient::connect(host, port, left)?;
        Ok(Self {
            node,
            nnodes,
            run_id: run_id.to_owned(),
            address: (host.to_owned(), port),
            client,
            host: None,
            listener: None,
            is_waiting: false,
            end: None,
        })
    }

    pub(super) fn key(&self, name: &str) -> Vec<u8> {
        wire_key(&self.run_id, name)
    }

    /// Registers this node. `Ok(false)`: another node has its number, as far as that can be known.
    pub fn register(&mut self, info: &StaticNodeInfo, left: TimeLeft<'_>) -> io::Result<bool> {
        let own = self.key(&format!("{}{}", codec::INFO, self.node));
        // Only rlaunch deletes the information of a node that has left.
        if self.client.check(&[&self.key(codec::MISSING)], left)? {
            let mut attempts = 0;
            while self.client.check(&[&own], left)? {
                attempts += 1;
                if attempts > MAX_ATTEMPTS {
                    return Ok(false);
                }
                self.pause(ATTEMPT_PAUSE, left)?;
            }
        }
        self.client.add(codec::COUNT, 1, left)?;
        self.client.set(&own, &info.encode(self.node), left)?;
        Ok(true)
    }

    /// Lets time pass; an error if the store closes the connection meanwhile.
    fn pause(&mut self, time: Duration, left: TimeLeft<'_>) -> io::Result<()> {
        match self.client.wait(&[&self.key("torchelastic/rlaunch/never")], &mut capped(time, left)) {
            Err(error) if error.kind() == io::ErrorKind::TimedOut => Ok(()),
            other => other,
        }
    }

    /// Waits for this node's rank numbers, for `time` at most; `None`: node 0 has not assigned them yet.
    pub fn wait_numbers(
        &mut self,
        time: Duration,
        left: TimeLeft<'_>,
    ) -> io::Result<Option<Result<RankNumbers, RankNumbersError>>> {
        let key = self.key(&format!("{}{}", codec::NUMBERS, self.node));
        match self.client.wait(&[&key], &mut capped(time, left)) {
            Err(error) if error.kind() == io::ErrorKind::TimedOut => return Ok(None),
            other => other?,
        }
        Ok(Some(RankNumbers::decode(&self.client.get(&key, left)?)))
    }

    /// The nodes that have not joined yet, if node 0 publishes them.
    pub fn published_missing(&mut self, left: TimeLeft<'_>) -> io::Result<Option<String>> {
        let key = self.key(codec::MISSING);
        if !self.client.check(&[&key], left)? {
            return Ok(None);
        }
        let text = self.client.get(&key, left)?;
        Ok(Some(escape(&String::from_utf8_lossy(&text)).chars().take(500).collect()))
    }

    /// On node 0: waits for changes, for `time` at most.
    pub fn wait_changes(&mut self, time: Duration, left: TimeLeft<'_>) -> io::Result<Vec<RegistryChange>> {
        let Some(host) = &self.host else { return Ok(Vec::new()) };
        match wait(host.events_ready.as_fd(), PollFlags::POLLIN, &mut capped(time, left)) {
            Err(error) if error.kind() == io::ErrorKind::TimedOut => return Ok(Vec::new()),
            other => other?,
        }
        let changes = self.take_changes();
        for change in &changes {
            if let RegistryChange::LeftEarly(node) = change {
                self.client.delete(&self.key(&format!("{}{node}", codec::INFO)), left)?;
            }
        }
        if !changes.is_empty() {
            self.publish_missing(left)?;
        }
        Ok(changes)
    }

    pub(super) fn take_changes(&mut self) -> Vec<RegistryChange> {
        let Some(host) = &mut self.host else { return Vec::new() };
        let _ = host.events_ready.read();
        host.events.try_iter().filter_map(|event| host.registry.note_event(&event)).collect()
    }

    fn publish_missing(&mut self, left: TimeLeft<'_>) -> io::Result<()> {
        let missing = codec::format_nodes(&self.missing());
        self.client.set(&self.key(codec::MISSING), missing.as_bytes(), left)
    }

    /// On node 0: the nodes that have not joined.
    pub fn missing(&self) -> Vec<usize> {
        self.host.as_ref().map(|host| host.registry.missing()).unwrap_or_default()
    }

    /// On node 0: assigns the rank numbers once all nodes have joined, and returns its own. The store is paused then, until
    /// `resume_store`.
    pub fn assign_numbers(&mut self, left: TimeLeft<'_>) -> io::Result<Option<RankNumbers>> {
        let Some(all) = self.host.as_mut().and_then(|host| host.registry.complete()) else { return Ok(None) };
        let numbers = codec::assign_numbers(&all);
        for (node, numbers) in numbers.iter().enumerate() {
            self.client.set(&self.key(&format!("{}{node}", codec::NUMBERS)), &numbers.encode(), left)?;
        }
        // When the store has answered this, it has set the keys.
        self.client.check(&[codec::COUNT], left)?;
        if let Some(host) = &mut self.host
            && let Some(ServedStore::Running(server)) = host.server.take()
        {
            host.server = Some(ServedStore::Paused(Box::new(server.pause()?)));
        }
        Ok(numbers.first().copied())
    }

    /// On node 0: cancels the rendezvous, and waits a moment until the nodes have read the reason.
    pub fn cancel(&mut self, why: &str) {
        let text = serde_json::Value::from(why).to_string();
        let mut left = patience(DISCONNECT);
        for node in 1..self.nnodes {
            let key = self.key(&format!("{}{node}", codec::NUMBERS));
            if self.client.set(&key, text.as_bytes(), &mut left).is_err() {
                return;
            }
        }
        self.wait_until_gone();
    }

    /// Waits a moment until all others have disconnected.
    fn wait_until_gone(&mut self) {
        let mut left = patience(DISCONNECT);
        while let Some(host) = &self.host
            && host.registry.has_others()
        {
            if wait(host.events_ready.as_fd(), PollFlags::POLLIN, &mut left).is_err() {
                return;
            }
            self.take_changes();
        }
    }

    /// This machine's address towards the store.
    pub fn local_address(&self) -> io::Result<IpAddr> {
        self.client.local_address()
    }

    /// Resumes the store, in this process.
    pub fn resume_store(&mut self) -> io::Result<()> {
        if let Some(host) = &mut self.host
            && let Some(ServedStore::Paused(paused)) = host.server.take()
        {
            host.server = Some(ServedStore::Running(paused.resume()?));
        }
        Ok(())
    }

    /// This node's number.
    pub fn node(&self) -> usize {
        self.node
    }

    /// Takes the events, once the descriptor is readable.
    pub fn take_events(&mut self) -> Vec<PeerEvent> {
        if self.host.is_none() {
            return self.learn_end();
        }
        let changes = self.take_changes();
        let event = |change| match change {
            RegistryChange::Lost(node, why) => Some(PeerEvent::Lost(node, why)),
            RegistryChange::JobEnded => self.read_end().map(PeerEvent::JobEnded),
            _ => None,
        };
        changes.into_iter().filter_map(event).collect()
    }

    /// Reports that this node's workers have exited successfully. Whether this node has to wait for the others, which need its store.
    pub fn report_success(&mut self) -> bool {
        let mut left = patience(REQUEST);
        let (count, all) = (self.key(codec::ENDED), self.key(codec::ALL_ENDED));
        // If the store is lost, no node waits for this one.
        if self.client.add(&count, 1, &mut left).is_ok_and(|ended| ended == self.nnodes as i64) {
            let _ = self.client.set(&all, b"all", &mut left);
        }
        self.take_changes();
        self.host.is_some()
    }

    /// Reports why this node's workers have failed.
    pub fn report_failure(&mut self, why: &str) {
        let key = self.key(&format!("{}{}", codec::FAILED, self.node));
        let why: String = why.chars().take(200).collect();
        let _ = self.client.set(&key, why.as_bytes(), &mut patience(REQUEST));
    }

    /// On node 0: other nodes whose workers still run.
    pub fn unfinished(&self) -> Vec<usize> {
        let nodes = self.host.as_ref().map(|host| host.registry.unfinished()).unwrap_or_default();
        nodes.into_iter().filter(|node| *node != 0).collect()
    }

    /// On node 0, when no workers run any more: releases the nodes that wait for others.
    pub fn release(&mut self) {
        let all = self.key(codec::ALL_ENDED);
        if self.client.set(&all, b"all", &mut patience(REQUEST)).is_ok() {
            self.wait_until_gone();
        }
    }
}

impl AsFd for StaticPeers {
    /// Readable: there are events.
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.host {
            Some(host) => host.events_ready.as_fd(),
            None => self.listener.as_ref().unwrap_or(&self.client).as_fd(),
        }
    }
}

/// About this much time, without a clock: waits ask once a slice.
pub(super) fn patience(time: Duration) -> impl FnMut() -> io::Result<Duration> {
    let mut slices = time.as_millis() / SLICE.as_millis();
    move || {
        slices = slices.saturating_sub(1);
        Ok(SLICE * slices.min(1) as u32)
    }
}

/// The time left, but `time` at most.
fn capped<'a>(time: Duration, left: TimeLeft<'a>) -> impl FnMut() -> io::Result<Duration> + 'a {
    let mut slices = time.as_millis() / SLICE.as_millis() + 1;
    move || {
        slices = slices.saturating_sub(1);
        Ok(left()?.min(SLICE * slices.min(1) as u32))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // A test fails by panicking.
    use super::*;
    use crate::net::listen;
    use std::thread;

    const LONG: Duration = Duration::from_secs(20);

    fn info(workers: usize) -> StaticNodeInfo {
        StaticNodeInfo { role: "default".into(), workers }
    }

    fn other(port: u16, node: usize) -> StaticPeers {
        StaticPeers::connect(("127.0.0.1", port), "run", (node, 2), &mut patience(LONG)).unwrap()
    }

    fn wait_all(zero: &mut StaticPeers) -> RankNumbers {
        loop {
            zero.wait_changes(Duration::from_secs(1), &mut patience(LONG)).unwrap();
            if let Some(numbers) = zero.assign_numbers(&mut patience(LONG)).unwrap() {
                return numbers;
            }
        }
    }

    #[test]
    fn nodes_join_and_finish() {
        let listeners = listen::loopback(0).unwrap();
        let port = listeners[0].local_addr().unwrap().port();
        let mut zero = StaticPeers::serve((listeners, StoreLimits::default()), "run", 2, &mut patience(LONG)).unwrap();
        assert!(zero.register(&info(2), &mut patience(LONG)).unwrap());
        assert_eq!(zero.missing(), [0, 1], "no event has arrived yet");
        let (paused, resumes) = bounded(1);
        let one = thread::spawn(move || {
            let mut one = other(port, 1);
            assert!(one.register(&info(3), &mut patience(LONG)).unwrap());
            resumes.recv().unwrap();
            // While the store is paused this has no answer.
            let numbers = one.wait_numbers(LONG, &mut patience(LONG)).unwrap().unwrap().unwrap();
            assert!(!one.report_success());
            numbers
        });
        let own = wait_all(&mut zero);
        paused.send(()).unwrap();
        zero.resume_store().unwrap();
        let others = one.join().unwrap();
        assert_eq!((own.first_rank, others.first_rank), (0, 2));
        assert_eq!((own.world_size, others.world_size), (5, 5));
        assert!(zero.report_success());
        let left: TimeLeft<'_> = &mut patience(LONG);
        while !zero.unfinished().is_empty() {
            wait(zero.as_fd(), PollFlags::POLLIN, left).unwrap();
            assert_eq!(zero.take_events(), []);
        }
        zero.release();
    }

    #[test]
    fn a_node_whose_number_is_taken_is_refused() {
        let listeners = listen::loopback(0).unwrap();
        let port = listeners[0].local_addr().unwrap().port();
        let mut zero = StaticPeers::serve((listeners, StoreLimits::default()), "run", 2, &mut patience(LONG)).unwrap();
        zero.register(&info(1), &mut patience(LONG)).unwrap();
        let mut one = other(port, 1);
        assert!(one.register(&info(1), &mut patience(LONG)).unwrap());
        wait_all(&mut zero);
        zero.resume_store().unwrap();
        assert!(!other(port, 1).register(&info(1), &mut patience(LONG)).unwrap());
        one.report_failure("rank 1: exit code 3");
        drop(one);
        let left: TimeLeft<'_> = &mut patience(LONG);
        let mut events = Vec::new();
        while events.is_empty() {
            wait(zero.as_fd(), PollFlags::POLLIN, left).unwrap();
            events = zero.take_events();
        }
        assert_eq!(events, [PeerEvent::Lost(1, Some("rank 1: exit code 3".into()))]);
    }
}
