//! Refused connections: certificates, users, and servers that are no etcd, or an old one.

use crate::rendezvous::etcd::authority::Authority;
use crate::rendezvous::etcd::node::{Node, config};
use crate::rendezvous::etcd::server::{Etcd, answering, wait_for};
use rlaunch::rendezvous::backend::{BackendEvent, RendezvousBackend};
use rlaunch::rendezvous::etcd;
use rlaunch::rendezvous::etcd::{EtcdTls, join};
use rlaunch::rendezvous::lease::NodeLease;
use std::env;
use std::fs;
use std::io::Write;
use std::net::TcpListener;
use std::process::Command;
use std::sync::Arc;
use std::thread;

fn with(endpoint: &str, tls: Option<EtcdTls>) -> etcd::EtcdConfig {
    etcd::EtcdConfig { tls, ..config(&[endpoint.to_owned()], "job") }
}

fn refused(config: &etcd::EtcdConfig) -> String {
    let mut node = Node::start(config, "a");
    let why = node.until_refused();
    // A server may be too busy to answer at first.
    let others = node.heard.iter().filter(|news| !matches!(news, BackendEvent::Lost { .. }));
    assert_eq!(others.count(), 1, "{:?}", node.heard);
    node.close();
    why
}

#[test]
fn certificates_are_shown_and_checked() {
    let (own, other) = (Authority::new(), Authority::new());
    let etcd = own.etcd();
    let mut node = Node::start(&with(&etcd.endpoint(), Some(own.tls(true))), "a");
    node.until_state("[a=new]");
    node.close();
    // `etcd://` is https where there are files for it.
    let mut node = Node::start(&with(&etcd.endpoint().replace("https", "etcd"), Some(own.tls(true))), "a");
    node.until_state("[a=new]");
    node.close();
    let mixed = EtcdTls { ca: own.tls(false).ca, ..other.tls(true) };
    let cases = [
        (other.tls(true), "its certificate is not accepted"),
        (own.tls(false), "it does not accept this node"),
        (mixed, "it does not accept this node"),
    ];
    for (tls, expected) in cases {
        let why = refused(&with(&etcd.endpoint(), Some(tls)));
        assert!(why.contains(expected) && why.contains(&etcd.endpoint()), "{why}");
    }
    // Without an authority's file it is the machine's that count.
    let why = refused(&with(&etcd.endpoint(), None));
    assert!(why.contains("its certificate is not accepted"), "{why}");
    let mut node = Node::start(&with(&etcd.endpoint().replace("https", "http"), None), "a");
    let why = node.until_lost();
    assert!(why.contains("if it wants TLS, write https://"), "{why}");
    let plain = Etcd::start();
    let mut node = Node::start(&with(&plain.endpoint().replace("http", "https"), Some(own.tls(false))), "a");
    let why = node.until_lost();
    assert!(why.contains("if it wants no TLS, write http://"), "{why}");
    // Other servers say so.
    let why = refused(&with(&answering(&[("/", "{}")]).replace("http", "https"), Some(own.tls(false))));
    assert!(why.contains("does not speak TLS"), "{why}");
}

#[test]
fn files_that_do_not_fit_are_named_at_once() {
    let authority = Authority::new();
    let cases = [
        (EtcdTls { ca: Some("/nowhere/ca.pem".into()), ..EtcdTls::default() }, "/nowhere/ca.pem"),
        (EtcdTls { ca: Some(authority.file("client.key")), ..EtcdTls::default() }, "client.key"),
        (EtcdTls { key: None, ..authority.tls(true) }, "not its key"),
        (EtcdTls { key: Some(authority.file("server.key")), ..authority.tls(true) }, "client.pem"),
    ];
    for (tls, expected) in cases {
        let lease = Arc::new(NodeLease::new().unwrap());
        let made = join(&with("https://h", Some(tls)), "a", "", lease, || panic!("no node coordinates"));
        let why = made.err().expect("it is refused").to_string();
        assert!(why.contains(expected), "{why}");
    }
}

#[test]
fn users_name_themselves() {
    let etcd = Etcd::with_users(&["--auth-token-ttl", "2"]);
    etcd.control(&["--user", "root:secret", "user", "add", "other:word"]);
    let of = |user: Option<(&str, &str)>| {
        let user = user.map(|(name, password)| (name.to_owned(), password.to_owned()));
        etcd::EtcdConfig { user, ..config(&[etcd.endpoint()], "job") }
    };
    assert!(!format!("{:?}", of(Some(("some", "word")))).contains("word"));
    let mut node = Node::start(&of(Some(("some", "word"))), "a");
    node.until_state("[a=new]");
    // Tokens are valid for 2 s here, from their last use: etcd is asked for another when it has thrown one away.
    etcd.control(&["--user", "root:secret", "user", "add", "third:word"]);
    node.backend.put("later");
    node.until_state("[a=later]");
    node.close();
    for (user, expected) in [
        (Some(("some", "wrong")), "check the user's name and the password"),
        (None, "name a user"),
        (Some(("other", "word")), "needs a role"),
    ] {
        let why = refused(&of(user));
        assert!(why.contains(expected) && !why.contains("wrong"), "{why}");
    }
    assert_eq!(etcd.control(&["--user", "root:secret", "get", "--prefix", "--keys-only", "/"]), "");
    // Where the server asks for no name, a name does no harm.
    let open = Etcd::start();
    let mut node =
        Node::start(&etcd::EtcdConfig { user: of(Some(("some", "word"))).user, ..with(&open.endpoint(), None) }, "a");
    node.until_state("[a=new]");
    node.close();
}

#[test]
fn servers_that_do_not_speak_v3_are_distinguished_from_others() {
    let old = answering(&[("/v2/", "{}")]);
    let why = refused(&with(&old, None));
    assert_eq!(why, format!("{old} serves etcd's v2 API only; rlaunch speaks v3, from etcd 3.4 on"));
    let versioned = answering(&[("/version", r#"{"etcdserver":"2.3.8","etcdcluster":"2.3.0"}"#)]);
    let why = refused(&with(&versioned, None));
    assert!(why.contains("etcd 2.3.8 at") && why.contains("from etcd 3.4 on"), "{why}");
    let page = answering(&[("/", "<html>hello</html>")]);
    let why = refused(&with(&page, None));
    assert!(why.contains("v2 API only") || why.contains("is not etcd"), "{why}");
    let nothing = answering(&[]);
    let why = refused(&with(&nothing, None));
    assert!(why.contains("is not etcd: it answers with HTTP status 404"), "{why}");
}

#[test]
fn an_etcd_without_its_gateway_is_named() {
    let etcd = Etcd::start_with("http", &["--enable-grpc-gateway=false"]);
    let why = refused(&with(&etcd.endpoint(), None));
    assert!(why.contains("set enable-grpc-gateway: true in its file"), "{why}");
}

#[test]
fn garbage_and_missing_answers_are_named() {
    let serve = |bytes: &'static [u8]| {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        thread::spawn(move || {
            let mut kept = Vec::new();
            for mut socket in listener.incoming().flatten() {
                socket.write_all(bytes).ok();
                kept.push(socket);
            }
        });
        endpoint
    };
    let why = refused(&with(&serve(b"SSH-2.0-OpenSSH_9.2\r\n\r\n"), None));
    assert!(why.contains("is not etcd: it does not speak HTTP"), "{why}");
    let mut node = Node::start(&with(&serve(b""), None), "a");
    let why = node.until_lost();
    assert!(why.contains("no answer within"), "{why}");
}

/// The next test runs this one in a process of its own.
#[test]
fn a_node_alone_leaves_no_thread() {
    let etcd = Etcd::start();
    let mut node = Node::start(&with(&etcd.endpoint(), None), "a");
    node.until_state("[a=new]");
    assert!(node.heard.iter().all(|news| matches!(news, BackendEvent::State { .. })), "{:?}", node.heard);
    if env::var_os("HTTP_PROXY").is_some_and(|proxy| proxy == "http://127.0.0.1:1") {
        assert_ne!(threads(), 0);
        drop(node);
        wait_for("its threads end", || threads() == 0);
    }
}

fn threads() -> usize {
    const OWN: [&str; 3] = ["etcd-session", "etcd-lease", "etcd-watch"];
    let all = fs::read_dir("/proc/self/task").unwrap().flatten();
    let name = |task: fs::DirEntry| fs::read_to_string(task.path().join("comm")).unwrap_or_default();
    all.map(name).filter(|name| OWN.contains(&name.trim())).count()
}

#[test]
fn proxies_of_the_environment_are_not_asked() {
    let mut command = Command::new(env::current_exe().unwrap());
    command.args(["--exact", "rendezvous::etcd::refusals::a_node_alone_leaves_no_thread"]);
    for name in ["HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"] {
        command.env(name, "http://127.0.0.1:1");
    }
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("1 passed"), "{said}");
}
