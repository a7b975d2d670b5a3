//! Rendezvous of many nodes: so many backends in one process, at a real etcd or a real embedded master, until each
//! node has received a round and its members. Prints one line of JSON; `agents.py` runs it and draws the tables.
//!
//! `cargo bench --bench agents -- master first 1000`, `cargo bench --bench agents -- etcd leader 1000 http://127.0.0.1:2379`.
//! `first`: the first round. `leader`: the node that leads at etcd (at the master: one node) ends without a word; until the next
//! round. `churn`: a tenth of the nodes do so, and as many new ones join.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // A bench fails by panicking.

use rlaunch::net::listen;
use rlaunch::protocol::record::FORMAT;
use rlaunch::protocol::{
    Coordinator, CoordinatorLogic, JobRules, JobState, NodeInfo, NodeRecord, NodeState, NodeStatus, NodeStep,
    OnNodeLoss, RoundMember, member_list, next_step,
};
use rlaunch::rendezvous::backend::{BackendEvent, RendezvousBackend};
use rlaunch::rendezvous::etcd::{self, EtcdBackend, EtcdConfig};
use rlaunch::rendezvous::lease::NodeLease;
use rlaunch::rendezvous::master::{self, MasterAddress, MasterBackend, MasterConfig};
use rlaunch::sys::clock;
use rlaunch::sys::io::poll::Poller;
use rlaunch::sys::process::limits;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

const JOB: &str = "agents";
/// All nodes share the cores of one machine: with a lease of the default 10 s a node may seem to be lost that only waits for them.
const LEASE: Duration = Duration::from_secs(30);
const LIMIT: Duration = Duration::from_secs(240);
/// How long a round that lacks nodes waits for more.
const LAST_CALL: Duration = Duration::from_secs(1);

enum AnyBackend {
    Etcd(EtcdBackend),
    Master(MasterBackend),
}

impl AnyBackend {
    fn backend(&mut self) -> &mut dyn RendezvousBackend {
        match self {
            AnyBackend::Etcd(backend) => backend,
            AnyBackend::Master(backend) => backend,
        }
    }

    fn traffic(&self) -> (u64, u64) {
        match self {
            AnyBackend::Etcd(backend) => backend.traffic(),
            AnyBackend::Master(backend) => backend.traffic(),
        }
    }
}

struct Agent {
    /// `None`: it has ended without a word.
    backend: Option<AnyBackend>,
    lease: Arc<NodeLease>,
    node_state: NodeState,
    state: Option<JobState>,
    offer: NodeInfo,
    members: usize,
    /// The last round that it could begin.
    round: u64,
}

/// A node of 8 ranks on free ports in Paddle's form: the longest records that there are.
fn offer(number: usize, nodes: usize) -> NodeInfo {
    let rules = JobRules {
        frontend: "paddle".into(),
        min: nodes - nodes / 5,
        max: nodes,
        join_ms: 600_000,
        last_call_ms: LAST_CALL.as_millis() as u64,
        lease_ms: LEASE.as_millis() as u64,
        on_loss: OnNodeLoss::Regroup,
        ..JobRules::default()
    };
    let address = format!("10.{}.{}.{}", number >> 16, number >> 8 & 255, number & 255);
    NodeInfo {
        name: std::iter::repeat_with(fastrand::alphanumeric).take(6).collect(),
        host: format!("host-{number}"),
        ranks: 8,
        device: "gpu".into(),
        master: format!("{address}:{}", fastrand::u16(32768..61000)),
        endpoints: (1..=8).map(|_| format!("{address}:{}", fastrand::u16(32768..61000))).collect(),
        address,
        rules,
        version: env!("CARGO_PKG_VERSION").into(),
        clock_ms: clock::wall().as_millis() as u64,
        ..NodeInfo::default()
    }
}

/// The documents that were parsed last: all nodes receive the same ones, and real nodes parse them on a machine each.
#[derive(Default)]
struct Reader {
    state: Option<(String, JobState)>,
    members: Option<(String, Vec<RoundMember>)>,
}

/// Reads a document, unless it is that which was read last.
fn read<'a, T>(last: &'a mut Option<(String, T)>, text: &str, parse: impl Fn(&str) -> Option<T>) -> &'a T {
    if last.as_ref().is_none_or(|(known, _)| known != text) {
        *last = Some((text.to_owned(), parse(text).unwrap()));
    }
    &last.as_ref().unwrap().1
}

impl Agent {
    /// Takes in what has come, and reports what follows.
    fn act(&mut self, reader: &mut Reader) {
        let Some(backend) = &mut self.backend else { return };
        for event in backend.backend().take_events() {
            let (text, list) = match event {
                BackendEvent::State { state, members } => (state, members),
                BackendEvent::Refused { why } | BackendEvent::Superseded { why } => panic!("refused: {why}"),
                BackendEvent::Hindered { why } => panic!("hindered: {why}"),
                BackendEvent::Joined { .. } | BackendEvent::Lost { .. } | BackendEvent::Back => continue,
            };
            let state = read(&mut reader.state, &text, |text| serde_json::from_str(text).ok()).clone();
            let members = list.map(|list| read(&mut reader.members, &list, member_list::read));
            let is_newest = self.node_state.note_state(&state, members.map(Vec::as_slice));
            self.members = members.map_or(self.members, Vec::len);
            if is_newest {
                self.state = Some(state);
            }
        }
        let Some(state) = &self.state else { return };
        let status = match next_step(&self.node_state, state) {
            NodeStep::ReportReady { seen } => NodeStatus::Ready { seen },
            NodeStep::Start { round } => {
                self.round = round;
                NodeStatus::runs(round)
            }
            // Its ranks end at once.
            NodeStep::Stop { .. } | NodeStep::Kill { .. } => NodeStatus::Ready { seen: self.round },
            _ => return,
        };
        self.node_state.status = status;
        backend.backend().put(&record(&self.offer, &self.node_state.status));
    }
}

fn record(offer: &NodeInfo, status: &NodeStatus) -> String {
    let record = NodeRecord { format: FORMAT, info: offer.clone(), status: status.clone() };
    serde_json::to_string(&record).unwrap()
}

struct Job {
    etcd: Option<String>,
    port: u16,
    nodes: usize,
    /// The number of the node that leads at etcd.
    leader: Arc<AtomicUsize>,
    poll: Poller,
    agents: Vec<Agent>,
    reader: Reader,
}

impl Job {
    fn join(&mut self) {
        let number = self.agents.len();
        let offer = offer(number, self.nodes);
        let status = NodeStatus::Ready { seen: 0 };
        let id: String = std::iter::repeat_with(fastrand::alphanumeric).take(16).collect();
        let (record, lease) = (record(&offer, &status), Arc::new(NodeLease::new().unwrap()));
        let node_lease = Arc::clone(&lease);
        let mut backend = match &self.etcd {
            Some(at) => {
                let config = EtcdConfig {
                    lease: LEASE,
                    timeout: LEASE / 4,
                    nodes: self.nodes,
                    ..EtcdConfig::new(vec![at.clone()], JOB)
                };
                let leader = Arc::clone(&self.leader);
                let decide = move || -> Box<dyn CoordinatorLogic> {
                    leader.store(number, Ordering::Relaxed);
                    Box::new(Coordinator::new(clock::now()))
                };
                AnyBackend::Etcd(etcd::join(&config, &id, &record, node_lease, decide).unwrap())
            }
            None => {
                let (host, job, port) = ("127.0.0.1".to_owned(), JOB.to_owned(), self.port);
                let address = MasterAddress { host, port, job, key: None, lease: LEASE, clock: clock::now, node_lease };
                AnyBackend::Master(master::join(address, &id, &record).unwrap())
            }
        };
        self.poll.readable(backend.backend().as_fd(), number as u64).unwrap();
        let node_state = NodeState::new(&id);
        self.agents.push(Agent { backend: Some(backend), lease, node_state, state: None, offer, members: 0, round: 0 });
    }

    /// Waits until all nodes that are here run a round after `round` with so many members.
    fn wait(&mut self, round: u64, members: usize) -> Duration {
        let begun = clock::now();
        loop {
            let has_begun = |agent: &Agent| agent.round > round && agent.members == members;
            let here = self.agents.iter().filter(|agent| agent.backend.is_some());
            let waiting = here.filter(|agent| !has_begun(agent)).count();
            if waiting == 0 {
                return clock::now() - begun;
            }
            assert!(clock::now() - begun < LIMIT, "{waiting} nodes have not received the round within {LIMIT:?}");
            for token in self.poll.wait(Some(Duration::from_secs(1))).unwrap() {
                self.agents[token as usize].act(&mut self.reader);
            }
        }
    }

    /// Ends a node without a word: its connections are closed. Returns when its lease lapses.
    fn end(&mut self, number: usize) -> Duration {
        let lapses = clock::now() + LEASE.saturating_sub(self.agents[number].lease.age());
        let mut backend = self.agents[number].backend.take().unwrap();
        self.poll.forget(backend.backend().as_fd()).unwrap();
        drop(backend);
        lapses
    }

    /// Bytes sent and received by the nodes that are here.
    fn traffic(&self) -> u64 {
        let here = self.agents.iter().filter_map(|agent| agent.backend.as_ref());
        here.map(|backend| backend.traffic()).map(|(sent, received)| sent + received).sum()
    }
}

fn main() {
    // Cargo adds an option of its own.
    let args: Vec<String> = std::env::args().skip(1).filter(|arg| !arg.starts_with("--")).collect();
    let (Some(kind), Some(what), Some(nodes)) = (args.first(), args.get(1), args.get(2)) else {
        println!("agents master|etcd first|leader|churn NODES [http://HOST:PORT of the etcd]");
        return;
    };
    let mut nodes: usize = nodes.parse().unwrap();
    limits::raise_open_files(nodes as u64 * 20 + 1024);
    let (mut server, mut port) = (None, 0);
    if kind == "master" {
        let listeners = listen::loopback(0).unwrap();
        port = listeners[0].local_addr().unwrap().port();
        let config = MasterConfig { connections: 2 * nodes + 256, ..MasterConfig::new(JOB, LEASE, clock::now) };
        server = Some(master::serve(listeners, config, Box::new(Coordinator::new(clock::now()))).unwrap());
    }
    let mut job = Job {
        etcd: args.get(3).cloned(),
        port,
        nodes,
        leader: Arc::default(),
        poll: Poller::new().unwrap(),
        agents: Vec::with_capacity(nodes),
        reader: Reader::default(),
    };
    let begun = clock::now();
    (0..nodes).for_each(|_| job.join());
    job.wait(0, nodes);
    let mut seconds = (clock::now() - begun).as_secs_f64();
    let mut bytes = 0;
    if what != "first" {
        let round = job.agents[0].round;
        let (ended, new) = match what.as_str() {
            "leader" => (vec![job.leader.load(Ordering::Relaxed)], 0),
            _ => ((0..nodes / 10).collect(), nodes / 10),
        };
        // No round begins beside ranks of a lost node, whose lease has to lapse first.
        let lapsed = ended.iter().map(|number| job.end(*number)).max().unwrap();
        bytes = job.traffic();
        (0..new).for_each(|_| job.join());
        job.wait(round, nodes - ended.len() + new);
        seconds = clock::now().as_secs_f64() - lapsed.as_secs_f64();
        nodes -= ended.len() - new;
    }
    let bytes = job.traffic() - bytes;
    println!("{}", serde_json::json!({ "seconds": seconds, "bytes_per_node": bytes as f64 / nodes as f64 }));
    // All are to leave; closing each backend would take time.
    drop(server);
    std::process::exit(0);
}
