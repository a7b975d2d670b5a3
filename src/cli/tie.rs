//! By what a node is tied to the others: etcd, the embedded master, or Paddle's own.

use super::refusal::{Refusal, unmet};
use super::rounds::Joined;
use crate::probe::net;
use crate::rendezvous::agree::Offer;
use crate::spec::meeting::{At, Meeting};
use std::net::IpAddr;

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
    let towards = |host: &str, port: u16| {
        let found = net::towards(host, port).map_err(|error| {
            unmet(format!(
                "--master {host}:{port}: no way there from this machine ({error}); correct it, or give --host"
            ))
        })?;
        Ok::<_, Refusal>((found, format!("it routes to {host}:{port}")))
    };
    let (address, from) = match (&meeting.host, &meeting.at) {
        (Some(host), _) => {
            let address: Option<IpAddr> = host.parse().ok().or_else(|| net::of(host).into_iter().next());
            return Ok(Advertised {
                address: host.clone(),
                from: "--host, or POD_IP, says so".into(),
                interface: address.filter(|address| !address.is_loopback()).and_then(net::interface_of),
            });
        }
        (None, At::Etcd(etcd)) => {
            let first = etcd.endpoints.first().ok_or_else(|| unmet("--master: names no etcd"))?;
            towards(&first.host, first.port)?
        }
        (None, At::Master(master)) => towards(&master.host, master.port)?,
        (None, At::Here) => {
            let own = net::addresses().into_iter().find(|address| !address.is_loopback());
            let none = || IpAddr::from([127, 0, 0, 1]);
            (own.unwrap_or_else(none), "it is the first of this machine's interfaces".into())
        }
    };
    let interface = if address.is_loopback() { None } else { net::interface_of(address) };
    Ok(Advertised { address: address.to_string(), from, interface })
}

/// Ties this node to the others.
pub fn join(meeting: &Meeting, offer: Offer, go_on: &mut dyn FnMut() -> bool) -> Result<Joined, Refusal> {
    let _ = (meeting, offer, go_on);
    Err(unmet("not yet"))
}
