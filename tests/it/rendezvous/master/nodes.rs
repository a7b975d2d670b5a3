//! Nodes rendezvous, end and are considered lost.

use super::*;
use rlaunch::protocol::admission::MAX_RANKS;
use rlaunch::rendezvous::master::auth::{LinkAuth, LinkSide};
use rlaunch::rendezvous::master::frame::{FrameReader, FromMaster, FromNode, KEYED, MAX_LINE, NONCE, SharedBody};
use rlaunch::rendezvous::master::http::{self, HttpParser};
use rlaunch::spec::rendezvous::MAX_NODES;
use std::io::{ErrorKind, Read, Write};

/// A node's end of a link, by hand.
pub struct Bare {
    pub socket: TcpStream,
    lines: FrameReader,
    pub auth: LinkAuth,
}

impl Bare {
    pub fn new(port: u16, key: Option<&str>) -> Self {
        let mut socket = raw(port);
        let more = format!("Connection: upgrade\r\nUpgrade: rlaunch\r\n{NONCE}: mine\r\n");
        socket.write_all(&http::request("GET", "/rlaunch/v1", "h", b"", &more)).unwrap();
        let mut parser = HttpParser::of_responses();
        let mut chunk = [0; 4096];
        let answer = loop {
            if let Some(answer) = parser.next_message().unwrap() {
                break answer;
            }
            let count = socket.read(&mut chunk).unwrap();
            assert_ne!(count, 0);
            parser.feed(&chunk[..count]);
        };
        assert_eq!((answer.status(), answer.header(KEYED).is_some()), (Some(101), true));
        let auth = LinkAuth::new(key, "mine", answer.header(NONCE).unwrap(), LinkSide::Node);
        let mut lines = FrameReader::default();
        lines.feed(&parser.into_rest());
        Self { socket, lines, auth }
    }

    pub fn say(&mut self, said: &FromNode) -> Vec<u8> {
        let line = SharedBody::of(said).line(&mut self.auth);
        self.socket.write_all(&line).unwrap();
        line
    }

    pub fn hello(&mut self, id: &str, job: &str, max: usize) {
        let record = record(id, max, NodeStatus::Ready { seen: 0 });
        self.say(&FromNode::Hello { version: String::new(), job: job.into(), id: id.into(), record });
    }

    /// The next message; `None`: no more.
    pub fn hear(&mut self) -> Option<FromMaster> {
        let mut chunk = [0; 4096];
        loop {
            if let Some(said) = self.lines.next_message(&mut self.auth).unwrap() {
                return Some(said);
            }
            match self.socket.read(&mut chunk) {
                Ok(0) => return None,
                Ok(count) => self.lines.feed(&chunk[..count]),
                Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => return None,
                Err(error) => panic!("{error}"),
            }
        }
    }
}

#[test]
fn two_nodes_agree_and_end() {
    for key in [None, Some("secret")] {
        let begin = clock::now();
        let (mut server, port) = started(config(key, LEASE));
        let (mut a, mut b) = pair(to(port, key, LEASE));
        println!("2 nodes, key {key:?}: {:?}", clock::now() - begin);
        assert_eq!((a.ids(), b.ids()), (vec!["a".into(), "b".into()], vec!["a".into(), "b".into()]));
        for node in [&mut a, &mut b] {
            node.stand(NodeStatus::done(1));
        }
        until(&mut [&mut a, &mut b], "both have ended", |nodes| {
            nodes.iter().all(|node| node.end == Some(JobEnd::Completed))
        });
        assert!(server.traffic().0 > 0 && a.backend.traffic().1 > 0);
        a.backend.close(PATIENCE).unwrap();
        // It serves while a node needs it.
        std::thread::scope(|scope| {
            let closing = scope.spawn(|| server.close(PATIENCE));
            b.backend.close(PATIENCE).unwrap();
            assert!(closing.join().unwrap());
        });
        assert!(TcpStream::connect(("127.0.0.1", port)).is_err());
    }
}

#[test]
fn fifty_nodes_agree() {
    for key in [None, Some("secret")] {
        let begin = clock::now();
        let (server, port) = started(config(key, LEASE));
        let mut nodes: Vec<Node> =
            (0..50).map(|i| Node::new(to(port, key, LEASE), &format!("node{i:02}"), 50)).collect();
        let mut all: Vec<&mut Node> = nodes.iter_mut().collect();
        until(&mut all, "all run", |nodes| nodes.iter().all(|node| node.runs()));
        println!("50 nodes, key {key:?}: {:?}, {:?} bytes in and out", clock::now() - begin, server.traffic());
        let expected: Vec<String> = (0..50).map(|i| format!("node{i:02}")).collect();
        assert!(nodes.iter().all(|node| node.ids() == expected));
    }
}

#[test]
fn a_node_whose_launcher_dies_is_missed_soon() {
    let (_server, port) = started(config(None, LEASE));
    let mut bare = Bare::new(port, None);
    bare.hello("b", "job", 2);
    let mut a = Node::new(to(port, None, LEASE), "a", 2);
    until(&mut [&mut a], "it runs", |nodes| nodes[0].runs());
    drop(bare);
    let time = until(&mut [&mut a], "the other is missed", |nodes| {
        matches!(nodes[0].phase(), Some(JobPhase::Stopping { .. } | JobPhase::Ended { .. }))
    });
    println!("missed after {time:?}");
    assert!(time < LEASE / 4, "{time:?}");
    until(&mut [&mut a], "it has ended", |nodes| lost_age(nodes[0]).is_some());
    assert_eq!(lost_age(&a), Some(Duration::ZERO));
}

#[test]
fn a_silent_node_is_missed_after_its_lease() {
    let lease = Duration::from_secs(2);
    let (_server, port) = started(config(None, lease));
    let mut bare = Bare::new(port, None);
    bare.hello("b", "job", 2);
    // Which lease it is the master says.
    let mut a = Node::new(to(port, None, LEASE * 100), "a", 2);
    until(&mut [&mut a], "it runs", |nodes| nodes[0].runs());
    let time = until(&mut [&mut a], "the other is missed", |nodes| lost_age(nodes[0]).is_some());
    let age = lost_age(&a).unwrap();
    println!("missed after {time:?}, heard of {age:?} before");
    assert!(age >= lease && age < lease * 2, "{age:?}");
}

#[test]
fn a_node_that_reconnects_replaces_its_old_connection() {
    let (_server, port) = started(config(None, LEASE));
    let mut old = Bare::new(port, None);
    old.hello("b", "job", 2);
    let mut a = Node::new(to(port, None, LEASE), "a", 2);
    until(&mut [&mut a], "it runs", |nodes| nodes[0].runs());
    let mut new = Bare::new(port, None);
    new.hello("b", "job", 2);
    while old.hear().is_some() {}
    new.say(&FromNode::Ping);
    let heard: Vec<FromMaster> =
        std::iter::from_fn(|| new.hear()).take_while(|said| !matches!(said, FromMaster::Pong { .. })).collect();
    assert!(
        matches!(&heard[..], [FromMaster::Hello { .. }, FromMaster::State { members: Some(_), .. }, ..]),
        "{heard:?}"
    );
    a.act();
    assert!(matches!(a.phase(), Some(JobPhase::Running)), "it was never gone");
}

#[test]
fn a_node_that_leaves_is_gone_at_once_and_others_hear_the_end_of_the_master() {
    let (server, port) = started(config(None, LEASE));
    let (mut a, mut b) = pair(to(port, None, LEASE));
    b.backend.close(PATIENCE).unwrap();
    let time = until(&mut [&mut a], "the other is missed", |nodes| lost_age(nodes[0]).is_some());
    assert!(time < LEASE / 2, "{time:?}");
    drop(server);
    let time = until(&mut [&mut a], "the master is missed", |nodes| nodes[0].lost().is_some());
    assert!(time < LEASE / 4, "{time:?}");
}

/// Another master at a port that one has just left. A connection of another test may have the port for a moment.
fn again(port: u16, key: Option<&str>) -> MasterServer {
    let deadline = clock::now() + PATIENCE;
    let listeners = loop {
        match listen::loopback(port) {
            Err(error) if error.kind() == ErrorKind::AddrInUse && clock::now() < deadline => {
                poll(&mut [], PollTimeout::from(10_u8)).unwrap();
            }
            listeners => break listeners.unwrap(),
        }
    };
    serve(listeners, config(key, LEASE), Box::new(Coordinator::new(clock::now()))).unwrap()
}

#[test]
fn a_master_that_was_started_anew_has_another_job() {
    for key in [None, Some("secret")] {
        let (server, port) = started(config(key, LEASE));
        let (mut a, _b) = pair(to(port, key, LEASE));
        drop(server);
        let _anew = again(port, key);
        let time = until(&mut [&mut a], "it is refused", |nodes| nodes[0].refused().is_some());
        println!("refused after {time:?}");
        let why = a.refused().unwrap();
        assert!(why.contains(&format!("127.0.0.1:{port} was restarted")) && why.contains("start this node"), "{why}");
        assert!(!a.is_back(), "{:?}", a.news);
    }
}

#[test]
fn a_node_without_a_state_from_the_first_master_joins_the_second() {
    // The first says which it is, and no more.
    let first = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = first.local_addr().unwrap().port();
    let mut a = Node::new(to(port, None, LEASE), "a", 1);
    let (mut socket, _) = first.accept().unwrap();
    let hello = r#"{"say":"hello","version":"1","job":"job","instance":"first","lease_ms":10000}"#;
    write!(socket, "HTTP/1.1 101 Yes\r\n{NONCE}: 1\r\n{KEYED}: no\r\n\r\n{hello}\n").unwrap();
    let mut heard = String::new();
    while !heard.contains("hello") {
        let mut chunk = [0; 4096];
        let count = socket.read(&mut chunk).unwrap();
        heard.push_str(std::str::from_utf8(&chunk[..count]).unwrap());
    }
    drop((first, socket));
    let _second = again(port, None);
    until(&mut [&mut a], "it runs", |nodes| nodes[0].runs());
    assert_eq!(a.refused(), None);
}

#[test]
fn the_list_of_members_of_the_largest_job_fits_in_a_message() {
    let mut random = fastrand::Rng::with_seed(1);
    let mut member = |number: usize| {
        let address = format!("10.{}.{}.{}", number >> 16, number >> 8 & 255, number & 255);
        let endpoints =
            [(); MAX_RANKS / MAX_NODES].map(|()| format!("{address}:{}", random.u16(32768..61000))).to_vec();
        let info = NodeInfo { host: format!("node-{number}"), address, endpoints, ..NodeInfo::default() };
        RoundMember { id: std::iter::repeat_with(|| random.alphanumeric()).take(16).collect(), info }
    };
    // A part of it: the list of all has 40 MB before it is compressed.
    const PART: usize = 32;
    let members: Vec<RoundMember> = (0..MAX_NODES / PART).map(|number| member(number * PART)).collect();
    let state = FromMaster::State { state: String::new(), members: Some(member_list::encode(&members)) };
    let length = SharedBody::of(&state).text.len() * PART;
    // Beside it there is the state, with 64 refusals and 32 names at most.
    assert!(length < MAX_LINE - 100_000, "{length}");
}
