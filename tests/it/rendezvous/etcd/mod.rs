//! Rendezvous of nodes at a real etcd.
#![allow(clippy::disallowed_methods)] // It has processes and a clock of its own.

mod authority;
mod faults;
mod node;
mod questions;
mod refusals;
mod renewals;
mod server;

use node::{Node, Roster, config, serial_and_leader};
use rlaunch::protocol::member_list;
use rlaunch::protocol::record::FORMAT;
use rlaunch::protocol::{Coordinator, JobEnd, JobPhase, JobRules, JobState, NodeInfo, NodeRecord, NodeStatus};
use rlaunch::protocol::{CoordinatorLogic, Departure, Publication};
use rlaunch::rendezvous::backend::{BackendEvent, RendezvousBackend};
use server::{Etcd, LIMIT};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

#[test]
fn two_that_start_at_once_have_one_leader_and_one_state_each_time() {
    let runs = if std::env::var("RLAUNCH_TEST_FULL").is_ok_and(|set| set != "0") { 200 } else { 50 };
    let etcd = Etcd::start();
    let (mut times, mut traffic) = (Vec::new(), [(0, 0); 2]);
    for run in 0..runs {
        let config = config(&[etcd.endpoint()], &format!("job{run}"));
        let gate = Arc::new(Barrier::new(2));
        let start = |id: &'static str| {
            let (config, gate) = (config.clone(), Arc::clone(&gate));
            thread::spawn(move || {
                gate.wait();
                let began = Instant::now();
                let mut node = Node::start(&config, id);
                let state = node.until_state("[a=new,b=new]");
                (node, state, began.elapsed())
            })
        };
        let (first, second) = (start("a"), start("b"));
        let (first, second) = (first.join().unwrap(), second.join().unwrap());
        assert_eq!(first.1, second.1, "run {run}");
        // Only one of the two ever decided.
        for node in [&first.0, &second.0] {
            for news in &node.heard {
                let BackendEvent::State { state, .. } = news else { panic!("run {run}: {news:?}") };
                assert_eq!(serial_and_leader(state).1, serial_and_leader(&first.1).1, "run {run}");
            }
        }
        times.push(first.2.max(second.2));
        let (mut one, mut other) = (first.0, second.0);
        traffic = [one.backend.traffic(), other.backend.traffic()];
        let closing = thread::spawn(move || one.backend.close(Duration::from_secs(10)).unwrap());
        other.backend.close(Duration::from_secs(10)).unwrap();
        closing.join().unwrap();
        assert_eq!(etcd.keys("/rlaunch/"), [""; 0], "run {run}");
    }
    times.sort();
    eprintln!(
        "start to the state with both: median {:?}, 95 of 100 {:?}, worst {:?}",
        times[runs / 2],
        times[runs * 95 / 100],
        times[runs - 1]
    );
    eprintln!("bytes sent and received by each: {traffic:?}");
}

/// A leader `a` and, with it, `b`.
fn two(config: &rlaunch::rendezvous::etcd::EtcdConfig) -> (Node, Node) {
    let mut a = Node::start(config, "a");
    a.until_state("[a=new]");
    let mut b = Node::start(config, "b");
    b.until_state("[a=new,b=new]");
    a.until_state("[a=new,b=new]");
    (a, b)
}

#[test]
fn jobs_whose_names_begin_alike_do_not_touch_each_other() {
    let etcd = Etcd::start();
    let jobs = ["ex7", "ex7e", "ex7/e"];
    let started = jobs.map(|job| Node::start(&config(&[etcd.endpoint()], job), job));
    let mut nodes = started.into_iter().zip(jobs).map(|(mut node, job)| {
        let state = node.until_state("=new]");
        assert!(state.contains(&format!("[{job}=new]")), "{state}");
        node
    });
    let (first, mut second, third) = (nodes.next().unwrap(), nodes.next().unwrap(), nodes.next().unwrap());
    first.close();
    assert_eq!(etcd.keys("/rlaunch/ex7/"), [""; 0]);
    assert_eq!(etcd.keys("/rlaunch/ex7e/").len(), 4);
    second.backend.put("still here");
    second.until_state("[ex7e=still here]");
    assert_eq!(second.heard.len(), 2, "{:?}", second.heard);
    second.close();
    third.close();
    assert_eq!(etcd.keys("/"), [""; 0]);
}

#[test]
fn a_closed_node_is_gone_at_once_and_a_dead_one_after_its_lease() {
    let etcd = Etcd::start();
    let config = config(&[etcd.endpoint()], "job");
    let (mut a, b) = two(&config);
    b.close();
    a.until_state("[a=new] [b-0]");
    let mut c = Node::start(&config, "c");
    c.until_state("c=new");
    let began = Instant::now();
    drop(c);
    a.until_state("[a=new] [b-0,c-2]");
    let took = began.elapsed();
    assert!(took < Duration::from_secs(5), "{took:?}");
    a.close();
    assert_eq!(etcd.keys("/"), [""; 0]);
}

#[test]
fn when_the_leader_dies_another_goes_on_from_its_last_state() {
    let etcd = Etcd::start();
    let config = config(&[etcd.endpoint()], "job");
    let (a, mut b) = two(&config);
    let last = serial_and_leader(&b.until_latest(&etcd, "job")).0;
    drop(a);
    let state = b.until_state(" b ");
    assert_eq!(serial_and_leader(&state), (last + 1, "b".to_owned()));
    // With the members, which `b` has to know as its own now.
    assert!(matches!(b.heard.last(), Some(BackendEvent::State { members: Some(_), .. })));
    b.close();
    assert_eq!(etcd.keys("/"), [""; 0]);
}

#[test]
fn a_leader_that_was_deposed_while_it_thought_publishes_nothing() {
    let etcd = Etcd::start();
    let config = config(&[etcd.endpoint()], "job");
    let (thinks, thinking) = crossbeam_channel::unbounded::<()>();
    let (go_on, goes_on) = crossbeam_channel::unbounded::<()>();
    let slow = move || -> Box<dyn CoordinatorLogic> {
        Box::new(Slow { inner: Roster::of("a"), thinks: thinks.clone(), goes_on: goes_on.clone() })
    };
    let mut a = Node::deciding(&config, "a", slow);
    a.until_state("[a=new]");
    let mut b = Node::start(&config, "b");
    b.until_state("[a=new,b=new]");
    // From here on `a` is lost in thought about `b`.
    b.backend.put("think");
    thinking.recv_timeout(LIMIT).unwrap();
    etcd.control(&["lease", "revoke", &etcd.lease_of("/rlaunch/job/board/leader")]);
    b.until_state(" b ");
    go_on.send(()).unwrap();
    // It is back as a follower, and has published nothing.
    a.until_back();
    let state = b.until_state("a=new,b=think");
    assert_eq!(serial_and_leader(&state).1, "b");
    assert_eq!(serial_and_leader(&a.until_state("a=new,b=think")).1, "b");
    let by: Vec<String> = b.states().iter().map(|state| serial_and_leader(state).1).collect();
    let first_own = by.iter().position(|by| by == "b").unwrap();
    assert!(by[first_own..].iter().all(|by| by == "b"), "{by:?}");
    a.close();
    b.close();
    assert_eq!(etcd.keys("/"), [""; 0]);
}

/// Thinks about a record `think` until the test lets it go on.
struct Slow {
    inner: Box<dyn CoordinatorLogic>,
    thinks: crossbeam_channel::Sender<()>,
    goes_on: crossbeam_channel::Receiver<()>,
}

impl CoordinatorLogic for Slow {
    fn resume(&mut self, state: Option<&str>, members: Option<&str>, now: Duration) {
        self.inner.resume(state, members, now);
    }

    fn record(&mut self, id: &str, record: &str, now: Duration) {
        self.inner.record(id, record, now);
        if record == "think" {
            self.thinks.send(()).unwrap();
            self.goes_on.recv_timeout(LIMIT).unwrap();
        }
    }

    fn gone(&mut self, id: &str, departure: Departure, now: Duration) {
        self.inner.gone(id, departure, now);
    }

    fn turn(&mut self, now: Duration) -> Option<Publication> {
        self.inner.turn(now)
    }

    fn next_deadline(&self) -> Option<Duration> {
        self.inner.next_deadline()
    }

    fn is_over(&self) -> bool {
        self.inner.is_over()
    }

    fn shown_to_paddle(&self) -> Vec<(String, String)> {
        Vec::new()
    }
}

#[test]
fn lists_of_members_may_be_longer_than_etcd_s_requests() {
    let etcd = Etcd::start();
    let config = config(&[etcd.endpoint()], "job");
    for length in [2 << 20, 6 << 20] {
        let mut a = Node::deciding(&config, "a", move || Roster::long("a", length));
        let mut b = Node::deciding(&config, "b", move || Roster::long("b", length));
        for node in [&mut a, &mut b] {
            let list = node.until("the list", |news| match news {
                BackendEvent::State { state, members: Some(list) } if state.contains("[a=new,b=new]") => {
                    Some(list.len())
                }
                _ => None,
            });
            assert!(list > length);
        }
        let closing = thread::spawn(move || a.close());
        b.close();
        closing.join().unwrap();
        assert_eq!(etcd.keys("/"), [""; 0]);
    }
}

#[test]
fn keys_that_no_node_can_remove_expire_with_a_lease() {
    let etcd = Etcd::start();
    let (a, b) = two(&config(&[etcd.endpoint()], "job"));
    let keys = etcd.keys("/rlaunch/job/");
    assert!(keys.len() >= 5, "{keys:?}");
    for key in &keys {
        assert_ne!(etcd.lease_of(key), "0", "{key}");
    }
    drop((a, b));
}

/// A node by the real rules.
fn ready(seen: u64) -> NodeRecord {
    let rules = JobRules { frontend: "paddle".into(), min: 2, max: 2, join_ms: 60_000, ..JobRules::default() };
    let offer = NodeInfo { rules, ranks: 1, ..NodeInfo::default() };
    NodeRecord { format: FORMAT, info: offer, status: NodeStatus::Ready { seen } }
}

#[test]
fn a_job_by_the_real_rules_runs_and_ends() {
    let etcd = Etcd::start();
    let config = config(&[etcd.endpoint()], "job");
    let run = |id: &'static str| {
        let config = config.clone();
        thread::spawn(move || {
            let mut record = ready(0);
            record.info.name = id.to_owned();
            let mut node = Node::deciding(&config, id, || Box::new(Coordinator::new(Duration::ZERO)));
            node.backend.put(&serde_json::to_string(&record).unwrap());
            let state_of = |news: &BackendEvent| match news {
                BackendEvent::State { state, members } => {
                    let members = members.as_ref().map(|list| member_list::read(list).unwrap());
                    Some((serde_json::from_str::<JobState>(state).unwrap(), members))
                }
                _ => None,
            };
            let members = node.until("the round", |news| match state_of(news)? {
                (JobState { phase: JobPhase::Running, round: 1, .. }, Some(members)) => Some(members),
                _ => None,
            });
            record.status = NodeStatus::done(1);
            node.backend.put(&serde_json::to_string(&record).unwrap());
            let end = node.until("the end", |news| match state_of(news)?.0.phase {
                JobPhase::Ended { end } => Some(end),
                _ => None,
            });
            node.close();
            (members.into_iter().map(|member| member.id).collect::<Vec<_>>(), end)
        })
    };
    let nodes = [run("n0"), run("n1")].map(|node| node.join().unwrap());
    for (members, end) in nodes {
        assert_eq!((members, end), (vec!["n0".to_owned(), "n1".to_owned()], JobEnd::Completed));
    }
    assert_eq!(etcd.keys("/"), [""; 0]);
}
