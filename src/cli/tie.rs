//! By what a node is tied to the others: etcd, the embedded master, or Paddle's own.

use super::exit_code;
use super::message;
use super::refusal::{Refusal, tell, unmet};
use super::rounds::{GoOn, Joined};
use crate::model::Endpoint;
use crate::probe::net;
use crate::rendezvous::agree::{Coordinator, Member, Offer, Order, Rules, Standing, millis};
use crate::rendezvous::master::{self, Config, Found, Server, paddle_kv};
use crate::rendezvous::torch_store::listen;
use crate::run::contact::Keeper;
use crate::run::logs;
use crate::run::membership::Membership;
use crate::run::preflight;
use crate::spec::meeting::{At, EtcdSpec, Meeting};
use crate::sys::clock;
use serde_json::Value;
use std::io;
use std::net::{IpAddr, TcpListener};
#[cfg(feature = "etcd")]
use std::path::PathBuf;
use std::time::Duration;
use tracing::{info, warn};

/// How long a master is asked once what it is.
const PROBE: Duration = Duration::from_secs(2);
/// How often one that is not there yet is looked for again.
const AGAIN: Duration = Duration::from_millis(50);
/// Until whoever watches is first told what is waited for, and how often from then on.
const SOON: Duration = Duration::from_secs(2);
const EVERY: Duration = Duration::from_secs(10);

/// Connections to the master beside those of nodes: Paddle's launchers make one a request, and strangers come.
const SPARE_CONNECTIONS: usize = 256;

/// The address that other nodes reach this one by.
#[derive(Clone, Debug)]
pub struct Advertised {
    /// The address.
    pub address: String,
    /// Why this one, for people.
    pub from: String,
    /// The interface that has it, if one has and it is not loopback's.
    pub interface: Option<String>,
}

/// Finds it. Never by the host's own name, which is often loopback's.
pub fn advertise(meeting: &Meeting) -> Result<Advertised, Refusal> {
    let names = &meeting.names;
    let towards = |at: &Endpoint| {
        // Names may come into being while nodes wait (a pod's).
        match net::towards(&at.host, at.port) {
            Ok(found) => Ok((found, format!("it routes to {at}"))),
            Err(_) if net::of(&at.host).is_empty() => Ok((
                first_own(),
                format!("{} has no address yet; it is the first of this machine's interfaces", at.host),
            )),
            Err(error) => Err(unmet(format!(
                "{} {at}: no way there from this machine ({error}); correct it, or give {}",
                names.at, names.host
            ))),
        }
    };
    let (address, from) = match (&meeting.host, &meeting.at) {
        (Some(host), _) => {
            let address: Option<IpAddr> = host.parse().ok().or_else(|| net::of(host).into_iter().next());
            if meeting.nodes.1 > 1 && address.is_some_and(|address| address.is_loopback()) {
                warn!("{} {host} is loopback's: nodes on other machines cannot reach this one by it", names.host);
            }
            return Ok(Advertised {
                address: host.clone(),
                from: match names.host {
                    "--host" => "--host, or POD_IP, says so".into(),
                    option => format!("{option} says so"),
                },
                interface: address.filter(|address| !address.is_loopback()).and_then(net::interface_of),
            });
        }
        (None, At::Etcd(etcd)) => {
            towards(etcd.endpoints.first().ok_or_else(|| unmet(format!("{}: names no etcd", names.at)))?)?
        }
        (None, At::Master(master)) => towards(master)?,
        (None, At::Here) => (first_own(), "it is the first of this machine's interfaces".into()),
    };
    let interface = if address.is_loopback() { None } else { net::interface_of(address) };
    if let At::Etcd(etcd) = &meeting.at
        && address.is_loopback()
        && meeting.nodes.1 > 1
    {
        let at = etcd.endpoints.first().map_or(String::new(), Endpoint::to_string);
        warn!(
            "this node's address, {address}, cannot be reached by other machines: {} {at} is loopback's; \
             give an address of etcd that all nodes reach, or {}",
            names.at, names.host
        );
    }
    Ok(Advertised { address: address.to_string(), from, interface })
}

fn first_own() -> IpAddr {
    let own = net::addresses().into_iter().find(|address| !address.is_loopback());
    own.unwrap_or_else(|| IpAddr::from([127, 0, 0, 1]))
}

/// What of the rules of a job is the same in all doors' words.
pub fn rules(meeting: &Meeting) -> Rules {
    let Meeting { nodes: (min, max), last_call, join, lease, sort_ip, .. } = *meeting;
    Rules {
        min,
        max,
        last_call_ms: millis(last_call),
        join_ms: millis(join),
        lease_ms: millis(lease),
        order: if sort_ip { Order::Address } else { Order::Name },
        ..Rules::default()
    }
}

/// Ties this node to the others. `words`: what it was started with, for a shell; `go_on`: whether there is any use in trying
/// further.
pub fn join(meeting: &Meeting, mut offer: Offer, words: &str, go_on: GoOn<'_>) -> Result<Joined, Refusal> {
    let Offer { address, address_from, .. } = &offer;
    info!("this node's address is {address}: {address_from}");
    let (endpoint, server) = match &meeting.at {
        At::Etcd(etcd) => return at_etcd(meeting, etcd, offer),
        At::Here => {
            let listener =
                listen_at(&offer.address, 0).map_err(|error| cannot_listen(meeting, &offer.address, &error))?;
            let port = listener.local_addr().map_err(|error| cannot_listen(meeting, &offer.address, &error))?.port();
            let endpoint = Endpoint::new(&offer.address, port);
            print_command(&endpoint, words, meeting.key.is_some());
            (endpoint, Some(serve(meeting, vec![listener])?))
        }
        At::Master(endpoint) => (endpoint.clone(), own_master(meeting, endpoint)?),
    };
    if server.is_some() {
        if offer.rank.is_none() {
            // Paddle's launchers know the one that serves by this name, which makes it the first.
            offer.name = "aaaaaa".into();
        }
    } else {
        match find(meeting, &endpoint, go_on)? {
            Some(Found::Paddle) => return listed(meeting, &endpoint, &offer, go_on),
            Some(_) => {}
            None => return Ok(Joined::Stopped(libc::SIGTERM)),
        }
    }
    let id = id();
    offer.clock_ms = wall_ms();
    let record = Membership::record(&offer, &Standing::Ready { seen: 0 });
    let config = master::Join {
        host: endpoint.host.clone(),
        port: endpoint.port,
        job: meeting.name.clone(),
        key: key(meeting),
        lease: meeting.lease,
        clock: clock::now,
    };
    let tie = master::join(config, &id, &record).map_err(|error| internal("the tie to the master", &error))?;
    let at = format!("the master at {endpoint}");
    let by = (Keeper::Master, meeting.lease);
    Ok(Joined::Tied(Box::new(Membership::new((Box::new(tie), server), at, &id, offer, by))))
}

/// What this machine's clock says.
fn wall_ms() -> u64 {
    millis(clock::wall())
}

/// What this launcher is known by.
fn id() -> String {
    (0..16).map(|_| fastrand::alphanumeric()).collect()
}

#[cfg(feature = "etcd")]
fn at_etcd(meeting: &Meeting, etcd: &EtcdSpec, mut offer: Offer) -> Result<Joined, Refusal> {
    offer.clock_ms = wall_ms();
    use crate::rendezvous::etcd::{Etcd, Tls, tie};
    let EtcdSpec { endpoints, tls, ca, cert, user, prefix } = etcd;
    let scheme = if *tls { "https" } else { "http" };
    let path = |path: &String| PathBuf::from(path);
    let tls = tls.then(|| Tls {
        ca: ca.as_ref().map(path),
        cert: cert.as_ref().map(|(cert, _)| path(cert)),
        key: cert.as_ref().map(|(_, key)| path(key)),
    });
    let config = Etcd {
        tls: tls.filter(|_| ca.is_some() || cert.is_some()),
        user: user.as_ref().map(|(name, password)| (name.clone(), password.0.clone())),
        prefix: prefix.clone(),
        lease: meeting.lease,
        ..Etcd::new(endpoints.iter().map(|at| format!("{scheme}://{at}")).collect(), &meeting.name)
    };
    let (id, record) = (id(), Membership::record(&offer, &Standing::Ready { seen: 0 }));
    let tied = tie(&config, &id, &record, || Box::new(Coordinator::new(clock::now())));
    let list: Vec<String> = endpoints.iter().map(Endpoint::to_string).collect();
    let at = format!("etcd at {}", list.join(","));
    let tie = tied.map_err(|error| unmet(format!("{at}: {}", logs::plain(&error))))?;
    let witnesses = endpoints.iter().map(|at| (at.host.clone(), at.port)).collect();
    let by = (Keeper::Etcd(witnesses, meeting.lost_timeout), meeting.lease);
    Ok(Joined::Tied(Box::new(Membership::new((Box::new(tie), None), at, &id, offer, by))))
}

#[cfg(not(feature = "etcd"))]
fn at_etcd(meeting: &Meeting, _: &EtcdSpec, _: Offer) -> Result<Joined, Refusal> {
    let at = meeting.names.at;
    Err(unmet(format!("{at}: this build of rlaunch has no etcd (Cargo's feature of that name)")))
}

fn key(meeting: &Meeting) -> Option<String> {
    meeting.key.as_ref().map(|key| key.0.clone())
}

fn internal(what: &str, error: &io::Error) -> Refusal {
    unmet(format!("{what} cannot be made: {}", logs::plain(error)))
}

fn cannot_listen(meeting: &Meeting, host: &str, error: &io::Error) -> Refusal {
    let (option, why) = (meeting.names.host, logs::plain(error));
    unmet(format!("{option} {host}: nobody can listen there: {why}; give an address of this machine"))
}

fn listen_at(host: &str, port: u16) -> io::Result<TcpListener> {
    let address = host.parse().ok().or_else(|| net::of(host).into_iter().find(|address| net::is_own(*address)));
    listen::on((address.ok_or_else(|| io::Error::from_raw_os_error(libc::EADDRNOTAVAIL))?, port).into())
}

/// Serves the master, if its address is this machine's and nobody does there already.
fn own_master(meeting: &Meeting, endpoint: &Endpoint) -> Result<Option<Server>, Refusal> {
    let addresses: Vec<IpAddr> = match endpoint.host.parse() {
        Ok(address) => vec![address],
        Err(_) => net::of(&endpoint.host),
    };
    let own: Vec<IpAddr> = addresses.into_iter().filter(|address| net::is_own(*address)).collect();
    if own.is_empty() {
        return Ok(None);
    }
    if own.iter().any(IpAddr::is_loopback) {
        warn!("{} {endpoint} is loopback's: nodes on other machines cannot reach it", meeting.names.at);
    }
    let listeners: io::Result<Vec<TcpListener>> =
        own.into_iter().map(|address| listen::on((address, endpoint.port).into())).collect();
    match listeners {
        Ok(listeners) => serve(meeting, listeners).map(Some),
        // Another launcher on this machine, or Paddle's.
        Err(error) if error.raw_os_error() == Some(libc::EADDRINUSE) => Ok(None),
        Err(error) => {
            let (option, why) = (meeting.names.at, logs::plain(&error));
            Err(unmet(format!("{option} {endpoint}: nobody can listen there: {why}")))
        }
    }
}

fn serve(meeting: &Meeting, listeners: Vec<TcpListener>) -> Result<Server, Refusal> {
    let beyond = |listener: &TcpListener| listener.local_addr().is_ok_and(|at| !at.ip().is_loopback());
    if meeting.key.is_none() && listeners.iter().any(beyond) {
        warn!(
            "the master listens to whoever reaches it; set RLAUNCH_JOB_KEY to the same secret on all nodes to keep others out"
        );
    }
    // Each node has one, and may try again before its last has gone.
    let connections = 2 * meeting.nodes.1 + SPARE_CONNECTIONS;
    preflight::make_room("--nnodes", connections, 1).map_err(unmet)?;
    let config = Config { key: key(meeting), connections, ..Config::new(&meeting.name, meeting.lease, clock::now) };
    let decide = Box::new(Coordinator::new(clock::now()));
    master::serve(listeners, config, decide).map_err(|error| internal("the master", &error))
}

/// What the other nodes are to be started with.
fn print_command(endpoint: &Endpoint, words: &str, has_key: bool) {
    let line = "-".repeat(80);
    let mut text = format!(
        "Copy the following command to other nodes to run.\n{line}\npython -m rlaunch --master {endpoint} {words}\n{line}\n"
    );
    if has_key {
        text.push_str("set RLAUNCH_JOB_KEY on the other nodes to the same secret first\n");
    }
    message::to_stdout(text.as_bytes());
}

/// Looks until there is a master. `None`: a stop came first.
fn find(meeting: &Meeting, endpoint: &Endpoint, go_on: GoOn<'_>) -> Result<Option<Found>, Refusal> {
    let option = meeting.names.at;
    let (began, mut next) = (clock::now(), clock::now() + SOON);
    let mut pause = Duration::ZERO;
    while go_on(pause) {
        pause = AGAIN;
        let why = match master::probe(&endpoint.host, endpoint.port, PROBE, clock::now) {
            Found::Nothing(why) => why,
            Found::Foreign(said) => {
                let others = if option == "--master" { "an rlaunch or Paddle launcher's" } else { "an rlaunch" };
                return Err(unmet_meeting(format!(
                    "{option} {endpoint}: something else listens there ({said}); \
                     give {option} the address of {others} master, or a free port"
                )));
            }
            found => return Ok(Some(found)),
        };
        let now = clock::now();
        if now >= began + meeting.join {
            let waited = meeting.join.as_secs_f64();
            let hint = format!("start the node that has this address, or allow for more by {}", meeting.names.join);
            return Err(unmet_meeting(format!("{option} {endpoint}: no master within {waited:.0} s: {why}; {hint}")));
        }
        if now >= next {
            next = now + EVERY;
            let resolved: Vec<String> = net::of(&endpoint.host).iter().map(IpAddr::to_string).collect();
            let resolved = match &resolved[..] {
                [one] if *one == endpoint.host => String::new(),
                [] => " (a name without an address)".into(),
                all => format!(" ({})", all.join(", ")),
            };
            let left = (began + meeting.join).saturating_sub(now).as_secs();
            tell(&format!("waiting for the master at {endpoint}{resolved}: {why}; {left} s left"));
        }
    }
    Ok(None)
}

fn unmet_meeting(text: String) -> Refusal {
    Refusal(text, exit_code::RENDEZVOUS)
}

/// Takes part in a job whose master is of Paddle's own launcher: a list, made once.
fn listed(meeting: &Meeting, endpoint: &Endpoint, offer: &Offer, go_on: GoOn<'_>) -> Result<Joined, Refusal> {
    if offer.rules.door != "paddle" {
        return Err(unmet_meeting(format!("{endpoint}: a launcher of Paddle serves there")));
    }
    if meeting.nodes.0 != meeting.nodes.1 {
        warn!("--nnodes: the master at {endpoint} is Paddle's own, which waits for the most nodes");
    }
    info!("the master at {endpoint} is Paddle's own: nodes are not told of each other's failures");
    let (key, payload) = crate::rendezvous::agree::as_paddle_says_it(offer);
    let name = key.split('/').next().unwrap_or_default().to_owned();
    let place = paddle_kv::Place { host: endpoint.host.clone(), port: endpoint.port, key: None, clock: clock::now };
    let own = paddle_kv::Own { name, rank: offer.rank, payload };
    let until = clock::now() + meeting.join;
    let mut stopped = false;
    let mut left = || {
        if go_on(Duration::ZERO) {
            Ok(until.saturating_sub(clock::now()))
        } else {
            stopped = true;
            Err(io::ErrorKind::Interrupted.into())
        }
    };
    let mut roll = |here: Result<&[String], &str>| match here {
        Ok(here) => tell(&format!("{} of {} nodes are here: {}", here.len(), meeting.nodes.1, here.join(", "))),
        Err(why) => tell(&format!("waiting for the master at {endpoint}: {why}")),
    };
    let met = paddle_kv::sync(&place, &meeting.name, meeting.nodes.1, &own, meeting.sort_ip, &mut left, &mut roll);
    match met {
        Ok(peers) => {
            let members: Result<Vec<Member>, Refusal> =
                peers.all.iter().map(|(key, payload)| member(key, payload)).collect();
            Ok(Joined::Listed(members?, peers.own))
        }
        Err(_) if stopped => Ok(Joined::Stopped(libc::SIGTERM)),
        Err(error) => Err(unmet_meeting(format!("the master at {endpoint}: {}", logs::plain(&error)))),
    }
}

/// A node as Paddle's launcher tells of it.
fn member(key: &str, payload: &str) -> Result<Member, Refusal> {
    let refuse = || unmet_meeting(format!("{key}: says what nobody understands: {payload:.200}"));
    let value: Value = serde_json::from_str(payload).map_err(|_| refuse())?;
    let text = |name: &str| value.get(name).and_then(Value::as_str).map(str::to_owned);
    let endpoints: Vec<String> = text("endpoints").ok_or_else(refuse)?.split(',').map(str::to_owned).collect();
    let address = endpoints.first().and_then(|first| Endpoint::parse(first)).ok_or_else(refuse)?.host;
    let offer = Offer {
        name: text("name").unwrap_or_default(),
        host: address.clone(),
        address,
        ranks: endpoints.len(),
        master: text("candidate").ok_or_else(refuse)?,
        endpoints,
        foreign: true,
        ..Offer::default()
    };
    Ok(Member { id: key.to_owned(), offer })
}
