//! Servers that stop, hang, are cut off, change their leader or forget.

use crate::rendezvous::cable::Cable;
use crate::rendezvous::etcd::node::{Node, config};
use crate::rendezvous::etcd::server::{Etcd, wait_for};
use rlaunch::rendezvous::backend::{BackendEvent, RendezvousBackend};
use rlaunch::rendezvous::etcd;
use std::time::{Duration, Instant};

/// Both hear `b`'s record, and neither was ever considered gone.
fn agree(a: &mut Node, b: &mut Node, word: &str) {
    b.backend.put(word);
    for node in [a, b] {
        let state = node.until_state(&format!("b={word}"));
        assert!(state.ends_with("[]"), "{state}");
    }
}

fn has_lost(node: &Node) -> bool {
    node.heard.iter().any(|news| matches!(news, BackendEvent::Lost { .. }))
}

#[test]
fn a_stopped_or_hanging_server_is_reported_and_retried() {
    let mut etcd = Etcd::start();
    let (mut a, mut b) =
        super::two(&etcd::EtcdConfig { lease: Duration::from_secs(6), ..config(&[etcd.endpoint()], "job") });
    etcd.stop();
    for node in [&mut a, &mut b] {
        let why = node.until_lost();
        assert!(why.contains("refused") && why.contains(&etcd.endpoint()), "{why}");
    }
    // Records that are put meanwhile are not lost.
    b.backend.put("meanwhile");
    etcd.restart();
    for node in [&mut a, &mut b] {
        node.until_back();
    }
    // The state may have come before the end of the loss was noticed.
    let state = a.heard_state("b=meanwhile").unwrap_or_else(|| a.until_state("b=meanwhile"));
    assert!(state.ends_with("[]"), "{state}");
    agree(&mut a, &mut b, "restarted");
    etcd.pause();
    for node in [&mut a, &mut b] {
        let why = node.until_lost();
        assert!(why.contains("no answer within"), "{why}");
    }
    etcd.go_on();
    for node in [&mut a, &mut b] {
        node.until_back();
    }
    agree(&mut a, &mut b, "awake");
    b.close();
    a.close();
    assert_eq!(etcd.keys("/"), [""; 0]);
}

#[test]
fn a_node_that_was_cut_off_for_longer_than_its_lease_comes_back() {
    let etcd = Etcd::start();
    let mut a = Node::start(&config(&[etcd.endpoint()], "job"), "a");
    a.until_state("[a=new]");
    let cable = Cable::to(etcd.client_port);
    let mut b = Node::start(&config(std::slice::from_ref(&cable.endpoint), "job"), "b");
    b.until_state("[a=new,b=new]");
    cable.cut();
    b.until_lost();
    a.until_state("[a=new] [b-2]");
    cable.mend();
    b.until_back();
    b.until_state("[a=new,b=new] [b-2]");
    a.until_state("[a=new,b=new] [b-2]");
    b.close();
    a.close();
    assert_eq!(etcd.keys("/"), [""; 0]);
}

#[test]
fn a_leader_that_is_cut_off_is_replaced_and_follows_when_it_is_back() {
    let etcd = Etcd::start();
    let cable = Cable::to(etcd.client_port);
    let mut a = Node::start(&config(std::slice::from_ref(&cable.endpoint), "job"), "a");
    a.until_state("[a=new]");
    let mut b = Node::start(&config(&[etcd.endpoint()], "job"), "b");
    b.until_state("[a=new,b=new]");
    cable.cut();
    a.backend.put("cut off");
    let state = b.until_state(" b [b=new]");
    cable.mend();
    a.until_back();
    let after = a.until_state("[a=cut off,b=new]");
    assert!(after.contains(" b "), "{state}, then {after}");
    a.close();
    b.close();
    assert_eq!(etcd.keys("/"), [""; 0]);
}

#[test]
fn compacted_revisions_are_read_anew() {
    let etcd = Etcd::start();
    let config = |endpoint: String| etcd::EtcdConfig { lease: Duration::from_secs(30), ..config(&[endpoint], "job") };
    let cable = Cable::to(etcd.client_port);
    let mut a = Node::start(&config(cable.endpoint.clone()), "a");
    a.until_state("[a=new]");
    let mut b = Node::start(&config(etcd.endpoint()), "b");
    b.until_state("[a=new,b=new]");
    let mut c = Node::start(&config(cable.endpoint.clone()), "c");
    c.until_state("[a=new,b=new,c=new]");
    a.until_state("[a=new,b=new,c=new]");
    // The leader and a follower both miss a record, and that a node leaves.
    cable.cut();
    for word in ["one", "two", "three"] {
        b.backend.put(word);
        wait_for("it is written", || etcd.value("/rlaunch/job/nodes/b").trim() == word);
    }
    let revision = etcd.revision();
    etcd.control(&["compact", &revision.to_string()]);
    cable.mend();
    for node in [&mut a, &mut b, &mut c] {
        node.until_state("b=three");
    }
    b.close();
    c.until_state("[a=new,c=new] [b-0]");
    c.close();
    a.close();
    assert_eq!(etcd.keys("/"), [""; 0]);
}

#[test]
fn a_cluster_may_change_its_leader_and_lose_a_member() {
    let mut cluster = Etcd::cluster();
    let endpoints: Vec<String> = cluster.iter().map(Etcd::endpoint).collect();
    // On a busy machine the cluster may need seconds to elect a leader.
    let config = etcd::EtcdConfig { lease: Duration::from_secs(30), ..config(&endpoints, "job") };
    let (mut a, mut b) = super::two(&config);
    for round in 0..3 {
        Etcd::move_leader(&cluster);
        agree(&mut a, &mut b, &format!("moved-{round}"));
    }
    // Whichever they are at.
    for (at, member) in cluster.iter_mut().enumerate() {
        member.stop();
        agree(&mut a, &mut b, &format!("stopped-{at}"));
        member.restart();
        agree(&mut a, &mut b, &format!("restarted-{at}"));
        member.pause();
        agree(&mut a, &mut b, &format!("paused-{at}"));
        member.go_on();
        member.until_healthy();
    }
    assert!(!has_lost(&a) && !has_lost(&b), "{:?} {:?}", a.heard, b.heard);
    b.close();
    a.close();
    assert_eq!(cluster[0].keys("/"), [""; 0]);
}

#[test]
fn closing_ends_where_no_server_answers() {
    let mut etcd = Etcd::start();
    let (mut a, mut b) = super::two(&config(&[etcd.endpoint()], "job"));
    etcd.stop();
    for node in [&mut a, &mut b] {
        let error = node.backend.close(Duration::from_secs(1)).unwrap_err();
        assert!(error.to_string().contains("this node's record goes with its lease"), "{error}");
    }
}

/// One etcd at three endpoints, and two nodes that know them all; the first one leads.
fn at_three(lease: Duration) -> (Etcd, Node, Node) {
    let etcd = Etcd::start();
    let endpoints = [(); 3].map(|()| Cable::to(etcd.client_port).endpoint);
    let (a, b) = super::two(&etcd::EtcdConfig { lease, ..config(&endpoints, "job") });
    (etcd, a, b)
}

#[test]
fn lost_contact_is_reported_after_two_thirds_of_a_lease_with_any_number_of_endpoints() {
    let lease = Duration::from_secs(9);
    let (etcd, mut a, mut b) = at_three(lease);
    etcd.pause();
    let began = Instant::now();
    // What it asks then is not to hold that up.
    a.backend.put("busy");
    for node in [&mut a, &mut b] {
        node.until_lost();
        let took = began.elapsed();
        assert!(took < lease * 2 / 3 + lease / 12, "{took:?}");
    }
    etcd.go_on();
    for node in [&mut a, &mut b] {
        node.until_back();
        if node.heard_state("a=busy").is_none() {
            node.until_state("a=busy");
        }
    }
    b.close();
    a.close();
    assert_eq!(etcd.keys("/"), [""; 0]);
}

#[test]
fn closing_lasts_a_second_longer_than_its_patience_however_many_endpoints_are_silent() {
    let (etcd, a, b) = at_three(Duration::from_secs(9));
    etcd.pause();
    for mut node in [a, b] {
        // It is being asked for something already.
        node.backend.put("busy");
        let began = Instant::now();
        node.backend.close(Duration::from_secs(1)).unwrap_err();
        let took = began.elapsed();
        assert!(took < Duration::from_millis(2500), "{took:?}");
    }
}

#[test]
fn an_etcd_that_has_lost_its_data_is_no_way_into_another_job_of_that_name() {
    let mut etcd = Etcd::start();
    let cables = [(); 2].map(|()| Cable::to(etcd.client_port));
    let at = |endpoint: &String| config(std::slice::from_ref(endpoint), "job");
    let mut a = Node::start(&at(&cables[0].endpoint), "a");
    a.until_state("[a=new]");
    let mut b = Node::start(&at(&cables[1].endpoint), "b");
    b.until_state("[a=new,b=new]");
    cables.iter().for_each(Cable::cut);
    etcd.restart_empty();
    // `a` finds nothing there, `b` another job, at whatever serial.
    cables[0].mend();
    assert!(a.until_refused().contains("does not exist any more"));
    a.close();
    let mut c = Node::start(&at(&etcd.endpoint()), "c");
    c.until_state("[c=new]");
    for number in 0..20 {
        let word = format!("w{number}");
        c.backend.put(&word);
        c.until_state(&format!("[c={word}]"));
    }
    cables[1].mend();
    assert!(b.until_refused().contains("does not exist any more"));
    b.close();
    c.close();
    assert_eq!(etcd.keys("/"), [""; 0]);
}
