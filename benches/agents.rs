//! Many nodes agree: so many ties in one process, to a real etcd or a real embedded master, until each has been told that the
//! first round runs and who takes part. Prints one line of JSON; `bench.py rendezvous` asks for it and draws the table.
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
use rlaunch::rendezvous::master::{self, MasterAddress, MasterBackend, MasterConfig};
use rlaunch::sys::clock;
use rlaunch::sys::io::poll::Poller;
use rlaunch::sys::process::limits;
use std::os::fd::AsFd;
use std::time::Duration;

const JOB: &str = "agents";
const LEASE: Duration = Duration::from_secs(60);
const LIMIT: Duration = Duration::from_secs(240);

enum AnyTie {
    Etcd(EtcdBackend),
    Master(MasterBackend),
}

impl AnyTie {
    fn tie(&mut self) -> &mut dyn RendezvousBackend {
        match self {
            AnyTie::Etcd(tie) => tie,
            AnyTie::Master(tie) => tie,
        }
    }

    fn traffic(&self) -> (u64, u64) {
        match self {
            AnyTie::Etcd(tie) => tie.traffic(),
            AnyTie::Master(tie) => tie.traffic(),
        }
    }
}

struct Agent {
    tie: AnyTie,
    seat: NodeState,
    state: Option<JobState>,
    members: usize,
}

/// A node of 8 ranks in Paddle's words: the longest records that there are.
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

/// What was read last: all are told the same words, and each node of a real job has a machine to read them with.
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
        for news in self.tie.tie().take_events() {
            let (text, members) = match news {
                BackendEvent::State { state, members } => (state, members),
                BackendEvent::Refused { why } => panic!("refused: {why}"),
                BackendEvent::Lost { .. } | BackendEvent::Back => continue,
            };
            let state = Reader::read(&mut reader.state, &text);
            let members = members.map(|text| Reader::read(&mut reader.members, &text));
            let is_newest = self.seat.note_state(state, members.map(Vec::as_slice));
            self.members = members.map_or(self.members, Vec::len);
            if is_newest {
                self.state = Some(state.clone());
            }
        }
        if let Some(NodeStep::ReportReady { seen }) = self.state.as_ref().map(|state| next_step(&self.seat, state)) {
            self.seat.status = NodeStatus::Ready { seen };
            self.tie.tie().put(&record(name, &self.seat.status));
        }
    }

    fn runs(&self) -> bool {
        self.state.as_ref().is_some_and(|state| matches!(next_step(&self.seat, state), NodeStep::Start { .. }))
    }
}

fn record(offer: &NodeInfo, standing: &NodeStatus) -> String {
    let record = NodeRecord { format: FORMAT, info: offer.clone(), status: standing.clone() };
    serde_json::to_string(&record).unwrap()
}

fn main() {
    // Cargo adds an option of its own.
    let args: Vec<String> = std::env::args().skip(1).filter(|arg| !arg.starts_with("--")).collect();
    let (Some(meeting), Some(nodes)) = (args.first(), args.get(1).and_then(|count| count.parse::<usize>().ok())) else {
        println!("agents master|etcd NODES [http://HOST:PORT of the etcd]");
        return;
    };
    limits::raise_open_files(nodes as u64 * 16 + 1024);
    let mut server = None;
    let mut port = 0;
    if meeting == "master" {
        let listeners = listen::loopback(0).unwrap();
        port = listeners[0].local_addr().unwrap().port();
        let config = MasterConfig { connections: 2 * nodes + 256, ..MasterConfig::new(JOB, LEASE, clock::now) };
        server = Some(master::serve(listeners, config, Box::new(Coordinator::new(clock::now()))).unwrap());
    }
    let offers: Vec<NodeInfo> = (0..nodes).map(|number| offer(number, nodes)).collect();
    let begun = clock::now();
    let join = |offer: &NodeInfo| {
        let (id, record) = (format!("id-{}", offer.name), record(offer, &NodeStatus::Ready { seen: 0 }));
        match &args.get(2) {
            Some(at) => {
                let config =
                    EtcdConfig { lease: LEASE, timeout: LEASE / 4, ..EtcdConfig::new(vec![(*at).clone()], JOB) };
                let decide = || Box::new(Coordinator::new(clock::now())) as Box<_>;
                AnyTie::Etcd(etcd::join(&config, &id, &record, decide).unwrap())
            }
            None => {
                let (host, job) = ("127.0.0.1".to_owned(), JOB.to_owned());
                let config = MasterAddress { host, port, job, key: None, lease: LEASE, clock: clock::now };
                AnyTie::Master(master::join(config, &id, &record).unwrap())
            }
        }
    };
    let poll = Poller::new().unwrap();
    let mut agents: Vec<Agent> = Vec::with_capacity(nodes);
    for (number, offer) in offers.iter().enumerate() {
        let mut tie = join(offer);
        poll.readable(tie.tie().as_fd(), number as u64).unwrap();
        let seat = NodeState::new(&format!("id-{}", offer.name));
        agents.push(Agent { tie, seat, state: None, members: 0 });
    }
    let (mut waiting, mut reader) = (nodes, Reader::default());
    let mut runs = vec![false; nodes];
    while waiting > 0 {
        assert!(clock::now() - begun < LIMIT, "{waiting} of {nodes} have not been told within {LIMIT:?}");
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
    let total = agents.iter().map(|agent| agent.tie.traffic()).fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
    let each = (total.0 + total.1) as f64 / nodes as f64;
    println!("{}", serde_json::json!({"meeting": meeting, "nodes": nodes, "seconds": seconds, "bytes_per_node": each}));
    // All are to leave; each tie would be waited for.
    drop(server);
    std::process::exit(0);
}
