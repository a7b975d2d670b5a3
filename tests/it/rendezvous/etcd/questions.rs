//! Questions between nodes at etcd: their keys, their leases, and what is too long.

use super::node::{Node, config};
use super::server::{Etcd, LIMIT, wait_for};
use super::two;
use crossbeam_channel::{Receiver, unbounded};
use rlaunch::rendezvous::backend::RendezvousBackend;
use rlaunch::rendezvous::questions::{MAX_ANSWER, MAX_QUESTION, QuestionEvent, QuestionMessage, QuestionSender};
use std::time::Duration;

fn connected(node: &mut Node) -> (Box<dyn QuestionSender>, Receiver<QuestionEvent>) {
    let (events, heard) = unbounded();
    (node.backend.connect_questions(Box::new(move |event| drop(events.send(event)))), heard)
}

fn ask(number: u64, text: &str) -> QuestionMessage {
    QuestionMessage::Ask { number, text: text.into() }
}

fn reply(id: &str, text: &str) -> QuestionMessage {
    QuestionMessage::Answer { asker: "a".into(), id: id.into(), text: text.into() }
}

/// The id of the next question that a node hears.
fn next_id(heard: &Receiver<QuestionEvent>, asker: &str, text: &str) -> String {
    match heard.recv_timeout(LIMIT).unwrap() {
        QuestionEvent::Asked { asker: by, id, text: what } if (by.as_str(), what.as_str()) == (asker, text) => id,
        other => panic!("{other:?}"),
    }
}

fn keys(etcd: &Etcd) -> Vec<String> {
    let all = etcd.keys("/rlaunch/job/");
    all.into_iter().filter(|key| ["questions/", "answers/", "sent/"].iter().any(|part| key.contains(part))).collect()
}

#[test]
fn each_node_asks_all_others_and_leaves_no_key() {
    let etcd = Etcd::start();
    let config = config(&[etcd.endpoint()], "job");
    let (mut a, mut b) = two(&config);
    let ((mut from_a, at_a), (mut from_b, at_b)) = (connected(&mut a), connected(&mut b));
    for round in 1..=3 {
        from_a.send(ask(round, "why?\n"));
        let id = next_id(&at_b, "a", "why?\n");
        // Too long, of no question, and with no lease: they are lost.
        for message in [reply(&id, &"x".repeat(MAX_ANSWER + 1)), reply("a.9.7", "x"), reply("a", "x")] {
            from_b.send(message);
        }
        let text = "x".repeat(MAX_ANSWER);
        from_b.send(reply(&id, &text));
        let answer = QuestionEvent::Answered { number: round, node: "b".into(), text };
        assert_eq!(at_a.recv_timeout(LIMIT).unwrap(), answer);
        assert_eq!(keys(&etcd).len(), 2);
        from_a.send(QuestionMessage::Forget { number: round });
        assert!(keys(&etcd).is_empty());
        // Too late.
        from_b.send(reply(&id, "x"));
        assert!(keys(&etcd).is_empty());
    }
    from_a.send(ask(4, &"x".repeat(MAX_QUESTION + 1)));
    from_b.send(ask(1, "and you?"));
    next_id(&at_a, "b", "and you?");
    assert!(at_a.is_empty() && at_b.is_empty());
    a.close();
    b.close();
    assert_eq!(etcd.keys("/"), [""; 0]);
}

#[test]
fn what_a_lost_node_has_asked_goes_with_its_lease() {
    let etcd = Etcd::start();
    let config = config(&[etcd.endpoint()], "job");
    let (mut a, mut b) = two(&config);
    let ((mut from_a, _), (mut from_b, at_b)) = (connected(&mut a), connected(&mut b));
    from_a.send(ask(1, "?"));
    from_b.send(reply(&next_id(&at_b, "a", "?"), "an answer"));
    assert_eq!(keys(&etcd).len(), 2);
    drop((a, from_a));
    wait_for("the end of its keys", || keys(&etcd).is_empty());
    b.close();
    assert_eq!(etcd.keys("/"), [""; 0]);
}

#[test]
fn what_a_node_tells_is_heard_and_leaves_no_key() {
    let etcd = Etcd::start();
    let config = config(&[etcd.endpoint()], "job");
    let (mut a, mut b) = two(&config);
    let ((mut from_a, at_a), (_, at_b)) = (connected(&mut a), connected(&mut b));
    for number in 1..=20 {
        from_a.send(QuestionMessage::Tell { number, to: None, text: "hurry".into() });
        assert!(keys(&etcd).is_empty());
        next_id(&at_b, "a", "hurry");
    }
    assert!(at_a.is_empty() && at_b.is_empty());
    a.close();
    b.close();
    assert_eq!(etcd.keys("/"), [""; 0]);
}

#[test]
fn what_is_sent_to_one_node_reaches_no_other_and_leaves_no_key() {
    let etcd = Etcd::start();
    let config = config(&[etcd.endpoint()], "job");
    let (mut a, mut b) = two(&config);
    let ((mut from_a, at_a), (mut from_b, at_b)) = (connected(&mut a), connected(&mut b));
    let tell = |number, to: Option<&str>, text: &str| QuestionMessage::Tell {
        number,
        to: to.map(str::to_owned),
        text: text.into(),
    };
    from_a.send(QuestionMessage::ReceiveOwn);
    // The watch has begun once something comes: what is sent before is lost.
    let text_of = |event: QuestionEvent| match event {
        QuestionEvent::Asked { asker, text, .. } if asker == "b" => text,
        other => panic!("{other:?}"),
    };
    let mut number = 0;
    wait_for("the watch", || {
        number += 1;
        from_b.send(tell(number, Some("a"), "hurry"));
        at_a.recv_timeout(Duration::from_millis(100)).is_ok()
    });
    from_b.send(tell(1000, Some("c"), "not for a"));
    from_b.send(tell(1001, Some("a"), &"x".repeat(MAX_QUESTION + 1)));
    from_b.send(tell(1002, Some("a"), "for a"));
    let mut heard = std::iter::repeat_with(|| text_of(at_a.recv_timeout(LIMIT).unwrap()));
    assert_eq!(heard.find(|text| text != "hurry").unwrap(), "for a");
    // b does not receive what is sent to it alone before it asks for that.
    from_a.send(tell(1, Some("b"), "early"));
    from_a.send(tell(2, None, "to all"));
    next_id(&at_b, "a", "to all");
    assert!(keys(&etcd).is_empty());
    a.close();
    b.close();
    assert_eq!(etcd.keys("/"), [""; 0]);
}

#[test]
fn questions_that_are_not_forgotten_give_way_to_new_ones() {
    let etcd = Etcd::start();
    let config = config(&[etcd.endpoint()], "job");
    let (mut a, mut b) = two(&config);
    let ((mut from_a, at_a), (mut from_b, at_b)) = (connected(&mut a), connected(&mut b));
    for number in 1..=20 {
        from_a.send(ask(number, "?"));
    }
    assert_eq!(keys(&etcd).len(), 16);
    let ids: Vec<String> = (1..=20).map(|_| next_id(&at_b, "a", "?")).collect();
    ids.iter().for_each(|id| from_b.send(reply(id, "an answer")));
    let number = |_| match at_a.recv_timeout(LIMIT).unwrap() {
        QuestionEvent::Answered { number, .. } => number,
        other => panic!("{other:?}"),
    };
    // Each has a watch of its own, so they come in any order.
    let mut answered: Vec<u64> = (0..16).map(number).collect();
    answered.sort_unstable();
    assert_eq!(answered, (5..=20).collect::<Vec<_>>());
    a.close();
    b.close();
    assert_eq!(etcd.keys("/"), [""; 0]);
}
