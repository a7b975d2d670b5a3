//! Who has the job's key can prove it, both ways, and nobody can say again what somebody has said before. Pure but for
//! [`nonce`].
//!
//! A link: both sides choose a number, and its frames are numbered each way, so that neither an old frame nor one's own can
//! be sent back. Paddle's requests: the server gives out a challenge, which is taken once and for a minute.

use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256};
use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Read};
use std::time::Duration;

/// SHA-256 of what is said.
pub type Sum = [u8; 32];

/// How long a challenge is taken.
const FRESH: Duration = Duration::from_secs(60);

/// A number that nobody can guess and that never comes again.
pub fn nonce() -> io::Result<String> {
    let mut bytes = [0; 16];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(hex(&bytes))
}

/// The sum of a body.
pub fn sum(body: &[u8]) -> Sum {
    Sha256::digest(body).into()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &[u8]) -> Option<Vec<u8>> {
    let digit = |byte: &u8| char::from(*byte).to_digit(16);
    let pair = |pair: &[u8]| Some((digit(pair.first()?)? * 16 + digit(pair.get(1)?)?) as u8);
    text.chunks(2).map(pair).collect()
}

/// Parts are told apart by their lengths.
fn mac(key: &[u8], parts: &[&[u8]]) -> Option<Hmac<Sha256>> {
    // A key may have any length.
    let mut mac = Hmac::<Sha256>::new_from_slice(key).ok()?;
    for part in parts {
        mac.update(&(part.len() as u64).to_le_bytes());
        mac.update(part);
    }
    Some(mac)
}

fn made(key: &[u8], parts: &[&[u8]]) -> Sum {
    mac(key, parts).map_or([0; 32], |mac| mac.finalize().into_bytes().into())
}

/// In a time that tells nothing of where they differ.
fn is(key: &[u8], parts: &[&[u8]], proof: &[u8]) -> bool {
    mac(key, parts).zip(unhex(proof)).is_some_and(|(mac, proof)| mac.verify_slice(&proof).is_ok())
}

/// The two ends of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Who has connected.
    Node,
    /// Who serves.
    Master,
}

/// Closes what one end of a link says, and opens what it hears. Without a key it does neither.
#[derive(Clone, Debug)]
pub struct Seal {
    session: Option<Sum>,
    side: Side,
    said: u64,
    heard: u64,
}

impl Seal {
    /// For a link between these two numbers.
    pub fn new(key: Option<&str>, node: &str, master: &str, side: Side) -> Self {
        let session = key.map(|key| made(key.as_bytes(), &[b"rlaunch link 1", node.as_bytes(), master.as_bytes()]));
        Self { session, side, said: 0, heard: 0 }
    }

    /// What stands before a body that is said next.
    pub fn close(&mut self, body: &Sum) -> Option<String> {
        let session = self.session.as_ref()?;
        self.said += 1;
        Some(hex(&made(session, &[&[self.side as u8], &self.said.to_le_bytes(), body])) + " ")
    }

    /// The body of a line, if the other end has said it, now.
    pub fn open<'a>(&mut self, line: &'a [u8]) -> Option<&'a [u8]> {
        let Some(session) = self.session.as_ref() else { return Some(line) };
        let (proof, body) = (line.get(..64)?, line.get(65..)?);
        self.heard += 1;
        let other = if self.side == Side::Node { Side::Master } else { Side::Node };
        let parts: [&[u8]; 3] = [&[other as u8], &self.heard.to_le_bytes(), &sum(body)];
        (line[64] == b' ' && is(session, &parts, proof)).then_some(body)
    }
}

/// The proof of a request of Paddle's protocol, by a challenge.
pub fn proof(key: &str, method: &str, path: &str, challenge: &str, body: &[u8]) -> String {
    hex(&made(key.as_bytes(), &request(method, path, challenge, &sum(body))))
}

/// Whether it is that.
pub fn proves(key: &str, method: &str, path: &str, challenge: &str, body: &[u8], proof: &str) -> bool {
    is(key.as_bytes(), &request(method, path, challenge, &sum(body)), proof.as_bytes())
}

fn request<'a>(method: &'a str, path: &'a str, challenge: &'a str, sum: &'a Sum) -> [&'a [u8]; 5] {
    [b"rlaunch kv 1", method.as_bytes(), path.as_bytes(), challenge.as_bytes(), sum]
}

/// The same of the answer.
pub fn answer(key: &str, challenge: &str, status: u16, body: &[u8]) -> String {
    let parts: [&[u8]; 4] = [b"rlaunch kv answer 1", challenge.as_bytes(), &status.to_le_bytes(), &sum(body)];
    hex(&made(key.as_bytes(), &parts))
}

/// Whether it is that.
pub fn answers(key: &str, challenge: &str, status: u16, body: &[u8], proof: &str) -> bool {
    let parts: [&[u8]; 4] = [b"rlaunch kv answer 1", challenge.as_bytes(), &status.to_le_bytes(), &sum(body)];
    is(key.as_bytes(), &parts, proof.as_bytes())
}

/// Gives out challenges, and takes each once. It remembers those alone that were used by who has the key.
#[derive(Debug)]
pub struct Challenges {
    secret: String,
    given: u64,
    used: BTreeSet<(u64, u64)>,
}

impl Challenges {
    /// `secret`: a nonce that nobody is told.
    pub fn new(secret: String) -> Self {
        Self { secret, given: 0, used: BTreeSet::new() }
    }

    /// Another one.
    pub fn give(&mut self, now: Duration) -> String {
        self.given += 1;
        let (time, number) = (now.as_millis() as u64, self.given);
        let proof = made(self.secret.as_bytes(), &[&time.to_le_bytes(), &number.to_le_bytes()]);
        format!("{time:016x}{number:016x}{}", hex(&proof))
    }

    /// Takes one, for whoever has proved that he has the key. Whether it was given out, not long ago, and not used.
    pub fn take(&mut self, challenge: &str, now: Duration) -> bool {
        let part =
            |range: std::ops::Range<usize>| challenge.get(range).and_then(|text| u64::from_str_radix(text, 16).ok());
        let (Some(time), Some(number), Some(proof)) = (part(0..16), part(16..32), challenge.get(32..)) else {
            return false;
        };
        let parts: [&[u8]; 2] = [&time.to_le_bytes(), &number.to_le_bytes()];
        let now = now.as_millis() as u64;
        let oldest = now.saturating_sub(FRESH.as_millis() as u64);
        while self.used.first().is_some_and(|(time, _)| *time < oldest) {
            self.used.pop_first();
        }
        is(self.secret.as_bytes(), &parts, proof.as_bytes()) && time >= oldest && self.used.insert((time, number))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ends(node_key: Option<&str>, master_key: Option<&str>) -> (Seal, Seal) {
        (Seal::new(node_key, "a", "b", Side::Node), Seal::new(master_key, "a", "b", Side::Master))
    }

    fn line(seal: &mut Seal, body: &[u8]) -> Vec<u8> {
        [seal.close(&sum(body)).unwrap_or_default().as_bytes(), body].concat()
    }

    #[test]
    fn what_one_end_closes_the_other_opens_once() {
        let (mut node, mut master) = ends(Some("k"), Some("k"));
        let first = line(&mut node, b"one");
        assert_eq!(master.open(&first), Some(&b"one"[..]));
        assert_eq!(master.open(&first), None, "replayed");
        let second = line(&mut master, b"two");
        assert_eq!(node.open(&second), Some(&b"two"[..]));
    }

    #[test]
    fn nothing_is_opened_that_was_changed_moved_or_sent_back() {
        let (mut node, mut master) = ends(Some("k"), Some("k"));
        let own = line(&mut node, b"one");
        assert_eq!(node.clone().open(&own), None, "reflected");
        let (_, mut other) = ends(Some("k"), Some("another"));
        assert_eq!(other.open(&own), None, "another key");
        let mut elsewhere = Seal::new(Some("k"), "a", "c", Side::Master);
        assert_eq!(elsewhere.open(&own), None, "another link");
        let mut changed = own.clone();
        *changed.last_mut().unwrap() ^= 1;
        assert_eq!(master.clone().open(&changed), None);
        let next = line(&mut node, b"two");
        assert_eq!(master.open(&next), None, "one was left out");
        assert_eq!(master.clone().open(b"{}"), None);
        let (mut plain, _) = ends(None, None);
        assert_eq!((plain.close(&sum(b"x")), plain.open(b"{}")), (None, Some(&b"{}"[..])));
    }

    #[test]
    fn a_challenge_is_taken_once_and_for_a_minute() {
        let mut server = Challenges::new("secret".into());
        let at = Duration::from_secs;
        let challenge = server.give(at(10));
        assert!(server.take(&challenge, at(11)));
        assert!(!server.take(&challenge, at(12)), "used");
        let old = server.give(at(20));
        assert!(!server.take(&old, at(81)), "old");
        assert!(server.used.is_empty(), "what is too old is forgotten");
        assert!(!Challenges::new("other".into()).take(&server.give(at(90)), at(90)), "not its own");
        assert!(!server.take("", at(90)) && !server.take(&"é".repeat(40), at(90)));
    }

    #[test]
    fn proofs_are_of_everything_that_is_said() {
        let made = proof("k", "GET", "/x", "c", b"");
        assert!(proves("k", "GET", "/x", "c", b"", &made));
        for (key, method, path, challenge, body) in [
            ("l", "GET", "/x", "c", ""),
            ("k", "PUT", "/x", "c", ""),
            ("k", "GET", "/y", "c", ""),
            ("k", "GET", "/x", "d", ""),
            ("k", "GET", "/x", "c", "b"),
        ] {
            assert!(!proves(key, method, path, challenge, body.as_bytes(), &made));
        }
        assert!(answers("k", "c", 200, b"v", &answer("k", "c", 200, b"v")));
        assert!(!answers("k", "c", 404, b"v", &answer("k", "c", 200, b"v")));
    }
}
