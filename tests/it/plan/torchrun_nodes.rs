//! torchrun's options about nodes and the rendezvous.

use super::torchrun::{error, spec};
use rlaunch::model::Endpoint;
use rlaunch::spec::rendezvous::BackendSpec;
use rlaunch::spec::torchrun::TorchrunBackend;
use std::time::Duration;

#[test]
fn nodes_rendezvous_at_the_first_node() {
    let rendezvous = |line: &str| match spec(line).rendezvous {
        TorchrunBackend::Static { host, port, node_rank, timeout, .. } => (host, port, node_rank, timeout.as_secs()),
        TorchrunBackend::Alone | TorchrunBackend::Dynamic(_) => panic!("{line}"),
    };
    assert_eq!(rendezvous("--master-port 1234"), ("127.0.0.1".into(), 1234, 0, 900));
    assert_eq!(rendezvous("--nnodes 2 --node-rank 1 --master-addr a.b"), ("a.b".into(), 29500, 1, 900));
    assert_eq!(
        rendezvous("--nnodes 2:2 --rdzv-endpoint [::1]:5 --master-port 6 --rdzv-conf x=y,timeout=3"),
        ("::1".into(), 5, 0, 3)
    );
    assert_eq!(rendezvous("--rdzv-endpoint localhost:0"), ("localhost".into(), 0, 0, 900));
    let made = spec("--nnodes 2");
    assert_eq!((made.nodes, made.run_id.as_deref(), made.backend.as_str()), ((2, 2), Some("none"), "static"));
    for (line, start) in [
        ("--nnodes 1:2", "--nnodes 1:2: an elastic job needs another rendezvous than static; give --rdzv-backend c10d"),
        ("--nnodes 0", "--nnodes 0: min_nodes must be > 0 and <= max_nodes, got min_nodes=0, max_nodes=0; "),
        ("--nnodes 2:1", "--nnodes 2:1: min_nodes must be > 0"),
        ("--nnodes 1:2:3", "--nnodes 1:2:3: nnodes=1:2:3 is not in \"MIN:MAX\" format; "),
        ("--nnodes x", "--nnodes x: nnodes=x is not in \"MIN:MAX\" format; "),
        ("--rdzv-backend mine", "--rdzv-backend mine: The rendezvous backend 'mine' is not registered; "),
        ("--rdzv-endpoint a", "--rdzv-endpoint a: Port is absent in endpoint: a; "),
        (
            "--rdzv-endpoint a:65536",
            "--rdzv-endpoint a:65536: The port number of the rendezvous endpoint 'a:65536' must be an integer between 0 and 65536; ",
        ),
        ("--rdzv-endpoint a!:1", "--rdzv-endpoint a!:1: The hostname of the rendezvous endpoint 'a!:1' must be"),
        (
            "--master-port 70000",
            "--master-port 70000: The port number of the rendezvous endpoint '127.0.0.1:70000' must be",
        ),
        ("--nnodes 2 --master-port 0", "--master-port 0: has port 0, "),
        (
            "--nnodes 2 --node-rank 2",
            "--node-rank 2: is not the number of a node: there are 2 nodes; give a number from 0 to 1",
        ),
        ("--nnodes 2 --node-rank -1", "--node-rank -1: is not the number of a node"),
        ("--rdzv-conf a", "--rdzv-conf a: The rendezvous configuration option 'a' must have a value specified; "),
        ("--rdzv-conf =a", "--rdzv-conf =a: The rendezvous configuration string must be in format <key1>=<value1>"),
        (
            "--nnodes 2 --rdzv-conf timeout=soon",
            "--rdzv-conf timeout=soon: has a timeout that is not a number of seconds",
        ),
    ] {
        assert!(error(line).starts_with(start), "{line}: {}", error(line));
    }
}

#[test]
fn nodes_rendezvous() {
    let rendezvous = |line: &str| match spec(line).rendezvous {
        TorchrunBackend::Dynamic(dynamic) => *dynamic,
        other => panic!("{line}: {other:?}"),
    };
    let seconds = |time: Duration| time.as_secs();
    let made = rendezvous("--nnodes 1:2 --rdzv-backend c10d --rdzv-endpoint a --rdzv-id job");
    assert_eq!(
        (made.backend, made.job_name.as_str(), made.nodes),
        (BackendSpec::Master(Endpoint::new("a", 29400)), "job", (1, 2))
    );
    assert_eq!((seconds(made.last_call), seconds(made.join_timeout), seconds(made.heartbeat_timeout)), (30, 600, 15));
    let times = "last_call_timeout=1,join_timeout=2,keep_alive_interval=3,keep_alive_max_attempt=4";
    let made = rendezvous(&format!("--nnodes 2 --rdzv-backend c10d --rdzv-endpoint a:5 --rdzv-conf {times}"));
    assert_eq!((seconds(made.last_call), seconds(made.join_timeout), seconds(made.heartbeat_timeout)), (1, 2, 12));
    for backend in ["etcd", "etcd-v2"] {
        let BackendSpec::Etcd(etcd) =
            rendezvous(&format!("--nnodes 2 --rdzv-backend {backend} --rdzv-endpoint a,b:5")).backend
        else {
            panic!("{backend}");
        };
        assert_eq!(etcd.endpoints, [Endpoint::new("a", 2379), Endpoint::new("b", 5)]);
    }
    let line = "--nnodes 2 --rdzv-backend c10d --rdzv-conf join_timeout=";
    assert!(error(&format!("{line}x")).contains("'join_timeout' does not represent a valid integer value"));
    assert!(error(&format!("{line}-1")).contains("has a join_timeout that is not a number of seconds"));
}

#[test]
fn users_number_nodes_that_rendezvous_and_name_the_one_that_serves() {
    let rendezvous = |line: &str| match spec(&format!("--nnodes 2 --rdzv-backend c10d {line}")).rendezvous {
        TorchrunBackend::Dynamic(dynamic) => (dynamic.node_rank, dynamic.is_host),
        other => panic!("{line}: {other:?}"),
    };
    assert_eq!(rendezvous(""), (None, None));
    assert_eq!(rendezvous("--node-rank 0"), (Some(0), None));
    assert_eq!(rendezvous("--node-rank 1 --rdzv-conf is_host=False"), (Some(1), Some(false)));
    assert_eq!(rendezvous("--rdzv-conf is_host=1"), (None, Some(true)));
    for (line, start) in [
        ("--node-rank 2", "--node-rank 2: is not the number of a node: there are 2 nodes; give a number from 0 to 1"),
        (
            "--rdzv-conf is_host=maybe",
            "--rdzv-conf is_host=maybe: The rendezvous configuration option 'is_host' does not",
        ),
        ("--rdzv-endpoint 0.0.0.0:29400", "--rdzv-endpoint 0.0.0.0:29400: names no machine: no node would serve; "),
        ("--rdzv-endpoint [::]:29400", "--rdzv-endpoint [::]:29400: names no machine"),
    ] {
        let found = error(&format!("--nnodes 2 --rdzv-backend c10d {line}"));
        assert!(found.starts_with(start), "{line}: {found}");
    }
    for (line, numbered) in [("--nnodes 2", false), ("--nnodes 2 --node-rank 0", true)] {
        assert!(
            matches!(spec(line).rendezvous, TorchrunBackend::Static { node_rank: 0, is_numbered, .. } if is_numbered == numbered),
            "{line}"
        );
    }
}
