//! The address that a node gives the others.

use crate::cli::common::error::CliError;
use crate::cli::elastic::error::RendezvousError;
use crate::model::Endpoint;
use crate::probe::net;
use crate::spec::rendezvous::{BackendSpec, RendezvousSpec};
use std::net::IpAddr;
use tracing::warn;

/// The address at which other nodes reach this one.
#[derive(Clone, Debug)]
pub struct AdvertisedAddress {
    /// The address.
    pub address: String,
    /// Why this one, as text for the log.
    pub from: String,
    /// The interface that has it; `None` for loopback.
    pub interface: Option<String>,
}

/// Chooses this node's address. Never by the host's own name, which often resolves to loopback.
pub fn advertise(rendezvous: &RendezvousSpec) -> Result<AdvertisedAddress, CliError> {
    let names = &rendezvous.option_names;
    let towards = |at: &Endpoint| {
        // A name may get its address while nodes wait (a pod's).
        match net::local_address_to(&at.host, at.port) {
            Ok(found) if found.is_loopback() && is_own_name(rendezvous, &at.host) => Ok((
                first_own_address(),
                format!("{} is loopback on this machine; it is the first of its interfaces", at.host),
            )),
            Ok(found) => Ok((found, format!("it routes to {at}"))),
            Err(_) if net::resolve(&at.host).is_empty() => Ok((
                first_own_address(),
                format!("{} has no address yet; it is the first of this machine's interfaces", at.host),
            )),
            Err(source) => {
                Err(RendezvousError::NoRoute { option: names.address, at: at.clone(), source, host_option: names.host })
            }
        }
    };
    let (address, from) = match (&rendezvous.host, &rendezvous.backend) {
        (Some(host), _) => {
            let address: Option<IpAddr> = host.parse().ok().or_else(|| net::resolve(host).into_iter().next());
            if rendezvous.nodes.1 > 1 && address.is_some_and(|address| address.is_loopback()) {
                warn!("{} {host} is a loopback address: other machines cannot reach this node there", names.host);
            }
            return Ok(AdvertisedAddress {
                address: host.clone(),
                from: match names.host {
                    "--host" => "--host or POD_IP gives it".into(),
                    option => format!("{option} gives it"),
                },
                interface: address.filter(|address| !address.is_loopback()).and_then(net::interface_of),
            });
        }
        (None, BackendSpec::Etcd(etcd)) => {
            towards(etcd.endpoints.first().ok_or(RendezvousError::NoEtcdEndpoint { option: names.address })?)?
        }
        (None, BackendSpec::Master(master)) => towards(master)?,
        (None, BackendSpec::Here) => (first_own_address(), "it is the first of this machine's interfaces".into()),
    };
    let interface = if address.is_loopback() { None } else { net::interface_of(address) };
    if let BackendSpec::Etcd(etcd) = &rendezvous.backend
        && address.is_loopback()
        && rendezvous.nodes.1 > 1
    {
        let at = etcd.endpoints.first().map_or(String::new(), Endpoint::to_string);
        warn!(
            "other machines cannot reach this node's address, {address}: {} {at} is a loopback address; \
             give an address of etcd that all nodes reach, or set {}",
            names.address, names.host
        );
    }
    Ok(AdvertisedAddress { address: address.to_string(), from, interface })
}

/// Whether this is a name under which other nodes reach this machine, though it resolves to loopback here: on Debian the host's own
/// name is 127.0.1.1 (Debian Reference 5.1.1, "The hostname resolution").
pub(crate) fn is_own_name(rendezvous: &RendezvousSpec, host: &str) -> bool {
    let own = net::host_name();
    let is_own = !own.is_empty() && own.split('.').next() == host.split('.').next();
    let found = if is_own && rendezvous.nodes.1 > 1 { net::resolve(host) } else { Vec::new() };
    !found.is_empty() && found.iter().all(IpAddr::is_loopback)
}

fn first_own_address() -> IpAddr {
    let own = net::addresses().into_iter().find(|address| !address.is_loopback());
    own.unwrap_or_else(|| IpAddr::from([127, 0, 0, 1]))
}
