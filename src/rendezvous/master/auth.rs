//! Message authentication of links: each line carries an HMAC made with the job's key. Pure, except for [`nonce`].
//!
//! Both ends of a link choose a nonce, and each end numbers its lines. So neither an old line nor one that is sent back to its
//! sender is accepted.

use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256};
use std::fs::File;
use std::io::{self, Read};

/// The SHA-256 digest of a body.
pub type BodyDigest = [u8; 32];

/// The length of an HMAC as text.
const MAC_LENGTH: usize = 64;

/// 128 random bits, as text.
pub fn nonce() -> io::Result<String> {
    let mut bytes = [0; 16];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(to_hex(&bytes))
}

/// The digest of a body.
pub fn digest(body: &[u8]) -> BodyDigest {
    Sha256::digest(body).into()
}

fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn from_hex(text: &[u8]) -> Option<Vec<u8>> {
    let digit = |byte: &u8| char::from(*byte).to_digit(16);
    let pair = |pair: &[u8]| Some((digit(pair.first()?)? * 16 + digit(pair.get(1)?)?) as u8);
    text.chunks(2).map(pair).collect()
}

/// The HMAC of some parts. Each part is preceded by its length, so that different parts never give the same bytes.
fn mac(key: &[u8], parts: &[&[u8]]) -> Option<Hmac<Sha256>> {
    // HMAC takes keys of any length.
    let mut mac = Hmac::<Sha256>::new_from_slice(key).ok()?;
    for part in parts {
        mac.update(&(part.len() as u64).to_le_bytes());
        mac.update(part);
    }
    Some(mac)
}

fn mac_bytes(key: &[u8], parts: &[&[u8]]) -> BodyDigest {
    mac(key, parts).map_or([0; 32], |mac| mac.finalize().into_bytes().into())
}

/// The two ends of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkSide {
    /// The end that connected.
    Node,
    /// The end that serves.
    Master,
}

/// Signs the lines that one end of a link sends, and verifies those that it receives. Without a key it does neither.
#[derive(Clone, Debug)]
pub struct LinkAuth {
    session_key: Option<BodyDigest>,
    side: LinkSide,
    /// Lines signed and verified so far.
    sent: u64,
    received: u64,
}

impl LinkAuth {
    /// For a link with these two nonces.
    pub fn new(key: Option<&str>, node_nonce: &str, master_nonce: &str, side: LinkSide) -> Self {
        let parts: [&[u8]; 3] = [b"rlaunch link 1", node_nonce.as_bytes(), master_nonce.as_bytes()];
        let session_key = key.map(|key| mac_bytes(key.as_bytes(), &parts));
        Self { session_key, side, sent: 0, received: 0 }
    }

    /// What precedes the next body that is sent: its HMAC and a space.
    pub fn sign(&mut self, body: &BodyDigest) -> Option<String> {
        let key = self.session_key.as_ref()?;
        self.sent += 1;
        Some(to_hex(&mac_bytes(key, &[&[self.side as u8], &self.sent.to_le_bytes(), body])) + " ")
    }

    /// The body of a line, if the other end sent it as its next one.
    pub fn verify<'a>(&mut self, line: &'a [u8]) -> Option<&'a [u8]> {
        let Some(key) = self.session_key.as_ref() else { return Some(line) };
        let (text, body) = (line.get(..MAC_LENGTH)?, line.get(MAC_LENGTH + 1..)?);
        self.received += 1;
        let other = if self.side == LinkSide::Node { LinkSide::Master } else { LinkSide::Node };
        let parts: [&[u8]; 3] = [&[other as u8], &self.received.to_le_bytes(), &digest(body)];
        // Compared in constant time.
        let is_right = mac(key, &parts).zip(from_hex(text)).is_some_and(|(mac, text)| mac.verify_slice(&text).is_ok());
        (line[MAC_LENGTH] == b' ' && is_right).then_some(body)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ends(node_key: Option<&str>, master_key: Option<&str>) -> (LinkAuth, LinkAuth) {
        (LinkAuth::new(node_key, "a", "b", LinkSide::Node), LinkAuth::new(master_key, "a", "b", LinkSide::Master))
    }

    fn line(auth: &mut LinkAuth, body: &[u8]) -> Vec<u8> {
        [auth.sign(&digest(body)).unwrap_or_default().as_bytes(), body].concat()
    }

    #[test]
    fn each_line_is_verified_once() {
        let (mut node, mut master) = ends(Some("k"), Some("k"));
        let first = line(&mut node, b"one");
        assert_eq!(master.verify(&first), Some(&b"one"[..]));
        assert_eq!(master.verify(&first), None, "replayed");
        let second = line(&mut master, b"two");
        assert_eq!(node.verify(&second), Some(&b"two"[..]));
    }

    #[test]
    fn lines_that_were_changed_moved_or_sent_back_are_rejected() {
        let (mut node, mut master) = ends(Some("k"), Some("k"));
        let own = line(&mut node, b"one");
        assert_eq!(node.clone().verify(&own), None, "reflected");
        let (_, mut other) = ends(Some("k"), Some("another"));
        assert_eq!(other.verify(&own), None, "another key");
        let mut elsewhere = LinkAuth::new(Some("k"), "a", "c", LinkSide::Master);
        assert_eq!(elsewhere.verify(&own), None, "another link");
        let mut changed = own.clone();
        *changed.last_mut().unwrap() ^= 1;
        assert_eq!(master.clone().verify(&changed), None);
        let next = line(&mut node, b"two");
        assert_eq!(master.verify(&next), None, "one was left out");
        assert_eq!(master.clone().verify(b"{}"), None);
        let (mut plain, _) = ends(None, None);
        assert_eq!((plain.sign(&digest(b"x")), plain.verify(b"{}")), (None, Some(&b"{}"[..])));
    }
}
