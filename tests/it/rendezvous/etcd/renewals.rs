//! Certificates, users and rights that change while a job runs: contact is lost for as long as etcd does not accept the node.

use crate::rendezvous::etcd::authority::Authority;
use crate::rendezvous::etcd::node::{Node, config};
use crate::rendezvous::etcd::server::{Etcd, answering};
use rlaunch::rendezvous::backend::{BackendEvent, RendezvousBackend};
use rlaunch::rendezvous::etcd::EtcdConfig;
use std::time::Instant;

fn start(etcd: &Etcd, authority: &Authority) -> Node {
    let tls = Some(authority.tls(true));
    let mut node = Node::start(&EtcdConfig { tls, ..config(&[etcd.endpoint()], "job") }, "a");
    node.until_state("[a=new]");
    node
}

/// The node takes part as before.
fn takes_part(mut node: Node) {
    node.backend.put("later");
    node.until_state("[a=later]");
    node.close();
}

#[test]
fn renewed_certificates_are_read_when_the_node_connects_again() {
    let (own, next) = (Authority::new(), Authority::new());
    let mut etcd = own.etcd();
    let mut node = start(&etcd, &own);
    own.replace(&next, &["ca.pem", "server.pem", "server.key", "client.pem", "client.key"]);
    etcd.stop();
    node.until_lost();
    etcd.restart();
    node.until_back();
    takes_part(node);
}

#[test]
fn a_certificate_that_is_refused_in_mid_job_is_lost_contact_until_it_is_renewed() {
    let (own, next) = (Authority::new(), Authority::new());
    let mut etcd = own.etcd();
    let mut node = start(&etcd, &own);
    // The server's is renewed first, and a node's key after its certificate.
    own.replace(&next, &["ca.pem", "server.pem", "server.key", "client.pem"]);
    etcd.restart();
    let mut why = node.until_lost();
    while !why.contains("its certificate is not accepted") {
        why = node.until_lost();
    }
    assert!(why.contains(&etcd.endpoint()), "{why}");
    own.replace(&next, &["client.key"]);
    node.until_back();
    takes_part(node);
}

fn start_as_user(etcd: &Etcd) -> Node {
    let user = Some(("some".to_owned(), "word".to_owned()));
    let mut node = Node::start(&EtcdConfig { user, ..config(&[etcd.endpoint()], "job") }, "a");
    node.until_state("[a=new]");
    node
}

#[test]
fn a_user_that_is_gone_in_mid_job_hinders_the_node_until_there_is_one_again() {
    let etcd = Etcd::with_users(&[]);
    let control = |words: &[&str]| etcd.control(&[&["--user", "root:secret"], words].concat());
    let mut node = start_as_user(&etcd);
    control(&["user", "delete", "some"]);
    node.backend.put("unwritten");
    let why = node.until_hindered();
    assert!(why.contains("check the user's name and the password"), "{why}");
    control(&["user", "add", "some:word"]);
    control(&["user", "grant-role", "some", "job"]);
    node.until_back();
    takes_part(node);
}

#[test]
fn a_role_that_is_gone_in_mid_job_hinders_the_node_although_the_lease_is_renewed() {
    let etcd = Etcd::with_users(&[]);
    let control = |words: &[&str]| etcd.control(&[&["--user", "root:secret"], words].concat());
    let mut node = start_as_user(&etcd);
    control(&["user", "revoke-role", "some", "job"]);
    node.backend.put("unwritten");
    let why = node.until_hindered();
    assert!(why.contains("needs a role that may read and write this prefix"), "{why}");
    control(&["user", "grant-role", "some", "job"]);
    node.until_back();
    takes_part(node);
}

#[test]
fn a_watch_that_etcd_refuses_is_reported_and_continues_with_another_token() {
    let mut etcd = Etcd::with_users(&[]);
    let control = |etcd: &Etcd, words: &[&str]| etcd.control(&[&["--user", "root:secret"], words].concat());
    let mut node = start_as_user(&etcd);
    let mut other = Node::start(&node.config, "b");
    node.until_state("[a=new,b=new]");
    other.until_state("[a=new,b=new]");
    // Etcd's tokens are gone with it, and nodes that have nothing to write ask for none.
    etcd.restart();
    control(&etcd, &["put", "/rlaunch/job/nodes/b", "later"]);
    node.until_state("b=later");
    other.until_state("b=later");
    // Without a role the watches end with etcd, although the lease lives on.
    control(&etcd, &["user", "revoke-role", "some", "job"]);
    etcd.restart();
    let why = node.until_hindered();
    assert!(why.contains("permission denied"), "{why}");
    control(&etcd, &["user", "grant-role", "some", "job"]);
    node.until_back();
    node.backend.put("again");
    other.until_state("a=again");
}

#[test]
fn a_user_that_is_gone_ends_no_lease_though_every_connection_is_new() {
    let mut etcd = Etcd::with_users(&[]);
    let mut node = start_as_user(&etcd);
    etcd.control(&["--user", "root:secret", "user", "delete", "some"]);
    etcd.restart();
    let why = node.until_hindered();
    assert!(why.contains("check the user's name and the password") || why.contains("permission denied"), "{why}");
    // Longer than the lease, which etcd renews all the same.
    let until = Instant::now() + node.config.lease * 2;
    while let Some(event) = node.next(until.saturating_duration_since(Instant::now())) {
        assert!(matches!(event, BackendEvent::Hindered { .. }), "{event:?}");
    }
}

#[test]
fn other_members_are_tried_when_one_does_not_accept_the_node() {
    let etcd = Etcd::start();
    // The first that is asked is drawn at random.
    for _ in 0..8 {
        let mut node = Node::start(&config(&[answering(&[]), etcd.endpoint()], "job"), "a");
        node.until_state("[a=new]");
        node.close();
    }
}
