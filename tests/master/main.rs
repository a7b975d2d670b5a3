//! The embedded master over real sockets: nodes agree by it, keys keep others out, and nobody stalls it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // A test fails by panicking.

mod faults;
mod keys;
mod nodes;
mod paddle;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use rlaunch::rendezvous::agree::record::FORMAT;
use rlaunch::rendezvous::agree::{
    Coordinator, End, Member, Offer, Phase, Record, Rules, Seat, Standing, State, Step, step,
};
use rlaunch::rendezvous::master::{Config, Join, MasterTie, Server, join, serve};
use rlaunch::rendezvous::tie::{News, Tie};
use rlaunch::rendezvous::torch_store::listen;
use rlaunch::sys::clock;
use std::net::TcpStream;
use std::os::fd::AsFd;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(60);
const LEASE: Duration = Duration::from_secs(10);

fn config(key: Option<&str>, lease: Duration) -> Config {
    Config { key: key.map(str::to_owned), ..Config::new("job", lease, clock::now) }
}

fn started(config: Config) -> (Server, u16) {
    let listeners = listen::loopback(0).unwrap();
    let port = listeners[0].local_addr().unwrap().port();
    (serve(listeners, config, Box::new(Coordinator::new(clock::now()))).unwrap(), port)
}

fn to(port: u16, key: Option<&str>, lease: Duration) -> Join {
    let key = key.map(str::to_owned);
    Join { host: "127.0.0.1".into(), port, job: "job".into(), key, lease, clock: clock::now }
}

fn raw(port: u16) -> TcpStream {
    let socket = TcpStream::connect(("127.0.0.1", port)).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket
}

fn record(name: &str, max: usize, standing: Standing) -> String {
    let rules = Rules { min: max, max, join_ms: 600_000, ..Rules::default() };
    let offer = Offer { name: name.into(), host: name.into(), ranks: 1, rules, ..Offer::default() };
    serde_json::to_string(&Record { format: FORMAT, offer, standing }).unwrap()
}

/// A node that does what it is told: it starts nothing, and says so.
struct Node {
    tie: MasterTie,
    seat: Seat,
    max: usize,
    state: Option<State>,
    members: Vec<Member>,
    news: Vec<News>,
    end: Option<End>,
}

impl Node {
    fn new(config: Join, name: &str, max: usize) -> Self {
        let seat = Seat::new(name);
        let tie = join(config, name, &record(name, max, seat.standing.clone())).unwrap();
        Self { tie, seat, max, state: None, members: Vec::new(), news: Vec::new(), end: None }
    }

    fn stand(&mut self, standing: Standing) {
        self.seat.standing = standing;
        self.tie.put(&record(&self.seat.id, self.max, self.seat.standing.clone()));
    }

    fn act(&mut self) {
        for news in self.tie.heard() {
            if let News::State { state, members } = &news {
                let state: State = serde_json::from_str(state).unwrap();
                let members: Option<Vec<Member>> = members.as_deref().map(|text| serde_json::from_str(text).unwrap());
                self.seat.hear(&state, members.as_deref());
                self.members = members.unwrap_or(std::mem::take(&mut self.members));
                self.state = Some(state);
            }
            self.news.push(news);
            let Some(state) = &self.state else { continue };
            match step(&self.seat, state) {
                Step::Start { round } => self.stand(Standing::Runs { round }),
                Step::SayReady { seen } => self.stand(Standing::Ready { seen }),
                Step::Stop { .. } => self.stand(Standing::Ready { seen: state.round }),
                Step::End(end) => self.end = Some(end),
                Step::Wait | Step::Refused(_) => {}
            }
        }
    }

    fn runs(&self) -> bool {
        matches!(self.seat.standing, Standing::Runs { .. })
    }

    fn ids(&self) -> Vec<String> {
        self.members.iter().map(|member| member.id.clone()).collect()
    }

    fn phase(&self) -> Option<&Phase> {
        self.state.as_ref().map(|state| &state.phase)
    }

    fn refused(&self) -> Option<&str> {
        self.news.iter().find_map(|news| match news {
            News::Refused { why } => Some(why.as_str()),
            _ => None,
        })
    }

    fn lost(&self) -> Option<&str> {
        self.news.iter().find_map(|news| match news {
            News::Lost { why } => Some(why.as_str()),
            _ => None,
        })
    }

    fn is_back(&self) -> bool {
        self.news.contains(&News::Back)
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
            nodes.iter().map(|node| PollFd::new(node.tie.as_fd(), PollFlags::POLLIN)).collect();
        poll(&mut fds, PollTimeout::try_from(left).unwrap()).unwrap();
    }
}

/// Two nodes that run a round.
fn pair(config: Join) -> (Node, Node) {
    let (mut a, mut b) = (Node::new(config.clone(), "a", 2), Node::new(config, "b", 2));
    until(&mut [&mut a, &mut b], "both run", |nodes| nodes.iter().all(|node| node.runs()));
    (a, b)
}

/// How a running round stops because a node has gone: how long before that it was heard of.
fn lost_age(node: &Node) -> Option<Duration> {
    match node.phase() {
        Some(Phase::Ended { end: End::Lost { lost } }) => Some(Duration::from_millis(lost.age_ms)),
        _ => None,
    }
}
