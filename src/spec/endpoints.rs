//! Endpoints as options give them: lists of `host:port`, numbers of processes, ports.

use crate::model::Endpoint;
use crate::spec::error::{SpecError, shown};
use crate::spec::options::{EnvVars, OptValues};

/// The address at which a process listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListenAddress {
    /// An address or a host name.
    pub host: String,
    /// `None`: a free port.
    pub port: Option<u16>,
}

/// The host of processes that are given by number.
pub(crate) const LOCAL: &str = "127.0.0.1";
/// The name by which every machine calls itself.
pub const LOCALHOST: &str = "localhost";
/// Maximum number of processes of a kind: there are no more ports.
pub(crate) const MOST: i64 = 65_535;

/// Addresses for `count` processes on one host: ports from `start + offset`, or free ports.
pub(crate) fn counted(
    host: &str,
    count: usize,
    start: FirstPort,
    offset: usize,
) -> Result<Vec<ListenAddress>, SpecError> {
    at(start, offset, count)?;
    let port = |i: usize| start.map(|(_, first)| first + (offset + i) as u16);
    Ok((0..count).map(|i| ListenAddress { host: host.to_owned(), port: port(i) }).collect())
}

/// The port at `start + offset`, if there is a start port and `count` ports follow.
pub(crate) fn at(start: FirstPort, offset: usize, count: usize) -> Result<Option<u16>, SpecError> {
    match start {
        Some((name, start)) if usize::from(start) + offset + count > 65_536 => {
            let why = format!("leaves no room for {} ports below 65536", offset + count);
            Err(SpecError::new(name, start.to_string(), why, "choose a lower one, or fewer processes"))
        }
        Some((_, start)) => Ok(Some(start + offset as u16)),
        None => Ok(None),
    }
}

/// Reads a comma-separated list of `host:port`. If no entry has a port, entry i gets `default(i)`.
pub(crate) fn list(
    field: &str,
    text: &str,
    default: &dyn Fn(usize) -> Option<u16>,
) -> Result<Vec<ListenAddress>, SpecError> {
    let refuse = |why: String, hint: &str| Err(SpecError::new(field, text, why, hint));
    let mut addresses = Vec::new();
    for word in text.split(',').map(str::trim) {
        let bare = (!word.contains(':')).then(|| ListenAddress { host: word.to_owned(), port: None });
        let full = Endpoint::parse(word).map(|Endpoint { host, port }| ListenAddress { host, port: Some(port) });
        match bare.or(full).filter(is_valid) {
            Some(address) => addresses.push(address),
            None => {
                return refuse(format!("'{}' is not an endpoint", shown(word)), "give host:port separated by commas");
            }
        }
    }
    if addresses.iter().all(|address| address.port.is_none()) {
        for (i, address) in addresses.iter_mut().enumerate() {
            address.port = default(i);
        }
    } else if addresses.iter().any(|address| address.port.is_none()) {
        return refuse("has endpoints with and without ports".into(), "give all of them a port, or none");
    }
    Ok(addresses)
}

/// Whether a host is `localhost` or a loopback address.
pub fn is_loopback(host: &str) -> bool {
    host == LOCALHOST || host.parse::<core::net::IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

fn is_valid(address: &ListenAddress) -> bool {
    let odd = |c: char| c.is_whitespace() || c.is_control() || matches!(c, ';' | '[' | ']' | '/');
    let v6 = || address.host.parse::<core::net::Ipv6Addr>().is_ok();
    address.port != Some(0)
        && !address.host.is_empty()
        && !address.host.contains(odd)
        && (!address.host.contains(':') || v6())
}

/// Reads a number of processes; `None` if it is 0 or not given.
pub(crate) fn count(values: &OptValues, name: &str) -> Result<Option<usize>, SpecError> {
    match values.int(name)? {
        None | Some(0) => Ok(None),
        Some(count @ 1..=MOST) => Ok(Some(count as usize)),
        Some(_) => Err(values.error(name, "is not a number of processes", "give 1 to 65535")),
    }
}

/// Reads a port, if it is given.
pub(crate) fn port(values: &OptValues, name: &str) -> Result<Option<u16>, SpecError> {
    match values.int(name)? {
        None => Ok(None),
        Some(port @ 1..=65_535) => Ok(Some(port as u16)),
        Some(_) => Err(values.error(name, "is not a port", "give a number from 1 to 65535")),
    }
}

/// The first of consecutive ports, and the variable that gives it; `None`: free ports.
pub(crate) type FirstPort = Option<(&'static str, u16)>;

/// Reads the first port from a variable, if it is set.
pub(crate) fn start_port(vars: &EnvVars, name: &'static str) -> Result<FirstPort, SpecError> {
    let Some(text) = vars.get(name).filter(|text| !text.is_empty()) else { return Ok(None) };
    Ok(Some((name, parse_port(name, text)?)))
}

/// Reads a port, from 1 to 65535.
pub fn parse_port(field: &str, text: &str) -> Result<u16, SpecError> {
    let port = text.trim().parse().ok().filter(|port| *port > 0);
    let way_out = if field.starts_with('-') { "" } else { ", or unset it" };
    port.ok_or_else(|| SpecError::new(field, text, "is not a port", format!("give a number from 1 to 65535{way_out}")))
}

/// Whether two names are the same host: an IPv6 address has several spellings.
pub fn is_same_host(a: &str, b: &str) -> bool {
    let ip = |text: &str| text.parse::<core::net::IpAddr>().ok();
    a == b || ip(a).is_some_and(|a| ip(b) == Some(a))
}

/// An address without the brackets of IPv6.
pub fn without_brackets(text: &str) -> &str {
    text.strip_prefix('[').and_then(|t| t.strip_suffix(']')).unwrap_or(text)
}
