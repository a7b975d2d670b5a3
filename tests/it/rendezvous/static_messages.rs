//! Messages between the nodes of a static rendezvous, where senders die and connections break.

use crate::rendezvous::cable::Cable;
use crate::rendezvous::within;
use crossbeam_channel::{Receiver, Sender, bounded};
use rlaunch::net::listen;
use rlaunch::rendezvous::questions::{QuestionEvent, QuestionMessage};
use rlaunch::rendezvous::torch_static::{StaticPeers, codec};
use rlaunch::rendezvous::torch_store::StoreLimits;
use rlaunch::rendezvous::torch_store::client::{StoreClient, wire_key};
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(20);

/// Node 0, and node 1 on a cable.
struct Nodes {
    zero: StaticPeers,
    one: StaticPeers,
    cable: Cable,
    port: u16,
}

impl Nodes {
    fn start() -> Self {
        let listeners = listen::loopback(0).unwrap();
        let port = listeners[0].local_addr().unwrap().port();
        let time = &mut within(PATIENCE);
        let zero = StaticPeers::serve((listeners, StoreLimits::default()), "run", 2, time).unwrap();
        let cable = Cable::to(port);
        let one = StaticPeers::connect(("127.0.0.1", cable.port), "run", (1, 2), time).unwrap();
        Self { zero, one, cable, port }
    }

    /// A process at the store that is not a node.
    fn client(&self) -> StoreClient {
        StoreClient::connect("127.0.0.1", self.port, &mut within(PATIENCE)).unwrap()
    }
}

/// What sends the messages of a node, and what it receives: their numbers and texts.
fn connected(node: &StaticPeers) -> (Sender<QuestionMessage>, Receiver<(String, String)>) {
    let (heard, received) = bounded(16);
    let listener = move |event| {
        if let QuestionEvent::Asked { id, text, .. } = event {
            heard.send((id, text)).unwrap();
        }
    };
    (node.connect_messages(Box::new(listener)).unwrap(), received)
}

fn tell(sender: &Sender<QuestionMessage>, to: Option<&str>, text: &str) {
    sender.send(QuestionMessage::Tell { number: 1, to: to.map(str::to_owned), text: text.into() }).unwrap();
}

fn heard(received: &Receiver<(String, String)>) -> (String, String) {
    received.recv_timeout(PATIENCE).expect("no message has arrived")
}

fn message(number: &str, text: &str) -> (String, String) {
    (number.into(), text.into())
}

fn key(family: &str, name: &str) -> Vec<u8> {
    wire_key("run", &format!("{family}{name}"))
}

#[test]
fn a_sender_that_dies_before_it_writes_does_not_silence_those_after_it() {
    let nodes = Nodes::start();
    let ((to_others, to_zero), (from_one, to_one)) = (connected(&nodes.zero), connected(&nodes.one));
    let (mut dead, time) = (nodes.client(), &mut within(PATIENCE));
    for family in [codec::MESSAGES, codec::MESSAGES_TO_FIRST] {
        assert_eq!(dead.add(&key(family, "count"), 4, time).unwrap(), 4);
        // Another sender has died before it has looked for gaps.
        dead.set(&key(family, "3"), br#"{"node": 7, "text": "of 7"}"#, time).unwrap();
    }
    drop(dead);
    tell(&to_others, None, "from 0");
    assert_eq!((heard(&to_one), heard(&to_one)), (message("3", "of 7"), message("5", "from 0")));
    tell(&from_one, Some("0"), "from 1");
    assert_eq!((heard(&to_zero), heard(&to_zero)), (message("3", "of 7"), message("5", "from 1")));
}

#[test]
fn a_slow_sender_whose_number_is_passed_over_takes_another() {
    let nodes = Nodes::start();
    let ((to_others, _), (_, to_one)) = (connected(&nodes.zero), connected(&nodes.one));
    let key = key(codec::MESSAGES, "1");
    assert_eq!(nodes.client().set_if_missing(&key, b"null", &mut within(PATIENCE)).unwrap(), b"null");
    tell(&to_others, None, "late");
    assert_eq!(heard(&to_one), message("2", "late"));
}

#[test]
fn a_node_whose_connection_breaks_receives_the_next_message() {
    let nodes = Nodes::start();
    let ((to_others, _), (_, to_one)) = (connected(&nodes.zero), connected(&nodes.one));
    tell(&to_others, None, "before");
    assert_eq!(heard(&to_one), message("1", "before"));
    nodes.cable.cut();
    tell(&to_others, None, "meanwhile");
    nodes.cable.mend();
    tell(&to_others, None, "after");
    assert_eq!((heard(&to_one), heard(&to_one)), (message("2", "meanwhile"), message("3", "after")));
}
