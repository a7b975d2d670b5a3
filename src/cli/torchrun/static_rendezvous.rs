//! torchrun's static rendezvous: this node's place in the job, alone or with the others at node 0's store.

use crate::cli::common::error::CliError;
use crate::cli::common::message::print_notice;
use crate::cli::elastic::advertise;
use crate::cli::elastic::advertise::AdvertisedAddress;
use crate::cli::elastic::error::RendezvousError;
use crate::model::Endpoint;
use crate::net::deadline::TimeLeft;
use crate::net::listen;
use crate::plan::env::frameworks::ExtraFrameworks;
use crate::plan::torchrun::NodePosition;
use crate::probe::net;
use crate::rendezvous::torch_static::codec::{RankNumbers, StaticNodeInfo, format_nodes};
use crate::rendezvous::torch_static::node_registry::RegistryChange;
use crate::rendezvous::torch_static::nodes::StaticPeers;
use crate::run::output::log_files;
use crate::run::prepare::{ports, preflight};
use crate::spec::SpecError;
use crate::spec::torchrun::{TorchSpec, TorchrunBackend};
use crate::sys::clock;
use crate::sys::io::ports::PortLease;
use crate::sys::signals::{STOP, Signals};
use std::cell::Cell;
use std::io;
use std::net::{IpAddr, TcpListener};
use std::time::Duration;
use tracing::warn;

/// This node's place in the job, and what it holds for it.
pub struct StaticRendezvous {
    /// The place.
    pub place: NodePosition,
    /// The ports that this node holds.
    pub leases: Vec<PortLease>,
    /// Listening sockets of a store for this node's workers alone.
    pub store: Vec<TcpListener>,
    /// The other nodes, if there are any. They belong to the supervisor process.
    pub nodes: Option<StaticPeers>,
    /// The address at which other nodes reach this one, if they rendezvous later.
    pub advertised: Option<AdvertisedAddress>,
}

/// Why this node has no place in the job.
pub enum StaticRendezvousError {
    /// The rendezvous failed.
    Failed(CliError),
    /// This signal came first.
    Stopped(i32),
}

impl<E: Into<CliError>> From<E> for StaticRendezvousError {
    fn from(error: E) -> Self {
        Self::Failed(error.into())
    }
}

/// Time to the first notice of the nodes that are missing, and between later ones.
const FIRST_NOTICE: Duration = Duration::from_secs(2);
const NOTICE_INTERVAL: Duration = Duration::from_secs(10);

/// Finds the place of this node, which has `workers` workers.
pub fn find_place(
    spec: &TorchSpec,
    workers: usize,
    signals: &Signals,
) -> Result<StaticRendezvous, StaticRendezvousError> {
    let (host, port, node, timeout) = match &spec.rendezvous {
        TorchrunBackend::Alone => {
            let lease = ports::lease_any().map_err(CliError::Preflight)?;
            let host = spec.local_addr.as_deref().unwrap_or_else(|| net::loopback_name());
            let store = listen_on("--local-addr", host, lease.port())?;
            let place = NodePosition::single_node(workers, Endpoint::new(host, lease.port()));
            return Ok(StaticRendezvous { place, leases: vec![lease], store, nodes: None, advertised: None });
        }
        TorchrunBackend::Dynamic(rendezvous) => {
            let advertised = advertise::advertise(rendezvous)?;
            let lease = ports::lease_any().map_err(CliError::Preflight)?;
            let master = Endpoint::new(&advertised.address, lease.port());
            let place = NodePosition::single_node(workers, master);
            return Ok(StaticRendezvous {
                place,
                leases: vec![lease],
                store: Vec::new(),
                nodes: None,
                advertised: Some(advertised),
            });
        }
        TorchrunBackend::Static { host, port, node_rank, timeout, .. } => (host.as_str(), *port, *node_rank, *timeout),
    };
    let (nnodes, master) = (spec.nodes.1, Endpoint::new(host, port));
    if nnodes == 1 {
        let (lease, store) = take_port(host, port)?;
        let place = NodePosition::single_node(workers, Endpoint::new(host, lease.port()));
        return Ok(StaticRendezvous { place, leases: vec![lease], store, nodes: None, advertised: None });
    }
    if spec.dry_run.is_some() {
        print_notice("this plan assumes that all nodes are alike; the real ones become known at the rendezvous");
        let place = NodePosition::among_equal_nodes(workers, (node, nnodes), master);
        return Ok(StaticRendezvous { place, leases: Vec::new(), store: Vec::new(), nodes: None, advertised: None });
    }
    if spec.max_restarts > 0 {
        warn!("--max-restarts: workers of this node are started again alone; those of other nodes keep running");
    }
    if addresses(host).iter().any(IpAddr::is_loopback) {
        warn!("{host} is a loopback address: other machines cannot reach a store there");
    }
    let info = StaticNodeInfo { role: spec.role.clone(), workers };
    let run_id = spec.run_id.as_deref().unwrap_or("none");
    let wait =
        NodeWait { signals, host, port, nnodes, timeout, until: clock::now() + timeout, stopped: Cell::new(None) };
    let (nodes, numbers, leases) = if node == 0 {
        let is_numbered = matches!(spec.rendezvous, TorchrunBackend::Static { is_numbered: true, .. });
        let (lease, listeners) = if is_numbered && net::is_elsewhere(host) {
            take_translated_port(host, port)?
        } else {
            take_port(host, port)?
        };
        let (nodes, numbers) = wait.serve(listeners, run_id, &info)?;
        (nodes, numbers, vec![lease])
    } else {
        let (nodes, numbers) = wait.reach(node, run_id, &info)?;
        (nodes, numbers, Vec::new())
    };
    let own = nodes.local_address().ok().filter(|address| !address.is_loopback());
    let RankNumbers { first_rank, world_size, first_role_rank, role_size } = numbers;
    let interface = own.and_then(net::interface_of);
    let place = NodePosition {
        node,
        nnodes,
        first_rank,
        world_size,
        first_role_rank,
        role_size,
        master,
        interface,
        extra_frameworks: ExtraFrameworks::default(),
    };
    Ok(StaticRendezvous { place, leases, store: Vec::new(), nodes: Some(nodes), advertised: None })
}

/// A wait for other nodes.
struct NodeWait<'a> {
    signals: &'a Signals,
    host: &'a str,
    port: u16,
    nnodes: usize,
    timeout: Duration,
    until: Duration,
    stopped: Cell<Option<i32>>,
}

impl NodeWait<'_> {
    /// The time that is left; an error once a signal stops the wait.
    fn left(&self) -> io::Result<Duration> {
        let stop = self.signals.drain().into_iter().map(|one| one.signal).find(|signal| STOP.contains(signal));
        if self.stopped.get().is_none() {
            self.stopped.set(stop);
        }
        match self.stopped.get() {
            Some(_) => Err(io::ErrorKind::Interrupted.into()),
            None => Ok(self.until.saturating_sub(clock::now())),
        }
    }

    /// Serves the store and waits for the other nodes (node 0).
    fn serve(
        &self,
        listeners: Vec<TcpListener>,
        run_id: &str,
        info: &StaticNodeInfo,
    ) -> Result<(StaticPeers, RankNumbers), StaticRendezvousError> {
        let left: TimeLeft<'_> = &mut || self.left();
        let failed = |error| self.store_error(error, "node 0's store");
        let served = (listeners, preflight::store_limits(info.workers));
        let mut nodes = StaticPeers::serve(served, run_id, self.nnodes, left).map_err(failed)?;
        nodes.register(info, left).map_err(failed)?;
        let mut next = clock::now() + FIRST_NOTICE;
        loop {
            let round = next.saturating_sub(clock::now());
            for change in nodes.wait_changes(round, left).map_err(failed)? {
                if let RegistryChange::Duplicate(node) = change {
                    let error = RendezvousError::DuplicateNode { node };
                    nodes.cancel(&error.to_string());
                    return Err(error.into());
                }
            }
            if let Some(numbers) = nodes.assign_numbers(left).map_err(failed)? {
                return Ok((nodes, numbers));
            }
            let missing = nodes.missing();
            if self.left().map_err(failed)?.is_zero() {
                let (here, missing) = (format_nodes(&here(self.nnodes, &missing)), format_nodes(&missing));
                let seconds = self.timeout.as_secs();
                nodes.cancel(&format!("{missing} did not come within {seconds} s"));
                return Err(RendezvousError::NodesMissing { missing, here, seconds }.into());
            }
            if clock::now() >= next {
                next = clock::now() + NOTICE_INTERVAL;
                let here = format_nodes(&here(self.nnodes, &missing));
                let left = self.until.saturating_sub(clock::now()).as_secs();
                print_notice(&format!("waiting for {}; here: {here}; {left} s left", format_nodes(&missing)));
            }
        }
    }

    /// Registers at node 0's store and waits for rank numbers (other nodes).
    fn reach(
        &self,
        node: usize,
        run_id: &str,
        info: &StaticNodeInfo,
    ) -> Result<(StaticPeers, RankNumbers), StaticRendezvousError> {
        let (host, port) = (self.host, self.port);
        let at = format!("node 0's store at {}", Endpoint::new(host, port));
        let failed = |error| self.store_error(error, &at);
        let next = Cell::new(clock::now() + FIRST_NOTICE);
        let left: TimeLeft<'_> = &mut || {
            if clock::now() >= next.get() {
                next.set(clock::now() + NOTICE_INTERVAL);
                print_notice(&format!(
                    "waiting for {at}; {} s left",
                    self.until.saturating_sub(clock::now()).as_secs()
                ));
            }
            self.left()
        };
        let mut nodes = StaticPeers::connect((host, port), run_id, (node, self.nnodes), left).map_err(failed)?;
        let left: TimeLeft<'_> = &mut || self.left();
        if !nodes.register(info, left).map_err(failed)? {
            return Err(RendezvousError::NodeTaken { node }.into());
        }
        nodes.listen((host, port));
        let mut round = FIRST_NOTICE;
        loop {
            match nodes.wait_numbers(round, left).map_err(failed)? {
                Some(Ok(numbers)) => return Ok((nodes, numbers)),
                Some(Err(why)) => return Err(RendezvousError::CalledOff { why: why.to_string() }.into()),
                None => {}
            }
            let missing = nodes.published_missing(left).map_err(failed)?;
            let missing = missing.unwrap_or_else(|| "other nodes, which node 0's launcher does not name".into());
            let left = self.left().map_err(failed)?;
            if left.is_zero() {
                return Err(RendezvousError::PeersMissing { missing, seconds: self.timeout.as_secs() }.into());
            }
            print_notice(&format!("waiting for {missing}; {} s left", left.as_secs()));
            round = NOTICE_INTERVAL;
        }
    }

    /// The error for a failure of the store at `at`.
    fn store_error(&self, source: io::Error, at: &str) -> StaticRendezvousError {
        let at = at.to_owned();
        match self.stopped.get() {
            Some(signal) => StaticRendezvousError::Stopped(signal),
            None if source.kind() == io::ErrorKind::TimedOut => {
                RendezvousError::StoreTimeout { at, seconds: self.timeout.as_secs(), source }.into()
            }
            None => RendezvousError::Store { at, source }.into(),
        }
    }
}

fn here(nnodes: usize, missing: &[usize]) -> Vec<usize> {
    (0..nnodes).filter(|node| !missing.contains(node)).collect()
}

/// Leases this port, and listens there.
fn take_port(host: &str, port: u16) -> Result<(PortLease, Vec<TcpListener>), CliError> {
    let busy = |why| SpecError::new("--master-port", port.to_string(), why, "choose another, or leave it out");
    let lease = PortLease::fixed(port).map_err(|error| CliError::Preflight(busy(error.to_string())))?;
    let listeners = listen_on("--master-addr", host, lease.port())?;
    Ok((lease, listeners))
}

/// The same for an address that no interface of this machine has, though the user calls it node 0: other nodes reach the store by an
/// address that is translated to one of this machine's.
fn take_translated_port(host: &str, port: u16) -> Result<(PortLease, Vec<TcpListener>), CliError> {
    let busy = |why| SpecError::new("--master-port", port.to_string(), why, "choose another, or leave it out");
    let lease = PortLease::fixed(port).map_err(|error| CliError::Preflight(busy(error.to_string())))?;
    let listeners = listen::on_own(&net::addresses(), lease.port());
    let listeners = listeners.map_err(|error| CliError::Preflight(busy(log_files::plain(&error))))?;
    let shown = listen::describe(&listeners);
    print_notice(&format!("{host} is no address of this machine; node 0 (--node-rank 0) serves the store on {shown}"));
    Ok((lease, listeners))
}

fn addresses(host: &str) -> Vec<IpAddr> {
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    // A machine may not know the name.
    let bare = if bare == "localhost" { "127.0.0.1" } else { bare };
    bare.parse().map_or_else(|_| net::resolve(bare), |address| vec![address])
}

/// Listens on the addresses of `host`; on loopback alone if it resolves there.
pub(crate) fn listen_on(field: &str, host: &str, port: u16) -> Result<Vec<TcpListener>, CliError> {
    let addresses = addresses(host);
    let refuse = |why: String| {
        let hint = "give an address of this machine, or leave it out for loopback";
        CliError::Preflight(SpecError::new(field, host, why, hint))
    };
    if addresses.is_empty() {
        return Err(refuse("this name has no address".into()));
    }
    if addresses.iter().all(IpAddr::is_loopback) {
        return listen::loopback(port).map_err(|error| refuse(log_files::plain(&error)));
    }
    let each = addresses.into_iter().map(|address| listen::on((address, port).into()));
    each.collect::<io::Result<_>>().map_err(|error| match error.raw_os_error() {
        Some(libc::EADDRNOTAVAIL) => {
            let why = "this machine does not have that address, and node 0 serves the store there";
            let hint = "give an address of this machine; if that one is translated to this machine, give --node-rank 0";
            CliError::Preflight(SpecError::new(field, host, why, hint))
        }
        _ => refuse(format!("cannot listen there: {}", log_files::plain(&error))),
    })
}
