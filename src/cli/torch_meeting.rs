//! How a node of a job in torchrun's words finds its place: alone, or with the others at node 0's store.

use super::exit_code;
use super::refusal::{Refusal, tell, unmet};
use super::tie::{self, Advertised};
use crate::model::Endpoint;
use crate::plan::dialects::Beside;
use crate::plan::torchrun::Place;
use crate::probe::net;
use crate::rendezvous::torch_static::nodes::Nodes;
use crate::rendezvous::torch_static::roll::Change;
use crate::rendezvous::torch_static::words::{Info, Numbers, named};
use crate::rendezvous::torch_store::client::Left;
use crate::rendezvous::torch_store::listen;
use crate::run::{logs, preflight};
use crate::spec::SpecError;
use crate::spec::torchrun::{Meeting, TorchSpec};
use crate::sys::clock;
use crate::sys::ports::Lease;
use crate::sys::signals::{STOP, Signals};
use std::cell::Cell;
use std::io;
use std::net::{IpAddr, TcpListener};
use std::time::Duration;
use tracing::warn;

/// What a node has found.
pub struct Met {
    /// Its place in the job.
    pub place: Place,
    /// The ports that it holds.
    pub leases: Vec<Lease>,
    /// Where a store for its own workers alone listens.
    pub store: Vec<TcpListener>,
    /// The others, if there are any; before the launcher becomes two processes.
    pub nodes: Option<Nodes>,
    /// The address that others reach it by, if it is still to meet them.
    pub advertised: Option<Advertised>,
}

/// Why a node has found nothing.
pub enum Unmet {
    /// There is something to say.
    Refused(Refusal),
    /// This signal came.
    Stopped(i32),
}

impl From<Refusal> for Unmet {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

/// How often whoever watches is told who is waited for; the first time is sooner.
const EVERY: Duration = Duration::from_secs(10);
const SOON: Duration = Duration::from_secs(2);

/// Finds this node's place, which has `workers` workers.
pub fn meet(spec: &TorchSpec, workers: usize, signals: &Signals) -> Result<Met, Unmet> {
    let (host, port, node, timeout) = match &spec.meeting {
        Meeting::Alone => {
            let lease = preflight::any_port().map_err(unmet)?;
            let host = spec.local_addr.as_deref().unwrap_or("localhost");
            let store = listen_on("--local-addr", host, lease.port())?;
            let place = Place::alone(workers, Endpoint::new(host, lease.port()));
            return Ok(Met { place, leases: vec![lease], store, nodes: None, advertised: None });
        }
        Meeting::Dynamic(meeting) => {
            let advertised = tie::advertise(meeting)?;
            let lease = preflight::any_port().map_err(unmet)?;
            let master = Endpoint::new(&advertised.address, lease.port());
            let place = Place::alone(workers, master);
            return Ok(Met {
                place,
                leases: vec![lease],
                store: Vec::new(),
                nodes: None,
                advertised: Some(advertised),
            });
        }
        Meeting::Static { host, port, node_rank, timeout } => (host.as_str(), *port, *node_rank, *timeout),
    };
    let (nnodes, master) = (spec.nodes.1, Endpoint::new(host, port));
    if nnodes == 1 {
        let (lease, store) = taken(host, port)?;
        let place = Place::alone(workers, Endpoint::new(host, lease.port()));
        return Ok(Met { place, leases: vec![lease], store, nodes: None, advertised: None });
    }
    if spec.dry_run.is_some() {
        tell("this plan takes all nodes for alike: which they are is known once they have met");
        let place = Place::among_alike(workers, (node, nnodes), master);
        return Ok(Met { place, leases: Vec::new(), store: Vec::new(), nodes: None, advertised: None });
    }
    if spec.max_restarts > 0 {
        warn!("--max-restarts: workers of this node are started again alone; those of other nodes run on");
    }
    if addresses(host).iter().any(IpAddr::is_loopback) {
        warn!("{host} is loopback's: other machines cannot reach a store there");
    }
    let info = Info { role: spec.role.clone(), workers };
    let run_id = spec.run_id.as_deref().unwrap_or("none");
    let wait = Wait { signals, host, port, nnodes, timeout, until: clock::now() + timeout, stopped: Cell::new(None) };
    let (nodes, numbers, leases) = if node == 0 {
        let (lease, listeners) = taken(host, port)?;
        let (nodes, numbers) = wait.serve(listeners, run_id, &info)?;
        (nodes, numbers, vec![lease])
    } else {
        let (nodes, numbers) = wait.reach(node, run_id, &info)?;
        (nodes, numbers, Vec::new())
    };
    let own = nodes.local_address().ok().filter(|address| !address.is_loopback());
    let Numbers { first_rank, world_size, first_role_rank, role_size } = numbers;
    let interface = own.and_then(net::interface_of);
    let place = Place {
        node,
        nnodes,
        first_rank,
        world_size,
        first_role_rank,
        role_size,
        master,
        interface,
        beside: Beside::default(),
    };
    Ok(Met { place, leases, store: Vec::new(), nodes: Some(nodes), advertised: None })
}

/// A wait for other nodes.
struct Wait<'a> {
    signals: &'a Signals,
    host: &'a str,
    port: u16,
    nnodes: usize,
    timeout: Duration,
    until: Duration,
    stopped: Cell<Option<i32>>,
}

impl Wait<'_> {
    /// How long there is still time. An error once somebody wants it to end.
    fn left(&self) -> io::Result<Duration> {
        let stop = self.signals.drain().into_iter().find(|signal| STOP.contains(signal));
        if self.stopped.get().is_none() {
            self.stopped.set(stop);
        }
        match self.stopped.get() {
            Some(_) => Err(io::ErrorKind::Interrupted.into()),
            None => Ok(self.until.saturating_sub(clock::now())),
        }
    }

    /// Node 0's part.
    fn serve(&self, listeners: Vec<TcpListener>, run_id: &str, info: &Info) -> Result<(Nodes, Numbers), Unmet> {
        let left: Left<'_> = &mut || self.left();
        let failed = |error| self.ended(&error, "node 0's store");
        let served = (listeners, preflight::limits_of_store(info.workers));
        let mut nodes = Nodes::serve(served, run_id, self.nnodes, left).map_err(failed)?;
        nodes.come(info, left).map_err(failed)?;
        let mut next = clock::now() + SOON;
        loop {
            let round = next.saturating_sub(clock::now());
            for change in nodes.hear(round, left).map_err(failed)? {
                if let Change::Twice(node) = change {
                    let why = format!("two launchers say that they are node {node}");
                    nodes.call_off(&why);
                    return Err(refused(&format!("{why}; give each its own --node-rank")));
                }
            }
            if let Some(numbers) = nodes.give_out(left).map_err(failed)? {
                return Ok((nodes, numbers));
            }
            let missing = nodes.missing();
            if self.left().map_err(failed)?.is_zero() {
                let why = format!("{} did not come within {} s", named(&missing), self.timeout.as_secs());
                nodes.call_off(&why);
                let hint = "start it with the same --nnodes, --master-addr, --master-port and --rdzv-id, or give it more \
                            time by --rdzv-conf timeout=SECONDS";
                return Err(refused(&format!("{why}: {} waited; {hint}", named(&here(self.nnodes, &missing)))));
            }
            if clock::now() >= next {
                next = clock::now() + EVERY;
                let here = named(&here(self.nnodes, &missing));
                let left = self.until.saturating_sub(clock::now()).as_secs();
                tell(&format!("waiting for {}; here: {here}; {left} s left", named(&missing)));
            }
        }
    }

    /// Another node's part.
    fn reach(&self, node: usize, run_id: &str, info: &Info) -> Result<(Nodes, Numbers), Unmet> {
        let (host, port) = (self.host, self.port);
        let at = format!("node 0's store at {}", Endpoint::new(host, port));
        let failed = |error| self.ended(&error, &at);
        let next = Cell::new(clock::now() + SOON);
        let left: Left<'_> = &mut || {
            if clock::now() >= next.get() {
                next.set(clock::now() + EVERY);
                tell(&format!("waiting for {at}; {} s left", self.until.saturating_sub(clock::now()).as_secs()));
            }
            self.left()
        };
        let mut nodes = Nodes::reach((host, port), run_id, (node, self.nnodes), left).map_err(failed)?;
        let left: Left<'_> = &mut || self.left();
        if !nodes.come(info, left).map_err(failed)? {
            let why =
                format!("--node-rank {node}: another launcher is node {node} of this job, or the job runs already");
            return Err(refused(&format!("{why}; give each its own --node-rank")));
        }
        let mut round = SOON;
        loop {
            match nodes.numbers(round, left).map_err(failed)? {
                Some(Ok(numbers)) => return Ok((nodes, numbers)),
                Some(Err(why)) => return Err(refused(&format!("node 0 has given up: {why}"))),
                None => {}
            }
            let missing = nodes.said_missing(left).map_err(failed)?;
            let missing = missing.unwrap_or_else(|| "other nodes, which node 0's launcher does not name".into());
            let left = self.left().map_err(failed)?;
            if left.is_zero() {
                return Err(refused(&format!("{missing} did not come within {} s", self.timeout.as_secs())));
            }
            tell(&format!("waiting for {missing}; {} s left", left.as_secs()));
            round = EVERY;
        }
    }

    /// Why it has ended without the others.
    fn ended(&self, error: &io::Error, at: &str) -> Unmet {
        match self.stopped.get() {
            Some(signal) => Unmet::Stopped(signal),
            None if error.kind() == io::ErrorKind::TimedOut => {
                refused(&format!("{at}: not reached within {} s ({})", self.timeout.as_secs(), logs::plain(error)))
            }
            None => refused(&format!("{at}: {}", logs::plain(error))),
        }
    }
}

fn refused(text: &str) -> Unmet {
    Unmet::Refused(Refusal(text.to_owned(), exit_code::RENDEZVOUS))
}

fn here(nnodes: usize, missing: &[usize]) -> Vec<usize> {
    (0..nnodes).filter(|node| !missing.contains(node)).collect()
}

/// The port that was asked for, and who listens there.
fn taken(host: &str, port: u16) -> Result<(Lease, Vec<TcpListener>), Refusal> {
    let busy = |why| SpecError::new("--master-port", port.to_string(), why, "choose another, or leave it out");
    let lease = Lease::fixed(port).map_err(|error| unmet(busy(error.to_string())))?;
    let listeners = listen_on("--master-addr", host, lease.port())?;
    Ok((lease, listeners))
}

fn addresses(host: &str) -> Vec<IpAddr> {
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    // A machine may not know the name.
    let bare = if bare == "localhost" { "127.0.0.1" } else { bare };
    bare.parse().map_or_else(|_| net::of(bare), |address| vec![address])
}

/// Listens where `host` leads: on loopback alone, or on the addresses of that name.
pub(super) fn listen_on(field: &str, host: &str, port: u16) -> Result<Vec<TcpListener>, Refusal> {
    let addresses = addresses(host);
    let refuse = |why: String| {
        unmet(SpecError::new(field, host, why, "give an address of this machine, or leave it out for loopback"))
    };
    if addresses.is_empty() {
        return Err(refuse("is no name of any machine".into()));
    }
    if addresses.iter().all(IpAddr::is_loopback) {
        return listen::loopback(port).map_err(|error| refuse(logs::plain(&error)));
    }
    let each = addresses.into_iter().map(|address| listen::on((address, port).into()));
    each.collect::<io::Result<_>>().map_err(|error| match error.raw_os_error() {
        Some(libc::EADDRNOTAVAIL) => {
            refuse("is no address of this machine, and node 0 is to serve the store there".into())
        }
        _ => refuse(format!("no port of it: {}", logs::plain(&error))),
    })
}
