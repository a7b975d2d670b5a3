//! Clients without the job's key, or with another, are rejected, and so are replayed messages.

use super::nodes::Bare;
use super::*;
use rlaunch::rendezvous::master::auth;
use rlaunch::rendezvous::master::client::paddle_kv::KvAddress;
use rlaunch::rendezvous::master::frame::{FromMaster, FromNode, KEYED, NONCE};
use std::io::{ErrorKind, Read, Write};
use std::net::TcpListener;
use std::thread;

fn why(config: MasterAddress) -> String {
    let mut node = Node::new(config, "x", 2);
    until(&mut [&mut node], "it is refused", |nodes| nodes[0].refused().is_some());
    node.refused().unwrap().to_owned()
}

#[test]
fn keys_have_to_be_the_same() {
    let (_open, open) = started(config(None, LEASE));
    let (_closed, closed) = started(config(Some("secret"), LEASE));
    for (port, key, words) in [
        (closed, Some("wrong"), "another secret"),
        (closed, None, "has a secret"),
        (open, Some("secret"), "accepts every node"),
    ] {
        let why = why(to(port, key, LEASE));
        assert!(why.contains(words) && why.contains("RLAUNCH_JOB_SECRET"), "{why}");
    }
    let other = MasterAddress { job: "other".into(), ..to(open, None, LEASE) };
    let why = why(other);
    assert!(why.contains("job job") && why.contains("job other"), "{why}");
}

#[test]
fn the_master_rejects_clients_without_a_proof() {
    let (_server, port) = started(config(Some("secret"), LEASE));
    let mut bare = Bare::new(port, Some("secret"));
    assert!(matches!(bare.hear(), Some(FromMaster::Hello { .. })));
    bare.auth = auth::LinkAuth::new(Some("wrong"), "mine", "whatever", auth::LinkSide::Node);
    bare.hello("evil", "job", 1);
    let mut text = String::new();
    bare.socket.read_to_string(&mut text).unwrap();
    assert!(text.contains("refused") && text.contains("RLAUNCH_JOB_SECRET"), "{text}");
    // Nor to another job's.
    let mut bare = Bare::new(port, Some("secret"));
    bare.hello("lost", "other", 1);
    assert!(matches!(bare.hear(), Some(FromMaster::Hello { .. })));
    let heard = bare.hear();
    assert!(matches!(&heard, Some(FromMaster::Refused { why }) if why.contains("other")), "{heard:?}");
    let mut a = Node::new(to(port, Some("secret"), LEASE), "a", 1);
    until(&mut [&mut a], "it runs", |nodes| nodes[0].runs());
    assert_eq!(a.ids(), ["a"], "the others have never been there");
}

#[test]
fn a_replayed_message_is_rejected() {
    let (_server, port) = started(config(Some("secret"), LEASE));
    let mut bare = Bare::new(port, Some("secret"));
    bare.hello("b", "job", 2);
    let line = bare.say(&FromNode::Ping);
    loop {
        match bare.hear() {
            Some(FromMaster::Pong { .. }) => break,
            heard => assert!(heard.is_some()),
        }
    }
    bare.socket.write_all(&line).unwrap();
    let last = std::iter::from_fn(|| bare.hear()).last();
    assert!(matches!(&last, Some(FromMaster::Refused { .. })), "{last:?}");
}

#[test]
fn a_node_with_a_key_wants_a_proof_of_the_master() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let impostor = thread::spawn(move || {
        let (mut socket, _) = listener.accept().unwrap();
        let hello = "0".repeat(64) + " {\"say\":\"hello\",\"version\":\"1\",\"job\":\"job\"}\n";
        let head = format!("HTTP/1.1 101 Yes\r\n{NONCE}: 1\r\n{KEYED}: yes\r\n\r\n");
        socket.write_all((head + &hello).as_bytes()).unwrap();
        let mut heard = Vec::new();
        let _ = socket.read_to_end(&mut heard);
        String::from_utf8(heard).unwrap()
    });
    assert!(why(to(port, Some("secret"), LEASE)).contains("another secret"));
    let heard = impostor.join().unwrap();
    assert!(!heard.contains("hello"), "it received nothing: {heard}");
}

#[test]
fn a_job_with_a_key_refuses_paddle_s_protocol() {
    let (_server, port) = started(config(Some("secret"), LEASE));
    let place = KvAddress { host: "127.0.0.1".into(), port, clock: clock::now };
    let mut left = || Ok(PATIENCE);
    for method in ["PUT", "POST", "GET", "DELETE"] {
        let refused = place.request(method, "/x", b"1", &mut left).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::PermissionDenied);
        assert!(refused.to_string().contains("start all nodes with rlaunch"), "{refused}");
    }
    let health = place.request("GET", "/healthy", b"", &mut left).unwrap();
    assert_eq!((health.status(), &*health.body), (Some(200), &br#"{"/healthy": "ok"}"#[..]));
    // Paddle's launcher shows neither the status nor the body, but a user of curl sees why.
    let mut socket = raw(port);
    write!(socket, "GET /job/info HTTP/1.0\r\n\r\n").unwrap();
    let mut text = String::new();
    socket.read_to_string(&mut text).unwrap();
    assert!(text.starts_with("HTTP/1.1 401 ") && text.contains("start all nodes with rlaunch"), "{text}");
}
