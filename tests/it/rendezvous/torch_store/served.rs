//! The server and the client over real sockets.

use crate::rendezvous::within;
use crossbeam_channel::unbounded;
use nix::sys::eventfd::EventFd;
use rlaunch::net::listen;
use rlaunch::rendezvous::torch_store::client::{StoreClient, wire_key};
use rlaunch::rendezvous::torch_store::frame::{StoreRequest, greeting};
use rlaunch::rendezvous::torch_store::{StoreEvent, StoreWatch};
use rlaunch::rendezvous::torch_store::{StoreLimits, StoreServer};
use rlaunch::sys::io::ports::PortLease;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Ipv6Addr, TcpStream};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(20);

fn served() -> (StoreServer, u16) {
    let listeners = listen::loopback(0).unwrap();
    let port = listeners[0].local_addr().unwrap().port();
    (StoreServer::start(listeners).unwrap(), port)
}

fn client(port: u16) -> StoreClient {
    StoreClient::connect("127.0.0.1", port, &mut within(PATIENCE)).unwrap()
}

/// A bare connection.
fn raw(port: u16) -> TcpStream {
    let socket = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket
}

/// Whether it has been hung up on.
fn hung_up(mut socket: TcpStream) -> bool {
    match socket.read_to_end(&mut Vec::new()) {
        Ok(_) => true,
        Err(error) => error.kind() == ErrorKind::ConnectionReset,
    }
}

#[test]
fn clients_meet() {
    let (_server, port) = served();
    let (mut one, mut other) = (client(port), client(port));
    let time = &mut within(PATIENCE);
    one.set(b"k", &vec![7; 3 << 20], time).unwrap();
    assert_eq!(other.get(b"k", time).unwrap(), vec![7; 3 << 20]);
    assert_eq!((one.add(b"n", 5, time).unwrap(), other.add(b"n", -2, time).unwrap()), (5, 3));
    assert!(one.check(&[b"k", b"n"], time).unwrap());
    assert!(!one.check(&[b"k", b"m"], time).unwrap());
    let waits = thread::spawn(move || other.get(b"late", &mut within(PATIENCE)));
    one.set(b"late", b"now", time).unwrap();
    assert_eq!(waits.join().unwrap().unwrap(), b"now");
    assert_eq!(wire_key("none", "a/b"), b"/none/a/b");
}

#[test]
fn a_wait_ends_when_its_caller_wants_and_the_connection_goes_on() {
    let (_server, port) = served();
    let mut client = client(port);
    let late = client.wait(&[b"never"], &mut within(Duration::from_millis(20))).unwrap_err();
    assert_eq!(late.kind(), ErrorKind::TimedOut);
    let mut asked = 0;
    let stopped = client.get(b"never", &mut || {
        asked += 1;
        if asked < 3 { Ok(PATIENCE) } else { Err(io::Error::other("a signal")) }
    });
    assert_eq!(stopped.unwrap_err().to_string(), "a signal");
    assert_eq!(client.add(b"n", 1, &mut within(PATIENCE)).unwrap(), 1);
}

#[test]
fn a_client_comes_again_until_there_is_a_store() {
    let lease = PortLease::any().unwrap();
    let port = lease.port();
    let absent = StoreClient::connect("127.0.0.1", port, &mut within(Duration::from_millis(20))).unwrap_err();
    assert_eq!(absent.kind(), ErrorKind::TimedOut);
    assert!(absent.to_string().contains("refused"), "{absent}");
    let (tried, tries) = unbounded();
    let comes = thread::spawn(move || {
        let mut time = within(PATIENCE);
        StoreClient::connect("localhost", port, &mut || {
            let _ = tried.send(());
            time()
        })
        .map(drop)
    });
    tries.recv().unwrap();
    let _server = StoreServer::start(listen::loopback(port).unwrap()).unwrap();
    comes.join().unwrap().unwrap();
}

#[test]
fn it_listens_beside_a_lease_and_no_other_socket_can() {
    let lease = PortLease::any().unwrap();
    let listeners = listen::loopback(lease.port()).unwrap();
    let addresses: Vec<_> = listeners.iter().map(|listener| listener.local_addr().unwrap()).collect();
    let _server = StoreServer::start(listeners).unwrap();
    for address in addresses {
        assert!(address.ip().is_loopback());
        // Each of many: a lease that took a share of them would show.
        for _ in 0..50 {
            let host = address.ip().to_string();
            StoreClient::connect(&host, lease.port(), &mut within(PATIENCE)).unwrap();
        }
    }
    for stranger in [
        listen::on((Ipv4Addr::LOCALHOST, lease.port()).into()),
        listen::on((Ipv6Addr::UNSPECIFIED, lease.port()).into()),
    ] {
        // Beside ::, which is of IPv6 alone here, ::1 is in the way where there is IPv6.
        assert!(stranger.is_err_and(|error| error.raw_os_error().is_some()));
    }
}

#[test]
fn renewing_forgets_all_and_hangs_up_on_all_even_those_not_yet_accepted() {
    let (server, port) = served();
    let mut old = client(port);
    old.set(b"k", b"old", &mut within(PATIENCE)).unwrap();
    for round in 0..20 {
        let mut pending: Vec<TcpStream> = (0..20).map(|_| raw(port)).collect();
        for socket in &mut pending {
            let set = StoreRequest::Set { key: b"k".to_vec(), value: b"old".to_vec() };
            socket.write_all(&[greeting(), set.encode()].concat()).unwrap();
        }
        server.renew().unwrap();
        let mut new = client(port);
        assert!(!new.check(&[b"k"], &mut within(PATIENCE)).unwrap(), "round {round}");
        assert!(pending.into_iter().all(hung_up));
        assert!(!new.check(&[b"k"], &mut within(PATIENCE)).unwrap(), "round {round}");
    }
    assert!(old.check(&[b"k"], &mut within(PATIENCE)).is_err());
}

#[test]
fn a_client_that_reads_nothing_stalls_no_other_and_gets_all_in_the_end() {
    let (_server, port) = served();
    let time = &mut within(PATIENCE);
    let mut good = client(port);
    good.set(b"k", &vec![7; 8 << 20], time).unwrap();
    assert!(good.check(&[b"k"], time).unwrap()); // Setting has no reply.
    let mut slow = raw(port);
    let gets = 100;
    let get = StoreRequest::Get(b"k".to_vec()).encode().repeat(gets);
    slow.write_all(&[greeting(), get].concat()).unwrap();
    let mut length = [0; 8];
    slow.read_exact(&mut length).unwrap();
    assert_eq!(good.add(b"n", 1, time).unwrap(), 1);
    let rest = (gets as u64) * ((8 << 20) + 8) - 8;
    assert_eq!(io::copy(&mut slow.take(rest), &mut io::sink()).unwrap(), rest);
}

#[test]
fn a_departure_is_reported_with_the_keys_that_the_client_touched() {
    let listeners = listen::loopback(0).unwrap();
    let port = listeners[0].local_addr().unwrap().port();
    let (news, received) = unbounded();
    let watch =
        StoreWatch { prefix: b"/none/node/".to_vec(), events: news, events_ready: Arc::new(EventFd::new().unwrap()) };
    let server = StoreServer::start_with(listeners, StoreLimits::default(), Some(watch)).unwrap();
    let time = &mut within(PATIENCE);
    let (mut one, mut two) = (client(port), client(port));
    one.set(b"/none/node/1", b"here", time).unwrap();
    one.set(b"/none/other", b"", time).unwrap();
    let StoreEvent::Touched { client: first, key, value } = received.recv_timeout(PATIENCE).unwrap() else {
        panic!("who left?")
    };
    assert_eq!((key, value), (b"1".to_vec(), b"here".to_vec()));
    two.add(b"/none/node/2", 1, time).unwrap();
    let StoreEvent::Touched { client: second, key, value } = received.recv_timeout(PATIENCE).unwrap() else {
        panic!("who left?")
    };
    assert_eq!((key, value), (b"2".to_vec(), b"".to_vec()));
    assert_ne!(first, second);
    drop(one);
    assert_eq!(received.recv_timeout(PATIENCE).unwrap(), StoreEvent::Left(first));
    assert!(two.check(&[b"/none/node/1"], time).unwrap(), "the key stays");
    server.renew().unwrap();
    drop(server);
    assert!(received.recv().is_err(), "renewing and ending is no departure");
}

#[test]
fn silent_connections_make_room_for_active_clients() {
    let listeners = listen::loopback(0).unwrap();
    let port = listeners[0].local_addr().unwrap().port();
    let limits = StoreLimits { connections: 16, ..StoreLimits::default() };
    let _server = StoreServer::start_with(listeners, limits, None).unwrap();
    let strangers: Vec<TcpStream> = (0..100).map(|_| raw(port)).collect();
    let mut clients: Vec<StoreClient> = (0..16).map(|_| client(port)).collect();
    assert!(strangers.into_iter().all(hung_up));
    // Now there is no room for one more, until one goes.
    let mut next = raw(port);
    next.write_all(&[greeting(), StoreRequest::Ping(7).encode()].concat()).unwrap();
    next.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
    assert!(next.read_exact(&mut [0; 4]).is_err());
    clients.pop();
    next.set_read_timeout(Some(PATIENCE)).unwrap();
    next.read_exact(&mut [0; 4]).unwrap();
    for client in &mut clients {
        client.add(b"n", 1, &mut within(PATIENCE)).unwrap();
    }
}

#[test]
fn a_client_over_the_limit_is_disconnected_and_the_others_stay() {
    let listeners = listen::loopback(0).unwrap();
    let port = listeners[0].local_addr().unwrap().port();
    let limits = StoreLimits { bytes: 32 << 20, ..StoreLimits::default() };
    let _server = StoreServer::start_with(listeners, limits, None).unwrap();
    let mut good = client(port);
    let time = &mut within(PATIENCE);
    good.set(b"k", &vec![7; 1 << 20], time).unwrap();
    // Values that never end.
    let unfinished: Vec<TcpStream> = (0..8)
        .map(|_| {
            let mut socket = raw(port);
            let set = StoreRequest::Set { key: b"s".to_vec(), value: vec![0; 4 << 20] }.encode();
            // It may be hung up on while it sends.
            drop(socket.write_all(&[&greeting(), &set[..set.len() - 1]].concat()));
            socket
        })
        .collect();
    // Values that are kept.
    let mut greedy = raw(port);
    for i in 0_u8..30 {
        let set = StoreRequest::Set { key: vec![i], value: vec![0; 1 << 20] }.encode();
        if greedy.write_all(&[if i == 0 { greeting() } else { vec![] }, set].concat()).is_err() {
            break;
        }
    }
    assert!(hung_up(greedy));
    assert_eq!(good.get(b"k", time).unwrap(), vec![7; 1 << 20]);
    let cut = unfinished.into_iter().filter(|socket| {
        socket.set_nonblocking(true).unwrap();
        !matches!(socket.peek(&mut [0]), Err(error) if error.kind() == ErrorKind::WouldBlock)
    });
    assert!(cut.count() >= 4, "32 MiB of unfinished values within 16 MiB");
}
