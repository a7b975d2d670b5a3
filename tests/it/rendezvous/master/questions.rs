//! Questions between nodes at the embedded master.

use super::nodes::Bare;
use super::*;
use crossbeam_channel::{Receiver, unbounded};
use rlaunch::rendezvous::master::frame::{FromMaster, FromNode};
use rlaunch::rendezvous::questions::{
    ASKS_AT_ONCE, MAX_ANSWER, MAX_QUESTION, QuestionEvent, QuestionMessage, QuestionSender,
};

/// A node that takes part in questions, and what it hears.
fn connected(node: &mut Node) -> (Box<dyn QuestionSender>, Receiver<QuestionEvent>) {
    let (events, heard) = unbounded();
    (node.backend.connect_questions(Box::new(move |event| drop(events.send(event)))), heard)
}

fn ask(number: u64, text: &str) -> QuestionMessage {
    QuestionMessage::Ask { number, text: text.into() }
}

fn reply(asker: &str, id: &str, text: &str) -> QuestionMessage {
    QuestionMessage::Answer { asker: asker.into(), id: id.into(), text: text.into() }
}

fn asked(asker: &str, id: &str, text: &str) -> QuestionEvent {
    QuestionEvent::Asked { asker: asker.into(), id: id.into(), text: text.into() }
}

fn answered(number: u64, node: &str, text: &str) -> QuestionEvent {
    QuestionEvent::Answered { number, node: node.into(), text: text.into() }
}

/// The lease of nodes that read nothing for a while, or much, on a busy machine.
const LONG: Duration = Duration::from_secs(60);

#[test]
fn each_node_asks_all_others() {
    for key in [None, Some("secret")] {
        let (_server, port) = started(config(key, LEASE));
        let (mut a, mut b) = pair(to(port, key, LEASE));
        let ((mut from_a, at_a), (mut from_b, at_b)) = (connected(&mut a), connected(&mut b));
        let next = |heard: &Receiver<QuestionEvent>| heard.recv_timeout(PATIENCE).unwrap();
        from_a.send(ask(1, "why?\n"));
        assert_eq!(next(&at_b), asked("a", "1", "why?\n"));
        // Too long, of no node and of no question: they are lost, and nothing else is.
        let long = "x".repeat(MAX_ANSWER + 1);
        for message in [reply("a", "1", &long), reply("z", "1", "x"), reply("a", "x", "x")] {
            from_b.send(message);
        }
        from_b.send(reply("a", "1", &"x".repeat(MAX_ANSWER)));
        assert_eq!(next(&at_a), answered(1, "b", &"x".repeat(MAX_ANSWER)));
        from_a.send(ask(2, &"x".repeat(MAX_QUESTION + 1)));
        from_a.send(QuestionMessage::Forget { number: 1 });
        from_a.send(ask(3, "?"));
        assert_eq!(next(&at_b), asked("a", "3", "?"));
        from_b.send(ask(1, "and you?"));
        assert_eq!(next(&at_a), asked("b", "1", "and you?"));
        assert!(at_a.is_empty() && at_b.is_empty());
        until(&mut [&mut a, &mut b], "both run", |nodes| nodes.iter().all(|node| node.runs()));
        assert_eq!((a.lost(), b.lost()), (None, None));
    }
}

#[test]
fn what_is_sent_to_one_node_reaches_no_other() {
    let (_server, port) = started(config(None, LEASE));
    let (mut teller, mut first, mut other) = (Bare::new(port, None), Bare::new(port, None), Bare::new(port, None));
    teller.hello("t", "job", 3);
    first.hello("a", "job", 3);
    other.hello("b", "job", 3);
    for node in [&mut teller, &mut first, &mut other] {
        while !matches!(node.hear(), Some(FromMaster::Pong { .. })) {}
    }
    for (number, to) in [(1, Some("a")), (2, Some("t")), (3, Some("gone")), (4, None)] {
        teller.say(&FromNode::Ask { number, to: to.map(str::to_owned), text: "hurry".into() });
    }
    // The last one goes to all others.
    let numbers = |node: &mut Bare| {
        let asked = std::iter::from_fn(|| node.hear()).filter_map(|heard| match heard {
            FromMaster::Asked { number, .. } => Some(number),
            _ => None,
        });
        let mut all = Vec::new();
        for number in asked {
            all.push(number);
            if number == 4 {
                break;
            }
        }
        all
    };
    assert_eq!((numbers(&mut first), numbers(&mut other)), (vec![1, 4], vec![4]));
}

#[test]
fn a_node_that_is_flooded_with_answers_keeps_its_link() {
    let (_server, port) = started(config(None, LONG));
    let mut slow = Bare::new(port, None);
    slow.hello("b", "job", 2);
    let mut a = Node::new(to(port, None, LONG), "a", 2);
    until(&mut [&mut a], "both run", |nodes| nodes[0].runs());
    // It reads nothing while more arrives for it than may wait.
    let mut flood = Bare::new(port, None);
    flood.hello("c", "job", 2);
    let text = "x".repeat(MAX_ANSWER);
    for number in 0..100 {
        flood.say(&FromNode::Answer { asker: "b".into(), number, text: text.clone() });
    }
    flood.say(&FromNode::Ping);
    let mut pongs = 0;
    while pongs < 2 {
        pongs += usize::from(matches!(flood.hear(), Some(FromMaster::Pong { .. })));
    }
    slow.say(&FromNode::Ping);
    let (mut pongs, mut answers) = (0, 0);
    while pongs < 2 {
        match slow.hear() {
            Some(FromMaster::Pong { .. }) => pongs += 1,
            Some(FromMaster::Answered { .. }) => answers += 1,
            Some(_) => {}
            None => panic!("its link has ended"),
        }
    }
    println!("{answers} of 100 answers came");
    assert!(answers >= 1);
}

#[test]
fn a_node_that_asks_without_end_is_not_passed_on() {
    let (_server, port) = started(config(None, LONG));
    let (mut flood, mut hears, mut another) = (Bare::new(port, None), Bare::new(port, None), Bare::new(port, None));
    flood.hello("c", "job", 2);
    hears.hello("b", "job", 2);
    another.hello("a", "job", 2);
    let pong = |node: &mut Bare, asked: &mut usize| {
        while let Some(heard) = node.hear() {
            match heard {
                FromMaster::Pong { .. } => return,
                FromMaster::Asked { asker, .. } => *asked += usize::from(asker == "c"),
                _ => {}
            }
        }
        panic!("its link has ended");
    };
    let (mut none, mut asked, asks) = (0, 0, 2000);
    pong(&mut flood, &mut none);
    pong(&mut hears, &mut asked);
    pong(&mut another, &mut none);
    for number in 0..asks {
        flood.say(&FromNode::Ask { number, to: None, text: "?".into() });
    }
    flood.say(&FromNode::Ping);
    pong(&mut flood, &mut none);
    hears.say(&FromNode::Ping);
    pong(&mut hears, &mut asked);
    println!("{asked} of {asks} questions came");
    assert!(asked >= ASKS_AT_ONCE as usize && asked < asks as usize / 2);
    another.say(&FromNode::Ask { number: 7, to: None, text: "?".into() });
    let heard = std::iter::from_fn(|| hears.hear())
        .any(|heard| matches!(heard, FromMaster::Asked { asker, number: 7, .. } if asker == "a"));
    assert!(heard);
}
