//! What the store knows: keys, queues, and who waits for what. A pure machine; its meaning is that of torch's
//! own server (libuv's), asked operation by operation, but for three things that only hurt there: a wait for
//! a key and for a queue that has something ends when the key comes, a compare-and-set that sets nothing wakes
//! nobody, and a client that waits twice waits for the second thing alone.

use super::frame::Request;
use super::ledger::{Full, Ledger, OVERHEAD, Value};
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::Arc;

/// Who asks. Never used again for another.
pub type ClientId = u64;

/// When somebody began to wait, counted in waits.
type Turn = u64;

/// A name. Shared by all who wait for it.
type Key = Arc<[u8]>;

/// Values up to this long are copied into a reply.
const SHORT: usize = 512;

/// All are there.
const READY: u8 = 0;
/// Not all are there.
const NOT_READY: u8 = 1;
/// The wait is over, because all are there.
const STOP_WAITING: u8 = 0;
/// The wait is over, because the client wanted so.
const WAIT_CANCELED: u8 = 1;

/// A run of bytes to be sent.
#[derive(Clone, Debug)]
pub enum Piece {
    /// Made for this reply.
    Own(Vec<u8>),
    /// A stored value.
    Shared(Value),
}

impl Piece {
    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        match self {
            Self::Own(bytes) => bytes,
            Self::Shared(value) => value.bytes(),
        }
    }
}

/// What is sent to whom, in order.
pub type Replies = Vec<(ClientId, Piece)>;

/// Why a client is hung up on, as torch's server does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refused {
    /// What it adds to is no number.
    NoNumber,
    /// More would be held than is allowed.
    Full,
}

impl From<Full> for Refused {
    fn from(_: Full) -> Self {
        Self::Full
    }
}

/// The store.
#[derive(Debug)]
pub struct Store {
    keys: HashMap<Key, Value>,
    /// The lengths of all keys together.
    key_bytes: usize,
    /// None is empty.
    queues: HashMap<Key, VecDeque<Value>>,
    /// Who waits for a key, the longest first.
    waits: HashMap<Key, BTreeMap<Turn, ClientId>>,
    /// What a waiting client still lacks; never nothing.
    lacking: HashMap<ClientId, (Turn, HashSet<Key>)>,
    turn: Turn,
    ledger: Ledger,
}

impl Store {
    /// An empty one.
    pub fn new(ledger: Ledger) -> Self {
        Self {
            keys: HashMap::new(),
            key_bytes: 0,
            queues: HashMap::new(),
            waits: HashMap::new(),
            lacking: HashMap::new(),
            turn: 0,
            ledger,
        }
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        let ledger = self.ledger.clone();
        let cost = |key: &Key| key.len() + OVERHEAD;
        let named = self.keys.keys().chain(self.queues.keys()).map(cost).sum::<usize>();
        let awaited = self.lacking.values().flat_map(|(_, keys)| keys).map(cost).sum::<usize>();
        ledger.give(named + awaited);
        *self = Self::new(ledger);
    }

    /// Does what a client asks. After an error the client is hung up on; others have their replies.
    pub fn handle(&mut self, client: ClientId, request: Request, replies: &mut Replies) -> Result<(), Refused> {
        match request {
            Request::Set { key, value } => self.set(&key, value, replies)?,
            Request::MultiSet(pairs) => {
                pairs.into_iter().try_for_each(|(key, value)| self.set(&key, value, replies))?;
            }
            Request::CompareSet { key, expected, desired } => {
                let fits = match self.keys.get(&key[..]) {
                    Some(value) => value.bytes() == expected,
                    None => expected.is_empty(),
                };
                if fits {
                    self.set(&key, desired, replies)?;
                }
                match self.keys.get(&key[..]) {
                    Some(value) => Reply::default().value(value).send(client, replies),
                    None => Reply::default().bytes(&expected).send(client, replies),
                }
            }
            Request::Get(key) => Reply::default().found(self.keys.get(&key[..])).send(client, replies),
            Request::MultiGet(keys) => {
                self.ledger.room(keys.iter().map(|key| cost_of_telling(self.keys.get(&key[..]))).sum())?;
                let mut reply = Reply::default();
                for key in keys {
                    reply = reply.found(self.keys.get(&key[..]));
                }
                reply.send(client, replies);
            }
            Request::Add { key, amount } => {
                let sum = self.add(&key, amount)?;
                self.wake(&key, replies);
                Reply::default().number(sum).send(client, replies);
            }
            Request::Append { key, value } => match self.keys.get_mut(&key[..]) {
                Some(old) => {
                    old.append(&value)?;
                    self.wake(&key, replies);
                }
                None => self.set(&key, value, replies)?,
            },
            Request::Check(keys) => {
                let answer = if keys.iter().all(|key| self.has(key)) { READY } else { NOT_READY };
                Reply::default().byte(answer).send(client, replies);
            }
            Request::Wait(keys) => {
                self.forget(client);
                let lacking: HashSet<Key> =
                    keys.into_iter().filter(|key| !self.has(key)).map(|key| self.shared(&key)).collect();
                if lacking.is_empty() {
                    Reply::default().byte(STOP_WAITING).send(client, replies);
                } else {
                    self.wait(client, lacking)?;
                }
            }
            Request::CancelWait => {
                self.forget(client);
                Reply::default().byte(WAIT_CANCELED).send(client, replies);
            }
            Request::Barrier { key, world } => {
                self.forget(client);
                if self.add(&key, 1)? >= world {
                    self.wake(&key, replies);
                    Reply::default().byte(STOP_WAITING).send(client, replies);
                } else {
                    let key = self.shared(&key);
                    self.wait(client, HashSet::from([key]))?;
                }
            }
            Request::CountKeys => Reply::default().number(self.keys.len() as i64).send(client, replies),
            Request::Delete(key) => {
                let removed = self.keys.remove(&key[..]).is_some();
                if removed {
                    self.key_bytes -= key.len();
                    self.ledger.give(key.len() + OVERHEAD);
                }
                Reply::default().number(removed.into()).send(client, replies);
            }
            Request::Ping(nonce) => Reply::default().raw(&nonce.to_le_bytes()).send(client, replies),
            Request::QueuePush { key, value } => {
                let value = Value::new(value, &self.ledger)?;
                match self.queues.get_mut(&key[..]) {
                    Some(queue) => queue.push_back(value),
                    None => {
                        self.ledger.take(key.len() + OVERHEAD)?;
                        self.queues.insert(self.shared(&key), VecDeque::from([value]));
                    }
                }
                self.wake_one(&key, replies);
            }
            Request::QueuePop(key) => {
                let length = self.queues.get(&key[..]).map_or(0, VecDeque::len);
                let reply = Reply::default().number(length as i64);
                match self.queues.get_mut(&key[..]).and_then(VecDeque::pop_front) {
                    Some(value) => reply.value(&value).send(client, replies),
                    None => reply.send(client, replies),
                }
                if length == 1 {
                    self.queues.remove(&key[..]);
                    self.ledger.give(key.len() + OVERHEAD);
                }
            }
            Request::QueueLength(key) => {
                let length = self.queues.get(&key[..]).map_or(0, VecDeque::len);
                Reply::default().number(length as i64).send(client, replies);
            }
            Request::ListKeys => {
                self.ledger.room(self.key_bytes + 8 * self.keys.len())?;
                let reply = Reply::default().number(self.keys.len() as i64);
                self.keys.keys().fold(reply, |reply, key| reply.bytes(key)).send(client, replies);
            }
        }
        Ok(())
    }

    /// Drops what a client waits for: it has gone, or waits no more.
    pub fn forget(&mut self, client: ClientId) {
        let (turn, keys) = self.lacking.remove(&client).unwrap_or_default();
        for key in keys {
            self.ledger.give(key.len() + OVERHEAD);
            if let Some(waiting) = self.waits.get_mut(&key) {
                waiting.remove(&turn);
                if waiting.is_empty() {
                    self.waits.remove(&key);
                }
            }
        }
    }

    fn has(&self, key: &[u8]) -> bool {
        self.keys.contains_key(key) || self.queues.contains_key(key)
    }

    /// The key as somebody already has it, or anew.
    fn shared(&self, key: &[u8]) -> Key {
        self.waits.get_key_value(key).map_or_else(|| key.into(), |(key, _)| Arc::clone(key))
    }

    fn set(&mut self, key: &[u8], value: Vec<u8>, replies: &mut Replies) -> Result<(), Full> {
        self.put(key, value)?;
        self.wake(key, replies);
        Ok(())
    }

    fn put(&mut self, key: &[u8], value: Vec<u8>) -> Result<(), Full> {
        let value = Value::new(value, &self.ledger)?;
        match self.keys.get_mut(key) {
            Some(old) => *old = value,
            None => {
                self.ledger.take(key.len() + OVERHEAD)?;
                self.key_bytes += key.len();
                self.keys.insert(self.shared(key), value);
            }
        }
        Ok(())
    }

    fn add(&mut self, key: &[u8], amount: i64) -> Result<i64, Refused> {
        let before = match self.keys.get(key) {
            Some(value) => number(value.bytes()).ok_or(Refused::NoNumber)?,
            None => 0,
        };
        let sum = before.wrapping_add(amount);
        self.put(key, sum.to_string().into_bytes())?;
        Ok(sum)
    }

    fn wait(&mut self, client: ClientId, lacking: HashSet<Key>) -> Result<(), Full> {
        self.ledger.take(lacking.iter().map(|key| key.len() + OVERHEAD).sum())?;
        self.turn += 1;
        for key in &lacking {
            self.waits.entry(Arc::clone(key)).or_default().insert(self.turn, client);
        }
        self.lacking.insert(client, (self.turn, lacking));
        Ok(())
    }

    /// A key is there: nobody lacks it any more.
    fn wake(&mut self, key: &[u8], replies: &mut Replies) {
        for client in self.waits.remove(key).unwrap_or_default().into_values() {
            self.got(client, key, replies);
        }
    }

    /// A value has been put into a queue: the first who lacks nothing else may have it.
    fn wake_one(&mut self, key: &[u8], replies: &mut Replies) {
        let Some((key, mut waiting)) = self.waits.remove_entry(key) else { return };
        while let Some((_, client)) = waiting.pop_first() {
            if self.got(client, &key, replies) {
                break;
            }
        }
        if !waiting.is_empty() {
            self.waits.insert(key, waiting);
        }
    }

    /// Whether this was all that the client lacked.
    fn got(&mut self, client: ClientId, key: &[u8], replies: &mut Replies) -> bool {
        let Some((_, lacking)) = self.lacking.get_mut(&client) else { return false };
        if lacking.remove(key) {
            self.ledger.give(key.len() + OVERHEAD);
        }
        let all = lacking.is_empty();
        if all {
            self.lacking.remove(&client);
            Reply::default().byte(STOP_WAITING).send(client, replies);
        }
        all
    }
}

/// What a reply holds for one value that is asked for, as far as that is not shared with who set it.
fn cost_of_telling(value: Option<&Value>) -> usize {
    match value.map_or(0, |value| value.bytes().len()) {
        short @ 0..=SHORT => 8 + short,
        _ => OVERHEAD,
    }
}

/// A number as C's `strtoll` reads it: what follows the digits is nothing.
fn number(text: &[u8]) -> Option<i64> {
    let text = text.trim_ascii_start();
    let sign = usize::from(matches!(text.first(), Some(b'+' | b'-')));
    let digits = text[sign..].iter().take_while(|byte| byte.is_ascii_digit()).count();
    std::str::from_utf8(&text[..sign + digits]).ok()?.parse().ok()
}

/// One client's reply.
#[derive(Default)]
struct Reply(Vec<Piece>);

impl Reply {
    fn raw(mut self, bytes: &[u8]) -> Self {
        match self.0.last_mut() {
            Some(Piece::Own(own)) => own.extend_from_slice(bytes),
            _ => self.0.push(Piece::Own(bytes.to_vec())),
        }
        self
    }

    fn byte(self, byte: u8) -> Self {
        self.raw(&[byte])
    }

    fn number(self, number: i64) -> Self {
        self.raw(&number.to_le_bytes())
    }

    fn bytes(self, bytes: &[u8]) -> Self {
        self.number(bytes.len() as i64).raw(bytes)
    }

    fn value(self, value: &Value) -> Self {
        if value.bytes().len() <= SHORT {
            return self.bytes(value.bytes());
        }
        let mut reply = self.number(value.bytes().len() as i64);
        reply.0.push(Piece::Shared(value.clone()));
        reply
    }

    fn found(self, value: Option<&Value>) -> Self {
        match value {
            Some(value) => self.value(value),
            None => self.bytes(&[]),
        }
    }

    fn send(self, client: ClientId, replies: &mut Replies) {
        replies.extend(self.0.into_iter().map(|piece| (client, piece)));
    }
}
