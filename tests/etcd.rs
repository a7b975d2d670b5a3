//! Nodes that meet at a real etcd.
#![cfg(feature = "etcd")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // A test fails by panicking.
#![allow(clippy::disallowed_methods)] // It has processes and a clock of its own.

#[path = "etcd/node.rs"]
mod node;
#[path = "etcd/server.rs"]
mod server;

use node::{Node, config, serial_and_leader};
use rlaunch::rendezvous::tie::{News, Tie};
use server::Etcd;
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

#[test]
fn two_that_start_at_once_have_one_leader_and_one_state_200_times() {
    let etcd = Etcd::start();
    let mut times = Vec::new();
    for run in 0..200 {
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
        // Whoever decided, nobody else ever did.
        for node in [&first.0, &second.0] {
            for news in &node.heard {
                let News::State { state, .. } = news else { panic!("run {run}: {news:?}") };
                assert_eq!(serial_and_leader(state).1, serial_and_leader(&first.1).1, "run {run}");
            }
        }
        times.push(first.2.max(second.2));
        let (mut one, mut other) = (first.0, second.0);
        let closing = thread::spawn(move || one.tie.close(Duration::from_secs(10)).unwrap());
        other.tie.close(Duration::from_secs(10)).unwrap();
        closing.join().unwrap();
        assert_eq!(etcd.keys("/rlaunch/"), [""; 0], "run {run}");
    }
    times.sort();
    eprintln!("start to the state with both: median {:?}, worst {:?}", times[100], times[199]);
}
