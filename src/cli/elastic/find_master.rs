//! Finds the embedded master of a job, or serves it.

use crate::cli::common::error::CliError;
use crate::cli::common::message::print_notice;
use crate::cli::elastic::advertise;
use crate::cli::elastic::error::RendezvousError;
use crate::cli::elastic::round_frontend::CancelCheck;
use crate::model::Endpoint;
use crate::net::listen;
use crate::probe::{memory, net};
use crate::protocol::Coordinator;
use crate::rendezvous::master::{self, MasterConfig, MasterServer, ProbeResult};
use crate::run::prepare::preflight;
use crate::spec::rendezvous::RendezvousSpec;
use crate::sys::clock;
use crate::sys::io::ports::PortBusy;
use std::io;
use std::mem;
use std::net::{IpAddr, TcpListener};
use std::path::Path;
use std::time::Duration;
use tracing::warn;

/// Time in which a master has to answer one probe.
const PROBE_TIMEOUT: Duration = Duration::from_secs(2);
/// Pause between two probes of a master that is not there yet.
const PROBE_PAUSE: Duration = Duration::from_millis(50);
/// Time to the first notice of what is waited for, and between later ones.
const FIRST_NOTICE: Duration = Duration::from_secs(2);
const NOTICE_INTERVAL: Duration = Duration::from_secs(10);

/// Connections to the master beside those of nodes: Paddle's launchers make one a request, and strangers connect.
const SPARE_CONNECTIONS: usize = 256;

/// The master at an address.
pub(super) enum FoundMaster {
    /// This node serves it, and reaches it at this host.
    Own(MasterServer, String),
    /// Another node does.
    Others,
    /// Paddle's launcher does.
    Paddles,
    /// A stop was requested before there was one.
    Stopped,
}

/// What came of serving the master.
enum OwnMaster {
    Served(MasterServer),
    /// Its address is this machine's, and its port is taken.
    Busy,
    /// Its address is another machine's, or is translated.
    NotHere,
}

/// What the user says of this node and the master, whose address no interface here has.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Claim {
    /// Nothing: another node serves.
    None,
    /// It is node 0. Whether the address leads here has to be seen: rank 0 may be on another machine than the master.
    First,
    /// It serves the master.
    Serves,
}

impl Claim {
    fn of(rendezvous: &RendezvousSpec) -> Self {
        match (rendezvous.is_host, rendezvous.node_rank) {
            (Some(true), _) => Self::Serves,
            (None, Some(0)) => Self::First,
            _ => Self::None,
        }
    }
}

/// Serves the master on this machine's own addresses. Returns it with a host at which this node reaches it.
fn serve_translated_master(
    rendezvous: &RendezvousSpec,
    endpoint: &Endpoint,
    claim: Claim,
) -> Result<(MasterServer, String), CliError> {
    let option = rendezvous.option_names.address;
    let cannot_listen = |source| RendezvousError::Listen { option, address: endpoint.to_string(), source };
    let listeners = listen::on_own(&net::addresses(), endpoint.port).map_err(cannot_listen)?;
    let first = listeners.first().ok_or_else(|| cannot_listen(io::ErrorKind::AddrNotAvailable.into()))?;
    let host = first.local_addr().map_err(cannot_listen)?.ip().to_string();
    let why = match claim {
        Claim::Serves => "is_host=true",
        Claim::First | Claim::None => "node 0, unless another node's master answers there",
    };
    print_notice(&format!(
        "{option} {endpoint} is no address of this machine; this node ({why}) serves the master on {}",
        listen::describe(&listeners)
    ));
    Ok((serve_master(rendezvous, endpoint, listeners)?, host))
}

/// Serves the master, if its address is this machine's and its port is free.
fn serve_own_master(rendezvous: &RendezvousSpec, endpoint: &Endpoint) -> Result<OwnMaster, CliError> {
    let addresses: Vec<IpAddr> = match endpoint.host.parse() {
        Ok(address) => vec![address],
        Err(_) => net::resolve(&endpoint.host),
    };
    let own: Vec<IpAddr> = addresses.into_iter().filter(|address| net::is_own(*address)).collect();
    if own.is_empty() || rendezvous.is_host == Some(false) {
        return Ok(OwnMaster::NotHere);
    }
    let is_own_name = advertise::is_own_name(rendezvous, &endpoint.host);
    let is_loopback = own.iter().any(IpAddr::is_loopback) && !is_own_name;
    let listen = |address: IpAddr| listen::on((address, endpoint.port).into());
    match own.into_iter().map(listen).collect::<io::Result<Vec<TcpListener>>>() {
        Ok(mut listeners) => {
            if is_own_name {
                // Other nodes know another address of this name; this one connects to the one that it knows.
                let others = net::addresses().into_iter().filter(|address| !address.is_loopback());
                listeners.extend(others.filter_map(|address| listen(address).ok()));
            }
            // The nodes that share this machine say nothing: they reach it.
            if is_loopback {
                let option = rendezvous.option_names.address;
                warn!("{option} {endpoint} is a loopback address: nodes on other machines cannot reach it");
            }
            serve_master(rendezvous, endpoint, listeners).map(OwnMaster::Served)
        }
        // Another launcher on this machine, or Paddle's.
        Err(error) if error.raw_os_error() == Some(libc::EADDRINUSE) => Ok(OwnMaster::Busy),
        Err(source) => Err(RendezvousError::Listen {
            option: rendezvous.option_names.address,
            address: endpoint.to_string(),
            source,
        }
        .into()),
    }
}

pub(super) fn serve_master(
    rendezvous: &RendezvousSpec,
    endpoint: &Endpoint,
    listeners: Vec<TcpListener>,
) -> Result<MasterServer, CliError> {
    let is_public = |listener: &TcpListener| listener.local_addr().is_ok_and(|at| !at.ip().is_loopback());
    if rendezvous.secret.is_none() && listeners.iter().any(is_public) {
        warn!(
            "the master at {endpoint} has no secret: every client that reaches this port can join the job, and so run \
             programs on its nodes as this user; set RLAUNCH_JOB_SECRET to one secret on all nodes"
        );
    }
    // A node has one connection, and may open another before the old one is closed.
    let connections = 2 * (rendezvous.nodes.1 + rendezvous.spares.unwrap_or(0)) + SPARE_CONNECTIONS;
    preflight::raise_file_limit("--nnodes", connections, 1).map_err(CliError::Preflight)?;
    let config = MasterConfig {
        key: rendezvous.secret.as_ref().map(|key| key.0.clone()),
        connections,
        memory: MasterConfig::memory_of(memory::total(Path::new("/"))),
        ..MasterConfig::new(&rendezvous.job_name, rendezvous.heartbeat_timeout, clock::now)
    };
    let coordinator = Box::new(Coordinator::new(clock::now()));
    Ok(master::serve(listeners, config, coordinator).map_err(RendezvousError::MasterServer)?)
}

/// The process of this machine that listens at an endpoint.
fn find_listener(endpoint: &Endpoint) -> Option<PortBusy> {
    let is_own = net::resolve(&endpoint.host).into_iter().any(net::is_own);
    if is_own { PortBusy::by_listener(endpoint.port) } else { None }
}

/// Serves the master, or probes until there is one.
pub(super) fn find_master(
    rendezvous: &RendezvousSpec,
    endpoint: &Endpoint,
    may_continue: CancelCheck<'_>,
) -> Result<FoundMaster, CliError> {
    let mut own = serve_own_master(rendezvous, endpoint)?;
    let mut claim = if matches!(own, OwnMaster::NotHere) { Claim::of(rendezvous) } else { Claim::None };
    if claim == Claim::Serves {
        let (server, host) = serve_translated_master(rendezvous, endpoint, claim)?;
        return Ok(FoundMaster::Own(server, host));
    }
    let mut translated: Option<(MasterServer, String)> = None;
    let option = rendezvous.option_names.address;
    let began = clock::now();
    let mut next_notice = began + FIRST_NOTICE;
    let mut pause = Duration::ZERO;
    loop {
        if let OwnMaster::Served(server) = own {
            return Ok(FoundMaster::Own(server, endpoint.host.clone()));
        }
        // A node has found it by the translated address.
        if let Some((server, host)) = translated.take_if(|(server, _)| server.has_nodes()) {
            return Ok(FoundMaster::Own(server, host));
        }
        if !may_continue(pause) {
            return Ok(FoundMaster::Stopped);
        }
        pause = PROBE_PAUSE;
        let why = match master::probe(&endpoint.host, endpoint.port, PROBE_TIMEOUT, clock::now) {
            ProbeResult::Nothing(why) => why,
            ProbeResult::Foreign(mut reply) => {
                if let Some(busy) = find_listener(endpoint) {
                    reply = format!("{reply}; {busy}");
                }
                let expected =
                    if option == "--master" { "an rlaunch or Paddle launcher's master" } else { "an rlaunch master" };
                return Err(RendezvousError::ForeignService { option, at: endpoint.clone(), reply, expected }.into());
            }
            ProbeResult::Paddle if rendezvous.secret.is_some() => {
                return Err(RendezvousError::PaddleMasterWithoutSecret { at: endpoint.clone() }.into());
            }
            ProbeResult::Paddle => return Ok(FoundMaster::Paddles),
            ProbeResult::Rlaunch(instance) => {
                let own = translated.filter(|(server, _)| server.instance() == instance || server.has_nodes());
                return Ok(own.map_or(FoundMaster::Others, |(server, host)| FoundMaster::Own(server, host)));
            }
        };
        if mem::replace(&mut claim, Claim::None) == Claim::First {
            // Its port may be another program's: then this node waits for the master as others do.
            translated = serve_translated_master(rendezvous, endpoint, Claim::First).ok();
        }
        if matches!(own, OwnMaster::Busy) {
            // It was an earlier job's, which has ended since.
            own = serve_own_master(rendezvous, endpoint)?;
        }
        let now = clock::now();
        if now >= began + rendezvous.join_timeout {
            let (seconds, timeout_option) =
                (rendezvous.join_timeout.as_secs_f64(), rendezvous.option_names.join_timeout);
            let mut why = find_listener(endpoint).map_or(why.clone(), |busy| format!("{why}, and {busy}"));
            if translated.is_some() {
                why += "; this node serves on its own addresses, but no node has come by this one: start the other nodes, or check \
                        whether its port is passed on to this node";
            }
            return Err(RendezvousError::NoMaster { option, at: endpoint.clone(), seconds, why, timeout_option }.into());
        }
        if now >= next_notice {
            next_notice = now + NOTICE_INTERVAL;
            let resolved: Vec<String> = net::resolve(&endpoint.host).iter().map(IpAddr::to_string).collect();
            let resolved = match &resolved[..] {
                [one] if *one == endpoint.host => String::new(),
                [] => " (a name without an address)".into(),
                all => format!(" ({})", all.join(", ")),
            };
            let left = (began + rendezvous.join_timeout).saturating_sub(now).as_secs();
            let busy = find_listener(endpoint).map_or(String::new(), |busy| format!(", and {busy}"));
            print_notice(&format!("waiting for the master at {endpoint}{resolved}: {why}{busy}; {left} s left"));
        }
    }
}
