//! What listens at a master's address.

use super::dial::{self, Line, ask};
use super::frame::{KEYED, NONCE, PATH, PROTOCOL};
use super::http::{self, Message};
use super::{Clock, Traffic, seal};
use crate::rendezvous::torch_store::client::Left;
use std::io::{self, ErrorKind};
use std::time::Duration;

/// What was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// A master of ours.
    Rlaunch,
    /// The key-value server of Paddle's own launcher.
    Paddle,
    /// Nothing: why not, for people. Something may still come.
    Nothing(String),
    /// Something else: what it said, as far as it can be shown.
    Foreign(String),
}

/// Looks once, for so long at most.
pub fn probe(host: &str, port: u16, timeout: Duration, clock: Clock) -> Found {
    let traffic = Traffic::default();
    let mut left = dial::until(clock, clock() + timeout);
    match Line::connect(host, port, &traffic, &mut left) {
        Err(failure) => Found::Nothing(failure.to_string()),
        Ok(line) => match upgrade(line, &dial::name(host, port), &mut left) {
            Ok(_) => Found::Rlaunch,
            Err(failure) if failure.kind() == ErrorKind::InvalidData => {
                what_else(host, port, &traffic, &mut left).unwrap_or(Found::Foreign(failure.to_string()))
            }
            Err(failure) => Found::Nothing(failure.to_string()),
        },
    }
}

/// What there is that is no master of ours; `None`: who knows.
pub(super) fn what_else(host: &str, port: u16, traffic: &Traffic, left: Left<'_>) -> Option<Found> {
    let health = ask((host, port), ("GET", "/healthy", b"", ""), traffic, left).ok()?;
    let is_ok = health.status() == Some(200) && health.body.windows(4).any(|four| four == b"\"ok\"");
    Some(if is_ok { Found::Paddle } else { Found::Foreign(shown(&health)) })
}

fn shown(message: &Message) -> String {
    message.first.join(" ").chars().filter(|char| !char.is_control()).take(80).collect()
}

/// A link, of which nothing is read yet.
pub(super) struct Link {
    pub line: Line,
    /// Own number and theirs.
    pub nonces: (String, String),
    /// Whether they have a key.
    pub keyed: bool,
    /// What has come behind the answer.
    pub rest: Vec<u8>,
}

/// Asks for a link. `InvalidData`: what is there does not know what that is.
pub(super) fn upgrade(mut line: Line, host: &str, left: Left<'_>) -> io::Result<Link> {
    let own = seal::nonce()?;
    let more = format!("Connection: Upgrade\r\nUpgrade: {PROTOCOL}\r\n{NONCE}: {own}\r\n");
    line.send(&http::request("GET", PATH, host, b"", &more), left)?;
    let (answer, rest) = line.answer(left)?;
    match (answer.status(), answer.header(NONCE), answer.header(KEYED)) {
        (Some(101), Some(theirs), Some(keyed)) => {
            let nonces = (own, theirs.to_owned());
            Ok(Link { line, nonces, keyed: keyed == "yes", rest })
        }
        _ => Err(io::Error::new(ErrorKind::InvalidData, shown(&answer))),
    }
}
