//! Finds out what listens at a master's address, and asks for a link.

use super::connect::{MasterLink, request};
use crate::model::plain_text::escape;
use crate::net::deadline::{Clock, TimeLeft, until};
use crate::net::tcp;
use crate::net::traffic::Traffic;
use crate::rendezvous::master::auth;
use crate::rendezvous::master::frame::{INSTANCE, KEYED, NONCE, PATH, PROTOCOL};
use crate::rendezvous::master::http::{self, HttpMessage};
use std::io::{self, ErrorKind};
use std::time::Duration;

/// What listens at an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProbeResult {
    /// An embedded master of rlaunch: its instance, empty if it does not tell it.
    Rlaunch(String),
    /// The key-value server of Paddle's own launcher.
    Paddle,
    /// Nothing yet, with the reason.
    Nothing(String),
    /// Something else, with the first line of its response.
    Foreign(String),
}

/// Looks once, for `timeout` at most.
pub fn probe(host: &str, port: u16, timeout: Duration, clock: Clock) -> ProbeResult {
    let traffic = Traffic::default();
    let mut left = until(clock, clock() + timeout);
    match MasterLink::connect(host, port, &traffic, &mut left) {
        Err(failure) => ProbeResult::Nothing(failure.to_string()),
        Ok(link) => match upgrade(link, &tcp::host_port(host, port), &mut left) {
            Ok(link) => ProbeResult::Rlaunch(link.instance),
            Err(failure) if failure.kind() == ErrorKind::InvalidData => {
                identify_other(host, port, &traffic, &mut left).unwrap_or(ProbeResult::Foreign(failure.to_string()))
            }
            Err(failure) => ProbeResult::Nothing(failure.to_string()),
        },
    }
}

/// Identifies a server that is not an embedded master; `None` if it does not answer.
pub(super) fn identify_other(host: &str, port: u16, traffic: &Traffic, left: TimeLeft<'_>) -> Option<ProbeResult> {
    let health = request((host, port), ("GET", "/healthy", b""), traffic, left).ok()?;
    let is_ok = health.status() == Some(200) && health.body.windows(4).any(|four| four == b"\"ok\"");
    Some(if is_ok { ProbeResult::Paddle } else { ProbeResult::Foreign(first_line(&health)) })
}

fn first_line(message: &HttpMessage) -> String {
    escape(&message.first.join(" ")).chars().take(80).collect()
}

/// A link on which no line has been read yet.
pub(super) struct UpgradedLink {
    pub link: MasterLink,
    /// The node's and the master's nonce.
    pub nonces: (String, String),
    /// Whether the master requires a key.
    pub keyed: bool,
    /// What tells the master from others at its address.
    pub instance: String,
    /// Bytes that followed the response.
    pub rest: Vec<u8>,
}

/// Asks for a link. `InvalidData`: the server is not an embedded master.
pub(super) fn upgrade(mut link: MasterLink, host: &str, left: TimeLeft<'_>) -> io::Result<UpgradedLink> {
    let own = auth::nonce()?;
    let headers = format!("Connection: Upgrade\r\nUpgrade: {PROTOCOL}\r\n{NONCE}: {own}\r\n");
    link.send(&http::request("GET", PATH, host, b"", &headers), left)?;
    let (response, rest) = link.read_response(left)?;
    match (response.status(), response.header(NONCE), response.header(KEYED)) {
        (Some(101), Some(theirs), Some(keyed)) => {
            let nonces = (own, theirs.to_owned());
            let instance = response.header(INSTANCE).unwrap_or_default().to_owned();
            Ok(UpgradedLink { link, nonces, keyed: keyed == "yes", instance, rest })
        }
        _ => Err(io::Error::new(ErrorKind::InvalidData, first_line(&response))),
    }
}
