//! Rendezvous of many nodes: so many backends in one process, at a real etcd or a real embedded master, until each
//! node has received the first round and its members. Prints one line of JSON; `agents.py` runs it and draws the table.
//!
//! `cargo bench --bench agents -- master 1000`, `cargo bench --bench agents -- etcd 1000 http://127.0.0.1:2379`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // A bench fails by panicking.

use rlaunch::net::listen;
use rlaunch::protocol::record::FORMAT;
use rlaunch::protocol::{
    Coordinator, JobRules, JobState, NodeInfo, NodeRecord, NodeState, NodeStatus, NodeStep, RoundMember, next_step,
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
use std::time::Duration;

const JOB: &str = "agents";
const LEASE: Duration = Duration::from_secs(60);
const LIMIT: Duration = Duration::from_secs(240);

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
    backend: AnyBackend,
    node_state: NodeState,
    state: Option<JobState>,
    members: usize,
}

/// A node of 8 ranks in Paddle's form: the longest records that there are.
fn offer(number: usize, nodes: usize) -> NodeInfo {
    let rules = JobRules { frontend: "paddle".into(), min: nodes, max: nodes, join_ms: 600_000, ..JobRules::default() };
    let address = format!("10.{}.{}.{}", number >> 16, number >> 8 & 255, number & 255);
    NodeInfo {
        name: format!("node{number:05}"),
        host: format!("host-{number}"),
        ranks: 8,
        device: "gpu".into(),
        master: format!("{address}:40000"),
        endpoints: (1..=8).map(|port| format!("{address}:{}", 40_000 + port)).collect(),
        address,
        rules,
        version: env!("CARGO_PKG_VERSION").into(),
        ..NodeInfo::default()
    }
}

/// The message that was parsed last: all nodes receive the same one, and real nodes parse it on a machine each.
#[derive(Default)]
struct Reader {
    state: Option<(String, JobState)>,
    members: Option<(String, Vec<RoundMember>)>,
}

impl Reader {
    fn read<'a, T: serde::de::DeserializeOwned>(last: &'a mut Option<(String, T)>, text: &str) -> &'a T {
        if last.as_ref().is_none_or(|(known, _)| known != text) {
            *last = Some((text.to_owned(), serde_json::from_str(text).unwrap()));
        }
        &last.as_ref().unwrap().1
    }
}

impl Agent {
    fn hear(&mut self, name: &NodeInfo, reader: &mut Reader) {
        for news in self.backend.backend().take_events() {
            let (text, members) = match news {
                BackendEvent::State { state, members } => (state, members),
                BackendEvent::Refused { why } | BackendEvent::Superseded { why } => panic!("refused: {why}"),
                BackendEvent::Joined { .. } | BackendEvent::Lost { .. } | BackendEvent::Back => continue,
            };
            let state = Reader::read(&mut reader.state, &text);
            let members = members.map(|text| Reader::read(&mut reader.members, &text));
            let is_newest = self.node_state.note_state(state, members.map(Vec::as_slice));
            self.members = members.map_or(self.members, Vec::len);
            if is_newest {
                self.state = Some(state.clone());
            }
        }
        if let Some(NodeStep::ReportReady { seen }) =
            self.state.as_ref().map(|state| next_step(&self.node_state, state))
        {
            self.node_state.status = NodeStatus::Ready { seen };
            self.backend.backend().put(&record(name, &self.node_state.status));
        }
    }

    fn runs(&self) -> bool {
        self.state.as_ref().is_some_and(|state| matches!(next_step(&self.node_state, state), NodeStep::Start { .. }))
    }
}

fn record(offer: &NodeInfo, standing: &NodeStatus) -> String {
    let record = NodeRecord { format: FORMAT, info: offer.clone(), status: standing.clone() };
    serde_json::to_string(&record).unwrap()
}

fn main() {
    // Cargo adds an option of its own.
    let args: Vec<String> = std::env::args().skip(1).filter(|arg| !arg.starts_with("--")).collect();
    let (Some(kind), Some(nodes)) = (args.first(), args.get(1).and_then(|count| count.parse::<usize>().ok())) else {
        println!("agents master|etcd NODES [http://HOST:PORT of the etcd]");
        return;
    };
    limits::raise_open_files(nodes as u64 * 16 + 1024);
    let mut server = None;
    let mut port = 0;
    if kind == "master" {
        let listeners = listen::loopback(0).unwrap();
        port = listeners[0].local_addr().unwrap().port();
        let config = MasterConfig { connections: 2 * nodes + 256, ..MasterConfig::new(JOB, LEASE, clock::now) };
        server = Some(master::serve(listeners, config, Box::new(Coordinator::new(clock::now()))).unwrap());
    }
    let offers: Vec<NodeInfo> = (0..nodes).map(|number| offer(number, nodes)).collect();
    let lease = Arc::new(NodeLease::new().unwrap());
    let begun = clock::now();
    let join = |offer: &NodeInfo| {
        let (id, record) = (format!("id-{}", offer.name), record(offer, &NodeStatus::Ready { seen: 0 }));
        match &args.get(2) {
            Some(at) => {
                let config =
                    EtcdConfig { lease: LEASE, timeout: LEASE / 4, ..EtcdConfig::new(vec![(*at).clone()], JOB) };
                let decide = || Box::new(Coordinator::new(clock::now())) as Box<_>;
                AnyBackend::Etcd(etcd::join(&config, &id, &record, Arc::clone(&lease), decide).unwrap())
            }
            None => {
                let (host, job) = ("127.0.0.1".to_owned(), JOB.to_owned());
                let node_lease = Arc::clone(&lease);
                let config = MasterAddress { host, port, job, key: None, lease: LEASE, clock: clock::now, node_lease };
                AnyBackend::Master(master::join(config, &id, &record).unwrap())
            }
        }
    };
    let poll = Poller::new().unwrap();
    let mut agents: Vec<Agent> = Vec::with_capacity(nodes);
    for (number, offer) in offers.iter().enumerate() {
        let mut backend = join(offer);
        poll.readable(backend.backend().as_fd(), number as u64).unwrap();
        let node_state = NodeState::new(&format!("id-{}", offer.name));
        agents.push(Agent { backend, node_state, state: None, members: 0 });
    }
    let (mut waiting, mut reader) = (nodes, Reader::default());
    let mut runs = vec![false; nodes];
    while waiting > 0 {
        assert!(clock::now() - begun < LIMIT, "{waiting} of {nodes} have not received the round within {LIMIT:?}");
        for token in poll.wait(Some(Duration::from_secs(1))).unwrap() {
            let number = token as usize;
            agents[number].hear(&offers[number], &mut reader);
            if !runs[number] && agents[number].runs() {
                assert_eq!(agents[number].members, nodes);
                runs[number] = true;
                waiting -= 1;
            }
        }
    }
    let seconds = (clock::now() - begun).as_secs_f64();
    let total =
        agents.iter().map(|agent| agent.backend.traffic()).fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
    let each = (total.0 + total.1) as f64 / nodes as f64;
    println!("{}", serde_json::json!({"backend": kind, "nodes": nodes, "seconds": seconds, "bytes_per_node": each}));
    // All are to leave; closing each backend would take time.
    drop(server);
    std::process::exit(0);
}
