//! Where processes listen, as options say it: lists of endpoints, counts, ports.

use super::SpecError;
use super::nodes::port_of;
use super::options::{Values, Vars};
use crate::model::Endpoint;

/// Where one process listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// An address or a name.
    pub host: String,
    /// `None`: a free one.
    pub port: Option<u16>,
}

/// Where processes listen that were asked for by number.
pub(super) const LOCAL: &str = "127.0.0.1";
/// The name of every machine for itself.
pub const LOCALHOST: &str = "localhost";
/// More processes of a kind than this have no ports.
pub(super) const MOST: i64 = 65_535;

/// Processes on one host, with ports from `start + offset` on, or free ones.
pub(super) fn counted(host: &str, count: usize, start: First, offset: usize) -> Result<Vec<Place>, SpecError> {
    at(start, offset, count)?;
    let port = |i: usize| start.map(|(_, first)| first + (offset + i) as u16);
    Ok((0..count).map(|i| Place { host: host.to_owned(), port: port(i) }).collect())
}

/// The first of `count` ports behind `start`, if there is one.
pub(super) fn at(start: First, offset: usize, count: usize) -> Result<Option<u16>, SpecError> {
    match start {
        Some((name, start)) if usize::from(start) + offset + count > 65_536 => {
            let why = format!("leaves no room for {} ports below 65536", offset + count);
            Err(SpecError::new(name, start.to_string(), why, "choose a lower one, or fewer processes"))
        }
        Some((_, start)) => Ok(Some(start + offset as u16)),
        None => Ok(None),
    }
}

/// A comma list of `host:port`. Where no entry has a port, entry i gets `default(i)`.
pub(super) fn list(field: &str, text: &str, default: &dyn Fn(usize) -> Option<u16>) -> Result<Vec<Place>, SpecError> {
    let refuse = |why: String, hint: &str| Err(SpecError::new(field, text, why, hint));
    let mut places = Vec::new();
    for word in text.split(',').map(str::trim) {
        let bare = (!word.contains(':')).then(|| Place { host: word.to_owned(), port: None });
        let full = Endpoint::parse(word).map(|Endpoint { host, port }| Place { host, port: Some(port) });
        match bare.or(full).filter(is_address) {
            Some(place) => places.push(place),
            None => {
                return refuse(format!("'{}' is no endpoint", word.escape_debug()), "give host:port joined by commas");
            }
        }
    }
    if places.iter().all(|place| place.port.is_none()) {
        for (i, place) in places.iter_mut().enumerate() {
            place.port = default(i);
        }
    } else if places.iter().any(|place| place.port.is_none()) {
        return refuse("has endpoints with ports and without".into(), "give each of them one, or none");
    }
    Ok(places)
}

/// `localhost`, or an address of loopback.
pub fn is_loopback(host: &str) -> bool {
    host == LOCALHOST || host.parse::<core::net::IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

fn is_address(place: &Place) -> bool {
    let odd = |c: char| c.is_whitespace() || c.is_control() || matches!(c, ';' | '[' | ']' | '/');
    let v6 = || place.host.parse::<core::net::Ipv6Addr>().is_ok();
    place.port != Some(0) && !place.host.is_empty() && !place.host.contains(odd) && (!place.host.contains(':') || v6())
}

/// How many, if any are asked for.
pub(super) fn count(values: &Values, name: &str) -> Result<Option<usize>, SpecError> {
    match values.int(name)? {
        None | Some(0) => Ok(None),
        Some(count @ 1..=MOST) => Ok(Some(count as usize)),
        Some(_) => Err(values.error(name, "is no number of processes", "give 1 to 65535")),
    }
}

/// A port, if one is asked for.
pub(super) fn port(values: &Values, name: &str) -> Result<Option<u16>, SpecError> {
    match values.int(name)? {
        None => Ok(None),
        Some(port @ 1..=65_535) => Ok(Some(port as u16)),
        Some(_) => Err(values.error(name, "is no port", "give a number from 1 to 65535")),
    }
}

/// The first of all ports, if they are consecutive, and the variable that has it.
pub(super) type First = Option<(&'static str, u16)>;

/// That port, if this variable has one.
pub(super) fn start_port(vars: &Vars, name: &'static str) -> Result<First, SpecError> {
    let Some(text) = vars.get(name).filter(|text| !text.is_empty()) else { return Ok(None) };
    Ok(Some((name, port_of(name, text)?)))
}
