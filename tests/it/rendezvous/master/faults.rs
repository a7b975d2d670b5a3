//! Network faults: garbage, silence, cuts.

use super::nodes::Bare;
use super::*;
use nix::sys::socket::{setsockopt, sockopt};
use rlaunch::rendezvous::master::frame::{FromMaster, FromNode};
use rlaunch::rendezvous::master::{ProbeResult, probe};
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::thread;

/// Passes on the bytes that come to a port, or drops them.
struct Forwarder {
    port: u16,
    pipes: Arc<Mutex<Vec<Pipe>>>,
    /// Whether new connections break at once.
    is_closed: Arc<AtomicBool>,
    /// How many of the next ones do.
    refuses: Arc<AtomicU64>,
}

struct Pipe {
    ends: [TcpStream; 2],
    silent: Arc<AtomicBool>,
}

impl Forwarder {
    fn new(to: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let pipes: Arc<Mutex<Vec<Pipe>>> = Arc::default();
        let (own, is_closed) = (Arc::clone(&pipes), Arc::new(AtomicBool::new(false)));
        let (closed, refuses) = (Arc::clone(&is_closed), Arc::new(AtomicU64::new(0)));
        let refused = Arc::clone(&refuses);
        thread::spawn(move || {
            for socket in listener.incoming() {
                let Ok(here) = socket else { return };
                let is_refused = refused.fetch_update(SeqCst, SeqCst, |left| left.checked_sub(1)).is_ok();
                if closed.load(SeqCst) || is_refused {
                    continue;
                }
                let there = TcpStream::connect(("127.0.0.1", to)).unwrap();
                let silent = Arc::new(AtomicBool::new(false));
                for (mut from, mut into) in
                    [(&here, &there), (&there, &here)].map(|(a, b)| (a.try_clone().unwrap(), b.try_clone().unwrap()))
                {
                    let silent = Arc::clone(&silent);
                    thread::spawn(move || {
                        let mut chunk = [0; 4096];
                        while let Ok(count @ 1..) = from.read(&mut chunk) {
                            if !silent.load(SeqCst) && into.write_all(&chunk[..count]).is_err() {
                                break;
                            }
                        }
                        if !silent.load(SeqCst) {
                            let _ = into.shutdown(Shutdown::Both);
                        }
                    });
                }
                own.lock().unwrap().push(Pipe { ends: [here, there], silent });
            }
        });
        Self { port, pipes, is_closed, refuses }
    }

    /// All connections that there are break.
    fn cut(&self) {
        for pipe in self.pipes.lock().unwrap().drain(..) {
            pipe.ends.iter().for_each(|end| drop(end.shutdown(Shutdown::Both)));
        }
    }

    /// The same, by a reset towards the server.
    fn reset(&self) {
        for Pipe { ends, silent } in self.pipes.lock().unwrap().drain(..) {
            silent.store(true, SeqCst);
            let now = libc::linger { l_onoff: 1, l_linger: 0 };
            setsockopt(&ends[1], sockopt::Linger, &now).unwrap();
            // The threads end, and with them the last copy of the socket.
            ends.iter().for_each(|end| drop(end.shutdown(Shutdown::Read)));
        }
    }

    /// They pass nothing on any more, without a word, also not that they close.
    fn silence(&self) {
        self.pipes.lock().unwrap().iter().for_each(|pipe| pipe.silent.store(true, SeqCst));
    }
}

#[test]
fn a_node_that_was_cut_off_comes_back() {
    let (_server, port) = started(config(None, LEASE));
    let way = Forwarder::new(port);
    let mut a = Node::new(to(way.port, None, LEASE), "a", 2);
    until(&mut [&mut a], "it is there", |nodes| nodes[0].state.is_some());
    way.cut();
    let time = until(&mut [&mut a], "it is back", |nodes| nodes[0].is_back());
    println!("back after {time:?}");
    assert!(a.lost().is_some());
    let mut b = Node::new(to(port, None, LEASE), "b", 2);
    until(&mut [&mut a, &mut b], "both run", |nodes| nodes.iter().all(|node| node.runs()));
}

/// Time enough to come back, also where this machine has much to do.
fn slow() -> Duration {
    clock::now() / 40
}

#[test]
fn a_link_that_breaks_changes_nothing() {
    for key in [None, Some("k")] {
        let (_server, port) = started(MasterConfig { clock: slow, ..config(key, LEASE) });
        let way = Forwarder::new(port);
        let mut a = Node::new(to(port, key, LEASE), "a", 2);
        let mut b = Node::new(to(way.port, key, LEASE), "b", 2);
        until(&mut [&mut a, &mut b], "both run", |nodes| nodes.iter().all(|node| node.runs()));
        for _ in 0..3 {
            b.news.clear();
            way.cut();
            let time = until(&mut [&mut b], "it is back", |nodes| nodes[0].is_back());
            println!("back after {time:?}");
        }
        for node in [&mut a, &mut b] {
            assert!(node.runs() && matches!(node.phase(), Some(JobPhase::Running)), "{:?}", node.state);
            node.stand(NodeStatus::done(1));
        }
        until(&mut [&mut a, &mut b], "they end well", |nodes| {
            nodes.iter().all(|node| node.end == Some(JobEnd::Completed))
        });
        assert_eq!(a.lost(), None);
    }
}

#[test]
fn a_link_that_was_reset_may_be_away_for_a_fifth_of_the_lease() {
    let lease = Duration::from_secs(15);
    let (_server, port) = started(config(None, lease));
    let way = Forwarder::new(port);
    let mut a = Node::new(to(port, None, lease), "a", 2);
    let mut b = Node::new(to(way.port, None, lease), "b", 2);
    until(&mut [&mut a, &mut b], "both run", |nodes| nodes.iter().all(|node| node.runs()));
    // Its pauses between the attempts are longer than a launcher that has ended is waited for.
    way.refuses.store(4, SeqCst);
    way.reset();
    let time = until(&mut [&mut a, &mut b], "it is back", |nodes| nodes[1].is_back());
    assert!(time > Duration::from_millis(250), "{time:?}");
    for node in [&mut a, &mut b] {
        assert!(node.runs() && matches!(node.phase(), Some(JobPhase::Running)), "{:?}", node.state);
        node.stand(NodeStatus::done(1));
    }
    until(&mut [&mut a, &mut b], "they end well", |nodes| nodes.iter().all(|node| node.end == Some(JobEnd::Completed)));
}

#[test]
fn a_node_that_is_back_within_its_lease_was_never_gone() {
    let lease = Duration::from_secs(6);
    let (_server, port) = started(config(Some("k"), lease));
    let way = Forwarder::new(port);
    let mut a = Node::new(to(port, Some("k"), lease), "a", 2);
    let mut b = Node::new(to(way.port, Some("k"), lease), "b", 2);
    until(&mut [&mut a, &mut b], "both run", |nodes| nodes.iter().all(|node| node.runs()));
    way.silence();
    let time = until(&mut [&mut b], "it is back", |nodes| nodes[0].is_back());
    println!("noticed and back after {time:?}");
    assert!(time < lease && b.lost().is_some_and(|why| why.contains("has sent nothing")), "{:?}", b.lost());
    for node in [&mut a, &mut b] {
        node.stand(NodeStatus::done(1));
    }
    until(&mut [&mut a, &mut b], "they end well", |nodes| nodes.iter().all(|node| node.end == Some(JobEnd::Completed)));
}

/// It is waited for until then, so its ranks may be asked to stop, and need not be killed.
#[test]
fn the_lease_of_a_node_that_is_considered_gone_goes_on_until_it_lapses() {
    let (_server, port) = started(config(None, LEASE));
    let way = Forwarder::new(port);
    let mut a = Node::new(to(port, None, LEASE), "a", 2);
    let mut b = Node::new(to(way.port, None, LEASE), "b", 2);
    until(&mut [&mut a, &mut b], "both run", |nodes| nodes.iter().all(|node| node.runs()));
    way.is_closed.store(true, SeqCst);
    way.cut();
    until(&mut [&mut a], "b is gone", |nodes| matches!(nodes[0].phase(), Some(JobPhase::Stopping { .. })));
    way.is_closed.store(false, SeqCst);
    until(&mut [&mut b], "it is back", |nodes| nodes[0].is_back());
    let joined = |node: &Node| node.news.iter().filter(|news| matches!(news, BackendEvent::Joined { .. })).count();
    assert_eq!((joined(&a), joined(&b)), (1, 1), "{:?}", b.news);
}

#[test]
fn a_storm_of_garbage_is_not_noticed() {
    let (server, port) = started(MasterConfig { connections: 64, ..config(None, LEASE) });
    let mut a = Node::new(to(port, None, LEASE), "a", 2);
    until(&mut [&mut a], "it is there", |nodes| nodes[0].state.is_some());
    // Some stay and say nothing, or never finish, or read nothing.
    let mut staying = Vec::new();
    for i in 0..10_000 {
        let mut socket = raw(port);
        let _ = match i % 5 {
            0 => socket.write_all(&[0xff; 300]),
            1 => socket.write_all(b"GET / HTTP/1.1\r\nX: "),
            2 => socket.write_all(b"POST /x HTTP/1.1\r\nContent-Length: 104857600\r\n\r\nxxxx"),
            3 => socket.write_all(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n"),
            _ => Ok(()),
        };
        if i % 25 < 5 && staying.len() < 200 {
            staying.push(socket);
        }
    }
    let half = Bare::new(port, None);
    let mut b = Node::new(to(port, None, LEASE), "b", 2);
    let time = until(&mut [&mut a, &mut b], "both run", |nodes| nodes.iter().all(|node| node.runs()));
    println!("agreed in the storm after {time:?}");
    assert_eq!((a.lost(), b.lost()), (None, None));
    drop((server, half, staying));
}

#[test]
fn large_bodies_are_refused_and_odd_methods_answered() {
    let (_server, port) = started(config(None, LEASE));
    let ask = |text: &str| {
        let mut socket = raw(port);
        socket.write_all(text.as_bytes()).unwrap();
        let mut answer = String::new();
        let _ = socket.read_to_string(&mut answer);
        answer
    };
    for (text, status) in [
        ("PUT /x HTTP/1.1\r\nContent-Length: 104857600\r\n\r\n", "413"),
        ("HEAD / HTTP/1.0\r\n\r\n", "405"),
        ("BREW / HTTP/1.0\r\n\r\n", "501"),
        ("GET /nothing HTTP/1.0\r\n\r\n", "404"),
        ("GET /rlaunch/v1 HTTP/1.0\r\n\r\n", "404"),
        ("PUT /x HTTP/1.1\r\nContent-Length: 1\r\n\r\n1GET /x HTTP/1.1\r\nConnection: close\r\n\r\n", "200"),
    ] {
        let answer = ask(text);
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{text:?}: {answer}");
    }
    assert!(ask("GET /x HTTP/1.0\r\n\r\n").ends_with("\r\n\r\n{\"/x\": \"1\"}"));
}

#[test]
fn links_that_break_the_rules_are_hung_up_on() {
    let (_server, port) = started(config(None, LEASE));
    for garbage in [&b"no document\n"[..], b"{\"say\":\"ping\"}\n", b"\n", &vec![b' '; 5 << 20]] {
        let mut bare = Bare::new(port, None);
        // It may have hung up before all is sent.
        let _ = bare.socket.write_all(garbage);
        while bare.hear().is_some() {}
    }
    let (mut a, mut b) = pair(to(port, None, LEASE));
    for node in [&mut a, &mut b] {
        node.backend.put("no record");
    }
    b.backend.put(&"x".repeat(5 << 20));
    until(&mut [&mut a], "the other has said too much", |nodes| !matches!(nodes[0].phase(), Some(JobPhase::Running)));
}

static LATER: AtomicU64 = AtomicU64::new(0);

fn shifted() -> Duration {
    clock::now() + Duration::from_secs(LATER.load(SeqCst))
}

#[test]
fn an_unfinished_request_is_given_up() {
    let (_server, port) = started(MasterConfig { clock: shifted, ..config(None, LEASE) });
    let mut slow = raw(port);
    slow.write_all(b"GET / HT").unwrap();
    let mut idle = raw(port);
    idle.write_all(b"GET /healthy HTTP/1.1\r\n\r\n").unwrap();
    let mut chunk = [0; 4096];
    assert!(idle.read(&mut chunk).unwrap() > 0);
    LATER.store(31, SeqCst);
    drop(raw(port));
    assert_eq!((slow.read(&mut chunk).unwrap(), idle.read(&mut chunk).unwrap()), (0, 0));
}

#[test]
fn the_kind_of_listener_is_recognized() {
    let second = Duration::from_secs(10);
    let (server, port) = started(config(Some("k"), LEASE));
    assert!(
        matches!(probe("127.0.0.1", port, second, clock::now), ProbeResult::Rlaunch(instance) if !instance.is_empty())
    );
    drop(server);
    assert!(matches!(probe("127.0.0.1", port, second, clock::now), ProbeResult::Nothing(_)));
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = silent.local_addr().unwrap().port();
    assert!(matches!(probe("127.0.0.1", port, Duration::from_millis(50), clock::now), ProbeResult::Nothing(_)));
    drop(silent);
    let web = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = web.local_addr().unwrap().port();
    thread::spawn(move || {
        for socket in web.incoming().take(2) {
            let mut socket = socket.unwrap();
            let _ = socket.read(&mut [0; 4096]);
            socket.write_all(b"HTTP/1.0 418 I am a teapot\r\n\r\n").unwrap();
        }
    });
    let found = probe("127.0.0.1", port, second, clock::now);
    assert_eq!(found, ProbeResult::Foreign("HTTP/1.0 418 I am a teapot".into()));
}

#[test]
fn a_stranger_s_record_makes_no_state_too_long() {
    // Long enough that no node is lost while this one reads 70 long records.
    let lease = LEASE * 6;
    let (_server, port) = started(config(None, lease));
    let (mut a, mut b) = pair(to(port, None, lease));
    let hello = |id: String, record: String| {
        let mut bare = Bare::new(port, None);
        bare.say(&FromNode::Hello { version: String::new(), job: "job".into(), id, record });
        bare.say(&FromNode::Ping);
        bare
    };
    let unfit = |text: &str| {
        let text = text.to_owned();
        let rules = JobRules { frontend: text.clone(), min: 9, max: 9, ..JobRules::default() };
        let offer = NodeInfo { host: text.clone(), address: text.clone(), version: text, rules, ..NodeInfo::default() };
        serde_json::to_string(&NodeRecord { format: FORMAT, info: offer, status: NodeStatus::Ready { seen: 0 } })
            .unwrap()
    };
    for (id, record, words) in [
        ("x".repeat(1_900_000), unfit("h"), "id"),
        ("a b".into(), unfit("h"), "id"),
        ("x".into(), unfit(&"h".repeat(300_000)), "record"),
    ] {
        let heard: Vec<FromMaster> = {
            let mut bare = hello(id, record);
            std::iter::from_fn(|| bare.hear()).collect()
        };
        assert!(matches!(heard.last(), Some(FromMaster::Refused { why }) if why.contains(words)), "{heard:?}");
    }
    // Many that say as much as they may.
    let text = "\"\\".repeat(2_000);
    let strangers: Vec<Bare> = (0..70).map(|i| hello(format!("x{i}"), unfit(&text))).collect();
    until(&mut [&mut a, &mut b], "they are refused", |nodes| {
        nodes.iter().all(|node| node.state.as_ref().is_some_and(|state| state.refused.len() == 64))
    });
    let state = serde_json::to_string(a.state.as_ref().unwrap()).unwrap();
    println!("a state of {} bytes", state.len());
    assert!(state.len() < 128 * 1024, "{}", state.len());
    assert!(a.runs() && b.runs() && (a.lost(), b.lost()) == (None, None), "{:?}", a.lost());
    drop(strangers);
}
