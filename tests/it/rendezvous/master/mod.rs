//! The embedded master over real sockets: nodes rendezvous at it, keys keep others out, and no client stalls it.

mod faults;
mod keys;
mod nodes;
mod paddle;
mod questions;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use rlaunch::net::listen;
use rlaunch::protocol::member_list;
use rlaunch::protocol::record::FORMAT;
use rlaunch::protocol::{
    Coordinator, JobEnd, JobPhase, JobRules, JobState, NodeInfo, NodeRecord, NodeState, NodeStatus, NodeStep,
    RoundMember, next_step,
};
use rlaunch::rendezvous::backend::{BackendEvent, RendezvousBackend};
use rlaunch::rendezvous::lease::NodeLease;
use rlaunch::rendezvous::master::{MasterAddress, MasterBackend, MasterConfig, MasterServer, join, serve};
use rlaunch::sys::clock;
use std::net::TcpStream;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(60);
const LEASE: Duration = Duration::from_secs(10);

fn config(key: Option<&str>, lease: Duration) -> MasterConfig {
    MasterConfig { key: key.map(str::to_owned), ..MasterConfig::new("job", lease, clock::now) }
}

fn started(config: MasterConfig) -> (MasterServer, u16) {
    let listeners = listen::loopback(0).unwrap();
    let port = listeners[0].local_addr().unwrap().port();
    (serve(listeners, config, Box::new(Coordinator::new(clock::now()))).unwrap(), port)
}

fn to(port: u16, key: Option<&str>, lease: Duration) -> MasterAddress {
    let key = key.map(str::to_owned);
    let node_lease = Arc::new(NodeLease::new().unwrap());
    MasterAddress { host: "127.0.0.1".into(), port, job: "job".into(), key, lease, clock: clock::now, node_lease }
}

fn raw(port: u16) -> TcpStream {
    let socket = TcpStream::connect(("127.0.0.1", port)).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket
}

fn record(name: &str, max: usize, standing: NodeStatus) -> String {
    let rules = JobRules { min: max, max, join_ms: 600_000, ..JobRules::default() };
    let offer = NodeInfo { name: name.into(), host: name.into(), ranks: 1, rules, ..NodeInfo::default() };
    serde_json::to_string(&NodeRecord { format: FORMAT, info: offer, status: standing }).unwrap()
}

/// A node that follows each step of the protocol: it starts nothing, and reports that it has.
struct Node {
    backend: MasterBackend,
    node_state: NodeState,
    max: usize,
    state: Option<JobState>,
    members: Vec<RoundMember>,
    news: Vec<BackendEvent>,
    end: Option<JobEnd>,
}

impl Node {
    fn new(config: MasterAddress, name: &str, max: usize) -> Self {
        let node_state = NodeState::new(name);
        let backend = join(config, name, &record(name, max, node_state.status.clone())).unwrap();
        Self { backend, node_state, max, state: None, members: Vec::new(), news: Vec::new(), end: None }
    }

    fn stand(&mut self, standing: NodeStatus) {
        self.node_state.status = standing;
        self.backend.put(&record(&self.node_state.id, self.max, self.node_state.status.clone()));
    }

    fn act(&mut self) {
        for news in self.backend.take_events() {
            if let BackendEvent::State { state, members } = &news {
                let state: JobState = serde_json::from_str(state).unwrap();
                let members = members.as_deref().map(|list| member_list::read(list).unwrap());
                self.node_state.note_state(&state, members.as_deref());
                self.members = members.unwrap_or(std::mem::take(&mut self.members));
                self.state = Some(state);
            }
            self.news.push(news);
            let Some(state) = &self.state else { continue };
            match next_step(&self.node_state, state) {
                NodeStep::Start { round } => self.stand(NodeStatus::runs(round)),
                NodeStep::ReportReady { seen } => self.stand(NodeStatus::Ready { seen }),
                NodeStep::Stop { .. } | NodeStep::Kill { .. } => {
                    self.stand(NodeStatus::Ready { seen: state.round });
                }
                NodeStep::End(end) => self.end = Some(end),
                NodeStep::Wait | NodeStep::Refused(_) => {}
            }
        }
    }

    fn runs(&self) -> bool {
        matches!(self.node_state.status, NodeStatus::Runs { .. })
    }

    fn ids(&self) -> Vec<String> {
        self.members.iter().map(|member| member.id.clone()).collect()
    }

    fn phase(&self) -> Option<&JobPhase> {
        self.state.as_ref().map(|state| &state.phase)
    }

    fn refused(&self) -> Option<&str> {
        self.news.iter().find_map(|news| match news {
            BackendEvent::Refused { why } | BackendEvent::Superseded { why } => Some(why.as_str()),
            _ => None,
        })
    }

    fn lost(&self) -> Option<&str> {
        self.news.iter().find_map(|news| match news {
            BackendEvent::Lost { why } => Some(why.as_str()),
            _ => None,
        })
    }

    fn is_back(&self) -> bool {
        self.news.contains(&BackendEvent::Back)
    }
}

/// Lets nodes act until something is so; how long it took.
fn until(nodes: &mut [&mut Node], what: &str, is: impl Fn(&[&mut Node]) -> bool) -> Duration {
    let begin = clock::now();
    loop {
        nodes.iter_mut().for_each(|node| node.act());
        if is(nodes) {
            return clock::now() - begin;
        }
        let left = PATIENCE.saturating_sub(clock::now() - begin);
        assert!(!left.is_zero(), "in vain: {what}; {:?}", nodes.iter().map(|node| &node.news).collect::<Vec<_>>());
        let mut fds: Vec<PollFd<'_>> =
            nodes.iter().map(|node| PollFd::new(node.backend.as_fd(), PollFlags::POLLIN)).collect();
        poll(&mut fds, PollTimeout::try_from(left).unwrap()).unwrap();
    }
}

/// Two nodes that run a round.
fn pair(config: MasterAddress) -> (Node, Node) {
    let (mut a, mut b) = (Node::new(config.clone(), "a", 2), Node::new(config, "b", 2));
    until(&mut [&mut a, &mut b], "both run", |nodes| nodes.iter().all(|node| node.runs()));
    (a, b)
}

/// How a running round stops because a node has gone: how long before that it was heard of.
fn lost_age(node: &Node) -> Option<Duration> {
    match node.phase() {
        Some(JobPhase::Ended { end: JobEnd::Lost { lost } }) => Some(Duration::from_millis(lost.age_ms)),
        _ => None,
    }
}
