//! Joins the rendezvous backend of a job: etcd, the embedded master, or Paddle's own master.

use crate::cli::common::error::CliError;
use crate::cli::common::message::{self, print_notice};
use crate::cli::elastic::error::RendezvousError;
use crate::cli::elastic::find_master::{FoundMaster, find_master, serve_master};
use crate::cli::elastic::fingerprint::FingerprintSource;
use crate::cli::elastic::round_frontend::{CancelCheck, JoinedBackend};
use crate::model::Endpoint;
use crate::model::plain_text::{escape, escape_document};
use crate::net::listen;
#[cfg(feature = "etcd")]
use crate::net::thread;
use crate::probe::net;
#[cfg(feature = "etcd")]
use crate::protocol::Coordinator;
use crate::protocol::{
    JobRules, LeaseTerms, NodeInfo, NodeOrder, NodeStatus, OnNodeLoss, RoundMember, millis, read_paddle_payload,
};
#[cfg(feature = "etcd")]
use crate::rendezvous::etcd::{self, EtcdConfig, EtcdTls};
use crate::rendezvous::lease::NodeLease;
use crate::rendezvous::master;
use crate::rendezvous::master::client::paddle_kv;
use crate::run::multi_node::membership::{BackendKind, Membership};
use crate::run::output::log_files::plain;
use crate::spec::rendezvous::{BackendSpec, EtcdSpec, RendezvousSpec, Secret};
use crate::sys::clock;
use crate::sys::random;
use serde_json::Value;
use std::io;
use std::net::TcpListener;
#[cfg(feature = "etcd")]
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tracing::{info, warn};

/// How long ranks outlive etcd where no other round can begin without their node.
const LOSS_TIMEOUT_WHERE_THE_JOB_ENDS: Duration = Duration::from_secs(60);

/// The front ends that can join a job whose master is Paddle's: jobs without and with parameter servers.
pub const PADDLE_FRONTENDS: [&str; 2] = ["paddle", "paddle, parameter servers"];

/// Letters and digits of a secret that is drawn: 190 bits.
const SECRET_LENGTH: usize = 32;
/// The rules of a job that every front end sets from the same options.
pub fn rules(rendezvous: &RendezvousSpec) -> JobRules {
    let RendezvousSpec { nodes: (min, max), last_call, join_timeout: join, heartbeat_timeout: lease, sort_ip, .. } =
        *rendezvous;
    JobRules {
        min,
        max,
        last_call_ms: millis(last_call),
        join_ms: millis(join),
        min_round_ms: millis(rendezvous.min_round_time),
        node_failure_limit: rendezvous.node_failure_limit,
        spares: rendezvous.spares,
        require_same: rendezvous.require_same.clone(),
        lease_ms: millis(lease),
        order: if sort_ip { NodeOrder::Address } else { NodeOrder::Name },
        ..JobRules::default()
    }
}

/// Joins the backend. `command`: the command line for the other nodes after `--master`, quoted for a shell.
pub fn join(
    rendezvous: &RendezvousSpec,
    mut node: NodeInfo,
    fingerprint: &FingerprintSource<'_>,
    command: &str,
    lease: &Arc<NodeLease>,
    may_continue: CancelCheck<'_>,
) -> Result<JoinedBackend, CliError> {
    if rendezvous.nodes.1 > 1 {
        node.fingerprint = fingerprint.read(&node.rules.require_same).map_err(CliError::Preflight)?;
    }
    let NodeInfo { address, address_from, .. } = &node;
    info!("this node's address is {address}: {address_from}");
    let drawn = with_drawn_secret(rendezvous)?;
    let rendezvous = drawn.as_ref().unwrap_or(rendezvous);
    let (endpoint, server) = match &rendezvous.backend {
        BackendSpec::Etcd(etcd) => return Ok(join_etcd(rendezvous, etcd, node, lease)?),
        BackendSpec::Here => {
            let cannot_listen = |source| RendezvousError::Listen {
                option: rendezvous.option_names.host,
                address: node.address.clone(),
                source,
            };
            let listener = listen_at(&node.address, 0).map_err(cannot_listen)?;
            let port = listener.local_addr().map_err(cannot_listen)?.port();
            let endpoint = Endpoint::new(&node.address, port);
            let secret = drawn.as_ref().and_then(|drawn| drawn.secret.as_ref());
            print_peer_command(&endpoint, command, secret);
            (endpoint.clone(), Some(serve_master(rendezvous, &endpoint, vec![listener])?))
        }
        BackendSpec::Master(endpoint) => match find_master(rendezvous, endpoint, may_continue)? {
            FoundMaster::Own(server, host) => (Endpoint { host, ..endpoint.clone() }, Some(server)),
            FoundMaster::Others => (endpoint.clone(), None),
            FoundMaster::Paddles => return join_paddle_master(rendezvous, endpoint, &node, may_continue),
            FoundMaster::Stopped => return Ok(JoinedBackend::Stopped(libc::SIGTERM)),
        },
    };
    node.serves_master = server.is_some();
    if server.is_some() && node.rank.is_none() {
        // Paddle's launchers give the node that serves this name, which sorts first.
        node.name = "aaaaaa".into();
    }
    let id = lease.node_id();
    let record = first_record(&node);
    let config = master::MasterAddress {
        host: endpoint.host.clone(),
        port: endpoint.port,
        job: rendezvous.job_name.clone(),
        key: key(rendezvous),
        lease: rendezvous.heartbeat_timeout,
        clock: clock::now,
        node_lease: Arc::clone(lease),
    };
    let at = match &rendezvous.backend {
        BackendSpec::Master(named) => format!("the master at {named}"),
        _ => format!("the master at {endpoint}"),
    };
    let backend =
        master::join(config, id, &record).map_err(|source| RendezvousError::Client { at: at.clone(), source })?;
    let terms = LeaseTerms { loss_timeout: Duration::ZERO, ..lease_terms(rendezvous, node.rules.on_loss) };
    let kind = (BackendKind::Master, terms, Arc::clone(lease));
    Ok(JoinedBackend::Member(Box::new(Membership::new((Box::new(backend), server), at, id, node, kind))))
}

/// The times of this node's lease.
fn lease_terms(rendezvous: &RendezvousSpec, on_loss: OnNodeLoss) -> LeaseTerms {
    let by_default = match on_loss {
        OnNodeLoss::End => LOSS_TIMEOUT_WHERE_THE_JOB_ENDS,
        OnNodeLoss::Regroup => Duration::ZERO,
    };
    let loss_timeout = rendezvous.etcd_loss_timeout.unwrap_or(by_default);
    LeaseTerms { heartbeat_timeout: rendezvous.heartbeat_timeout, loss_timeout, on_loss }
}

/// A node's record when it joins. Later ones, which a coordinator may receive first, have no time in them.
fn first_record(node: &NodeInfo) -> String {
    let node = NodeInfo { clock_ms: millis(clock::wall()), ..node.clone() };
    Membership::record(&node, &NodeStatus::Ready { seen: 0 })
}

#[cfg(feature = "etcd")]
fn join_etcd(
    rendezvous: &RendezvousSpec,
    etcd: &EtcdSpec,
    mut node: NodeInfo,
    lease: &Arc<NodeLease>,
) -> Result<JoinedBackend, RendezvousError> {
    let terms = lease_terms(rendezvous, node.rules.on_loss);
    node.rules.loss_ms = millis(terms.loss_timeout);
    let config = etcd_config(rendezvous, etcd, &terms);
    let record = first_record(&node);
    let at = format!("etcd at {}", Endpoint::join(&etcd.endpoints));
    let id = lease.node_id();
    let backend = etcd::join(&config, id, &record, Arc::clone(lease), || Box::new(Coordinator::new(clock::now())))
        .map_err(|source| RendezvousError::Client { at: at.clone(), source })?;
    let kind = (BackendKind::Etcd, terms, Arc::clone(lease));
    Ok(JoinedBackend::Member(Box::new(Membership::new((Box::new(backend), None), at, id, node, kind))))
}

#[cfg(feature = "etcd")]
fn etcd_config(rendezvous: &RendezvousSpec, etcd: &EtcdSpec, terms: &LeaseTerms) -> EtcdConfig {
    let EtcdSpec { endpoints, tls, ca, cert, user, prefix } = etcd;
    let scheme = if *tls { "https" } else { "http" };
    let path = |path: &String| PathBuf::from(path);
    let tls = tls.then(|| EtcdTls {
        ca: ca.as_ref().map(path),
        cert: cert.as_ref().map(|(cert, _)| path(cert)),
        key: cert.as_ref().map(|(_, key)| path(key)),
    });
    EtcdConfig {
        tls: tls.filter(|_| ca.is_some() || cert.is_some()),
        user: user.as_ref().map(|(name, password)| (name.clone(), password.0.clone())),
        prefix: prefix.clone(),
        lease: rendezvous.heartbeat_timeout,
        extra_time_to_live: terms.time_to_live() - terms.heartbeat_timeout,
        loss_timeout: terms.loss_timeout,
        nodes: rendezvous.nodes.1,
        ..EtcdConfig::new(endpoints.iter().map(|at| format!("{scheme}://{at}")).collect(), &rendezvous.job_name)
    }
}

/// Leaves the job for a node whose supervisor process and ranks have ended. At the master its connection has ended with them.
pub fn leave_for(rendezvous: &RendezvousSpec, lease: &NodeLease) {
    #[cfg(feature = "etcd")]
    if let (BackendSpec::Etcd(etcd), Some(name)) = (&rendezvous.backend, lease.name()) {
        let config = etcd_config(rendezvous, etcd, &lease_terms(rendezvous, OnNodeLoss::End));
        let (at, id, limit) = (Endpoint::join(&etcd.endpoints), lease.node_id().to_owned(), 2 * config.timeout);
        // The name server may hang.
        match thread::within(limit, move || etcd::leave_for(&config, &id, name)) {
            Some(Ok(())) => {}
            Some(Err(error)) => {
                info!("etcd at {at}: {}; the other nodes wait until this node's lease has lapsed", plain(&error))
            }
            None => info!("etcd at {at} does not answer; the other nodes wait until this node's lease has lapsed"),
        }
    }
    #[cfg(not(feature = "etcd"))]
    let _ = (rendezvous, lease);
}

#[cfg(not(feature = "etcd"))]
fn join_etcd(
    rendezvous: &RendezvousSpec,
    _: &EtcdSpec,
    _: NodeInfo,
    _: &Arc<NodeLease>,
) -> Result<JoinedBackend, RendezvousError> {
    Err(RendezvousError::EtcdNotBuilt { option: rendezvous.option_names.address })
}

fn key(rendezvous: &RendezvousSpec) -> Option<String> {
    rendezvous.secret.as_ref().map(|key| key.0.clone())
}

fn listen_at(host: &str, port: u16) -> io::Result<TcpListener> {
    let address = host.parse().ok().or_else(|| net::resolve(host).into_iter().find(|address| net::is_own(*address)));
    listen::on((address.ok_or_else(|| io::Error::from_raw_os_error(libc::EADDRNOTAVAIL))?, port).into())
}

/// The same request with a secret, where the user gave none and the other nodes get their command from this one.
fn with_drawn_secret(rendezvous: &RendezvousSpec) -> Result<Option<RendezvousSpec>, RendezvousError> {
    if rendezvous.backend != BackendSpec::Here || rendezvous.secret.is_some() {
        return Ok(None);
    }
    let secret = random::secret(SECRET_LENGTH).map_err(RendezvousError::NoSecret)?;
    Ok(Some(RendezvousSpec { secret: Some(Secret(secret)), ..rendezvous.clone() }))
}

/// Prints the command that starts the other nodes, with the secret if it was drawn here.
fn print_peer_command(endpoint: &Endpoint, command: &str, drawn: Option<&Secret>) {
    let line = "-".repeat(80);
    let variable = drawn.map_or(String::new(), |secret| format!("RLAUNCH_JOB_SECRET={} ", secret.0));
    let mut text = format!(
        "Copy the following command to other nodes to run.\n{line}\n{variable}python -m rlaunch --master {endpoint} {command}\n{line}\n"
    );
    if drawn.is_none() {
        text.push_str("set RLAUNCH_JOB_SECRET on the other nodes to the same secret first\n");
    }
    message::to_stdout(text.as_bytes());
}

/// Takes part in a job whose master is Paddle's own launcher: the list of nodes is made once.
fn join_paddle_master(
    rendezvous: &RendezvousSpec,
    endpoint: &Endpoint,
    node: &NodeInfo,
    may_continue: CancelCheck<'_>,
) -> Result<JoinedBackend, CliError> {
    if !PADDLE_FRONTENDS.contains(&node.rules.frontend.as_str()) {
        return Err(RendezvousError::PaddleMaster { at: endpoint.clone() }.into());
    }
    if !rendezvous.require_same.is_empty() {
        return Err(RendezvousError::PaddleMasterComparesNothing { at: endpoint.clone() }.into());
    }
    if rendezvous.sort_ip && node.servers > 0 {
        return Err(RendezvousError::PaddleMasterSortsNoServers { at: endpoint.clone() }.into());
    }
    if rendezvous.nodes.0 != rendezvous.nodes.1 {
        warn!("--nnodes: the master at {endpoint} is Paddle's own, which waits for the maximum number of nodes");
    }
    info!("the master at {endpoint} is Paddle's own: nodes do not learn of each other's failures");
    let (key, payload) = crate::protocol::paddle_entry(node);
    let name = key.split('/').next().unwrap_or_default().to_owned();
    let place = paddle_kv::KvAddress { host: endpoint.host.clone(), port: endpoint.port, clock: clock::now };
    let own = paddle_kv::KvEntry { name, rank: node.rank, payload };
    let until = clock::now() + rendezvous.join_timeout;
    let mut stopped = false;
    let mut time_left = || {
        if may_continue(Duration::ZERO) {
            Ok(until.saturating_sub(clock::now()))
        } else {
            stopped = true;
            Err(io::ErrorKind::Interrupted.into())
        }
    };
    let size = rendezvous.nodes.1;
    let mut on_keys = |here: Result<&[String], &str>| match here {
        Ok(here) => print_notice(&format!("{} of {size} nodes are here: {}", here.len(), escape(&here.join(", ")))),
        Err(why) => print_notice(&format!("waiting for the master at {endpoint}: {}", escape(why))),
    };
    let synced =
        paddle_kv::sync(&place, &rendezvous.job_name, size, &own, rendezvous.sort_ip, &mut time_left, &mut on_keys);
    match synced {
        Ok(peers) => {
            let members: Result<Vec<RoundMember>, RendezvousError> =
                peers.all.iter().map(|(key, payload)| parse_paddle_entry(key, payload)).collect();
            Ok(JoinedBackend::FixedList(members?, peers.own))
        }
        Err(_) if stopped => Ok(JoinedBackend::Stopped(libc::SIGTERM)),
        Err(source) => {
            let source = io::Error::new(source.kind(), escape(&plain(&source)));
            Err(RendezvousError::PaddleRendezvous { at: endpoint.clone(), source }.into())
        }
    }
}

/// A node from the entry that Paddle's launcher writes for it.
fn parse_paddle_entry(key: &str, payload: &str) -> Result<RoundMember, RendezvousError> {
    let bad = || RendezvousError::BadPaddleEntry { key: escape(key), payload: escape(payload) };
    let value: Value = serde_json::from_str(payload).map(escape_document).map_err(|_| bad())?;
    let info = read_paddle_payload(&value).filter(|info| !info.endpoints.is_empty()).ok_or_else(bad)?;
    Ok(RoundMember { id: key.to_owned(), info })
}
