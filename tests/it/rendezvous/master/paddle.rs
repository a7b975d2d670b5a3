//! Paddle's own protocol, on either side.

use super::*;
use rlaunch::rendezvous::master::client::paddle_kv::{KvAddress, KvEntry, KvPeers, sync};
use std::cell::Cell;
use std::io::ErrorKind;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::thread;

fn own(name: &str, rank: Option<usize>) -> KvEntry {
    let number = rank.map_or(-1, |rank| rank as i64);
    let payload = format!(
        r#"{{"name": "{name}", "rank": {number}, "replicas": 2, "dtype": "cpu", "candidate": "127.0.0.1:5", "endpoints": "127.0.0.1:6,127.0.0.1:7"}}"#
    );
    KvEntry { name: name.into(), rank, payload }
}

fn waiting(port: u16, size: usize, own: KvEntry) -> thread::JoinHandle<std::io::Result<KvPeers>> {
    let place = KvAddress { host: "127.0.0.1".into(), port, clock: clock::now };
    let end = clock::now() + PATIENCE;
    let mut left = move || Ok(end.saturating_sub(clock::now()));
    thread::spawn(move || sync(&place, "job", size, &own, false, &mut left, &mut |_| {}))
}

#[test]
fn a_round_has_nodes_of_both_kinds_in_one_order() {
    let (_server, port) = started(config(None, LEASE));
    let threads: Vec<_> = ["abc", "xyz"].map(|name| waiting(port, 3, own(name, None))).into();
    let mut us = Node::new(to(port, None, LEASE), "mmm", 3);
    until(&mut [&mut us], "it runs", |nodes| nodes[0].runs());
    assert_eq!(us.ids(), ["paddle:abc", "mmm", "paddle:xyz"]);
    let is_paddle_launcher = &us.members[0].info;
    assert_eq!(
        (is_paddle_launcher.ranks, is_paddle_launcher.endpoints.len(), is_paddle_launcher.master.as_str()),
        (2, 2, "127.0.0.1:5")
    );
    for (thread, place) in threads.into_iter().zip([0, 2]) {
        let peers = thread.join().unwrap().unwrap();
        let keys: Vec<&str> = peers.all.iter().map(|(key, _)| key.as_str()).collect();
        assert_eq!(keys, ["/job/info/abc/-1", "/job/info/mmm/-1", "/job/info/xyz/-1"]);
        assert_eq!(peers.own, place);
    }
    us.stand(NodeStatus::done(1));
    until(&mut [&mut us], "it ends", |nodes| nodes[0].end == Some(JobEnd::Completed));
}

#[test]
fn a_number_that_is_taken_is_refused() {
    let (_server, port) = started(config(None, LEASE));
    let mut first = Node::new(to(port, None, LEASE), "a", 2);
    until(&mut [&mut first], "it is there", |nodes| nodes[0].state.is_some());
    let place = KvAddress { host: "127.0.0.1".into(), port, clock: clock::now };
    let far = own("far", Some(5));
    let mut said = Vec::new();
    let has_failed = Cell::new(false);
    let mut left = || Ok(if has_failed.get() { Duration::ZERO } else { PATIENCE });
    let mut on_poll = |participants: Result<&[String], &str>| {
        said.push(format!("{participants:?}"));
        has_failed.set(participants.is_err());
    };
    let failed = sync(&place, "job", 2, &far, false, &mut left, &mut on_poll).unwrap_err();
    assert_eq!(failed.kind(), ErrorKind::TimedOut);
    assert!(said.iter().all(|line| line.contains("409")), "{said:?}");
}

static LATER: AtomicU64 = AtomicU64::new(0);

fn shifted() -> Duration {
    clock::now() + Duration::from_secs(LATER.load(SeqCst))
}

#[test]
fn a_launcher_that_died_before_the_round_is_not_waited_for() {
    let (_server, port) = started(MasterConfig { clock: shifted, ..config(None, LEASE) });
    let place = KvAddress { host: "127.0.0.1".into(), port, clock: clock::now };
    let is_there = Cell::new(false);
    let mut left = || if is_there.get() { Err(ErrorKind::Interrupted.into()) } else { Ok(PATIENCE) };
    let mut on_poll = |said: Result<&[String], &str>| is_there.set(said.is_ok());
    let ended = sync(&place, "job", 2, &own("dead", None), false, &mut left, &mut on_poll).unwrap_err();
    assert_eq!(ended.kind(), ErrorKind::Interrupted);
    LATER.store(4, SeqCst);
    let alive = waiting(port, 2, own("alive", None));
    let mut us = Node::new(to(port, None, LEASE), "us", 2);
    until(&mut [&mut us], "it runs", |nodes| nodes[0].runs());
    assert_eq!(us.ids(), ["paddle:alive", "us"]);
    assert_eq!(alive.join().unwrap().unwrap().all.len(), 2);
}

static MUCH_LATER: AtomicU64 = AtomicU64::new(0);

fn shifted_more() -> Duration {
    clock::now() + Duration::from_secs(MUCH_LATER.load(SeqCst))
}

#[test]
fn a_short_job_waits_for_nodes_that_have_not_read_the_members() {
    let (mut server, port) = started(MasterConfig { clock: shifted_more, ..config(None, LEASE) });
    let place = KvAddress { host: "127.0.0.1".into(), port, clock: clock::now };
    let mut left = || Ok(PATIENCE);
    let mut us = Node::new(to(port, None, LEASE), "us", 2);
    let them = own("them", None);
    let put = place.request("POST", "/job/info/them/-1", them.payload.as_bytes(), &mut left).unwrap();
    assert_eq!(put.status(), Some(200));
    until(&mut [&mut us], "it runs", |nodes| nodes[0].runs());
    us.stand(NodeStatus::done(1));
    until(&mut [&mut us], "it ends", |nodes| nodes[0].end == Some(JobEnd::Completed));
    us.backend.close(PATIENCE).unwrap();
    thread::scope(|scope| {
        let closing = scope.spawn(|| server.close(PATIENCE));
        let read = place.request("GET", "/job/info", b"", &mut left).unwrap();
        let text = String::from_utf8(read.body).unwrap();
        assert!(text.contains("/job/info/them/-1") && text.contains("/job/info/us/-1"), "{text}");
        MUCH_LATER.store(4, SeqCst);
        drop(raw(port));
        assert!(closing.join().unwrap());
    });
}
