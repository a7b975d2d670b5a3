//! The state of the store: keys, queues, and clients that wait. Pure.
//!
//! It behaves as torch's own server does (the libuv one), compared operation by operation, except in three cases where torch's
//! behaviour only does harm: a wait for a key and for a non-empty queue ends when the key is set, a compare-and-set that sets
//! nothing wakes no client, and a client that waits twice waits for the second set of keys alone.

use super::frame::StoreRequest;
use super::stored_value::StoredValue;
use crate::net::server::ConnectionId;
use crate::net::server::OutputChunk;
use crate::net::server::{BudgetExceeded, MemoryBudget, OVERHEAD};
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::Arc;

/// The number of a wait; later waits have higher ones.
type WaitOrder = u64;

/// A key, shared with all clients that wait for it.
type Key = Arc<[u8]>;

/// Values up to this length are copied into a reply.
const SHORT: usize = 512;

/// All keys exist.
const READY: u8 = 0;
/// Not all keys exist.
const NOT_READY: u8 = 1;
/// The wait is over, because all keys exist.
const STOP_WAITING: u8 = 0;
/// The wait is over, because the client cancelled it.
const WAIT_CANCELED: u8 = 1;

/// Replies to clients, in order.
pub type Replies = Vec<(ConnectionId, OutputChunk<StoredValue>)>;

/// Why a client's connection is closed, as torch's server does.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum StoreError {
    /// The value that it adds to is not a number.
    #[error("the value to add to is not a number")]
    NotANumber,
    /// The memory budget is used up.
    #[error(transparent)]
    Full(#[from] BudgetExceeded),
}

/// The store.
#[derive(Debug)]
pub struct StoreState {
    keys: HashMap<Key, StoredValue>,
    /// The lengths of all keys together.
    key_bytes: usize,
    /// No queue is empty.
    queues: HashMap<Key, VecDeque<StoredValue>>,
    /// The clients that wait for a key, the oldest wait first.
    waits: HashMap<Key, BTreeMap<WaitOrder, ConnectionId>>,
    /// The keys that a waiting client still lacks; at least one.
    lacking: HashMap<ConnectionId, (WaitOrder, HashSet<Key>)>,
    last_wait: WaitOrder,
    budget: MemoryBudget,
}

impl StoreState {
    /// An empty store.
    pub fn new(budget: MemoryBudget) -> Self {
        Self {
            keys: HashMap::new(),
            key_bytes: 0,
            queues: HashMap::new(),
            waits: HashMap::new(),
            lacking: HashMap::new(),
            last_wait: 0,
            budget,
        }
    }

    /// Deletes everything.
    pub fn clear(&mut self) {
        let budget = self.budget.clone();
        let cost = |key: &Key| key.len() + OVERHEAD;
        let stored = self.keys.keys().chain(self.queues.keys()).map(cost).sum::<usize>();
        let awaited = self.lacking.values().flat_map(|(_, keys)| keys).map(cost).sum::<usize>();
        budget.release(stored + awaited);
        *self = Self::new(budget);
    }

    /// Handles a request. After an error the client's connection is to be closed; replies to other clients are valid.
    pub fn handle(
        &mut self,
        client: ConnectionId,
        request: StoreRequest,
        replies: &mut Replies,
    ) -> Result<(), StoreError> {
        match request {
            StoreRequest::Set { key, value } => self.set(&key, value, replies)?,
            StoreRequest::MultiSet(pairs) => {
                pairs.into_iter().try_for_each(|(key, value)| self.set(&key, value, replies))?;
            }
            StoreRequest::CompareSet { key, expected, desired } => {
                let fits = match self.keys.get(&key[..]) {
                    Some(value) => value.bytes() == expected,
                    None => expected.is_empty(),
                };
                if fits {
                    self.set(&key, desired, replies)?;
                }
                match self.keys.get(&key[..]) {
                    Some(value) => ReplyBuilder::default().value(value).send(client, replies),
                    None => ReplyBuilder::default().bytes(&expected).send(client, replies),
                }
            }
            StoreRequest::Get(key) => {
                ReplyBuilder::default().value_or_empty(self.keys.get(&key[..])).send(client, replies)
            }
            StoreRequest::MultiGet(keys) => {
                self.budget.check(keys.iter().map(|key| reply_cost(self.keys.get(&key[..]))).sum())?;
                let mut reply = ReplyBuilder::default();
                for key in keys {
                    reply = reply.value_or_empty(self.keys.get(&key[..]));
                }
                reply.send(client, replies);
            }
            StoreRequest::Add { key, amount } => {
                let sum = self.add(&key, amount)?;
                self.wake(&key, replies);
                ReplyBuilder::default().number(sum).send(client, replies);
            }
            StoreRequest::Append { key, value } => match self.keys.get_mut(&key[..]) {
                Some(old) => {
                    old.append(&value)?;
                    self.wake(&key, replies);
                }
                None => self.set(&key, value, replies)?,
            },
            StoreRequest::Check(keys) => {
                let answer = if keys.iter().all(|key| self.has(key)) { READY } else { NOT_READY };
                ReplyBuilder::default().byte(answer).send(client, replies);
            }
            StoreRequest::Wait(keys) => {
                self.forget(client);
                let lacking: HashSet<Key> =
                    keys.into_iter().filter(|key| !self.has(key)).map(|key| self.to_shared(&key)).collect();
                if lacking.is_empty() {
                    ReplyBuilder::default().byte(STOP_WAITING).send(client, replies);
                } else {
                    self.wait(client, lacking)?;
                }
            }
            StoreRequest::CancelWait => {
                self.forget(client);
                ReplyBuilder::default().byte(WAIT_CANCELED).send(client, replies);
            }
            StoreRequest::Barrier { key, world } => {
                self.forget(client);
                if self.add(&key, 1)? >= world {
                    self.wake(&key, replies);
                    ReplyBuilder::default().byte(STOP_WAITING).send(client, replies);
                } else {
                    let key = self.to_shared(&key);
                    self.wait(client, HashSet::from([key]))?;
                }
            }
            StoreRequest::CountKeys => ReplyBuilder::default().number(self.keys.len() as i64).send(client, replies),
            StoreRequest::Delete(key) => {
                let removed = self.keys.remove(&key[..]).is_some();
                if removed {
                    self.key_bytes -= key.len();
                    self.budget.release(key.len() + OVERHEAD);
                }
                ReplyBuilder::default().number(removed.into()).send(client, replies);
            }
            StoreRequest::Ping(nonce) => ReplyBuilder::default().raw(&nonce.to_le_bytes()).send(client, replies),
            StoreRequest::QueuePush { key, value } => {
                let value = StoredValue::new(value, &self.budget)?;
                match self.queues.get_mut(&key[..]) {
                    Some(queue) => queue.push_back(value),
                    None => {
                        self.budget.reserve(key.len() + OVERHEAD)?;
                        self.queues.insert(self.to_shared(&key), VecDeque::from([value]));
                    }
                }
                self.wake_one(&key, replies);
            }
            StoreRequest::QueuePop(key) => {
                let length = self.queues.get(&key[..]).map_or(0, VecDeque::len);
                let reply = ReplyBuilder::default().number(length as i64);
                match self.queues.get_mut(&key[..]).and_then(VecDeque::pop_front) {
                    Some(value) => reply.value(&value).send(client, replies),
                    None => reply.send(client, replies),
                }
                if length == 1 {
                    self.queues.remove(&key[..]);
                    self.budget.release(key.len() + OVERHEAD);
                }
            }
            StoreRequest::QueueLength(key) => {
                let length = self.queues.get(&key[..]).map_or(0, VecDeque::len);
                ReplyBuilder::default().number(length as i64).send(client, replies);
            }
            StoreRequest::ListKeys => {
                self.budget.check(self.key_bytes + 8 * self.keys.len())?;
                let reply = ReplyBuilder::default().number(self.keys.len() as i64);
                self.keys.keys().fold(reply, |reply, key| reply.bytes(key)).send(client, replies);
            }
        }
        Ok(())
    }

    /// Ends the wait of a client: it has gone, or waits for something else.
    pub fn forget(&mut self, client: ConnectionId) {
        let (order, keys) = self.lacking.remove(&client).unwrap_or_default();
        for key in keys {
            self.budget.release(key.len() + OVERHEAD);
            if let Some(waiting) = self.waits.get_mut(&key) {
                waiting.remove(&order);
                if waiting.is_empty() {
                    self.waits.remove(&key);
                }
            }
        }
    }

    fn has(&self, key: &[u8]) -> bool {
        self.keys.contains_key(key) || self.queues.contains_key(key)
    }

    /// The key, shared with those that wait for it.
    fn to_shared(&self, key: &[u8]) -> Key {
        self.waits.get_key_value(key).map_or_else(|| key.into(), |(key, _)| Arc::clone(key))
    }

    fn set(&mut self, key: &[u8], value: Vec<u8>, replies: &mut Replies) -> Result<(), BudgetExceeded> {
        self.put(key, value)?;
        self.wake(key, replies);
        Ok(())
    }

    fn put(&mut self, key: &[u8], value: Vec<u8>) -> Result<(), BudgetExceeded> {
        let value = StoredValue::new(value, &self.budget)?;
        match self.keys.get_mut(key) {
            Some(old) => *old = value,
            None => {
                self.budget.reserve(key.len() + OVERHEAD)?;
                self.key_bytes += key.len();
                self.keys.insert(self.to_shared(key), value);
            }
        }
        Ok(())
    }

    fn add(&mut self, key: &[u8], amount: i64) -> Result<i64, StoreError> {
        let before = match self.keys.get(key) {
            Some(value) => parse_number(value.bytes()).ok_or(StoreError::NotANumber)?,
            None => 0,
        };
        let sum = before.wrapping_add(amount);
        self.put(key, sum.to_string().into_bytes())?;
        Ok(sum)
    }

    fn wait(&mut self, client: ConnectionId, lacking: HashSet<Key>) -> Result<(), BudgetExceeded> {
        self.budget.reserve(lacking.iter().map(|key| key.len() + OVERHEAD).sum())?;
        self.last_wait += 1;
        for key in &lacking {
            self.waits.entry(Arc::clone(key)).or_default().insert(self.last_wait, client);
        }
        self.lacking.insert(client, (self.last_wait, lacking));
        Ok(())
    }

    /// A key was set: no client lacks it any more.
    fn wake(&mut self, key: &[u8], replies: &mut Replies) {
        for client in self.waits.remove(key).unwrap_or_default().into_values() {
            self.satisfy(client, key, replies);
        }
    }

    /// A value was added to a queue: the first client that lacks nothing else stops waiting.
    fn wake_one(&mut self, key: &[u8], replies: &mut Replies) {
        let Some((key, mut waiting)) = self.waits.remove_entry(key) else { return };
        while let Some((_, client)) = waiting.pop_first() {
            if self.satisfy(client, &key, replies) {
                break;
            }
        }
        if !waiting.is_empty() {
            self.waits.insert(key, waiting);
        }
    }

    /// A client does not lack this key any more. Whether it lacks nothing else, and so stops waiting.
    fn satisfy(&mut self, client: ConnectionId, key: &[u8], replies: &mut Replies) -> bool {
        let Some((_, lacking)) = self.lacking.get_mut(&client) else { return false };
        if lacking.remove(key) {
            self.budget.release(key.len() + OVERHEAD);
        }
        let all = lacking.is_empty();
        if all {
            self.lacking.remove(&client);
            ReplyBuilder::default().byte(STOP_WAITING).send(client, replies);
        }
        all
    }
}

/// The memory that a reply needs for one value, beside what is shared with the store.
fn reply_cost(value: Option<&StoredValue>) -> usize {
    match value.map_or(0, |value| value.bytes().len()) {
        short @ 0..=SHORT => 8 + short,
        _ => OVERHEAD,
    }
}

/// A number as C's `strtoll` reads it: what follows the digits is ignored.
fn parse_number(text: &[u8]) -> Option<i64> {
    let text = text.trim_ascii_start();
    let sign = usize::from(matches!(text.first(), Some(b'+' | b'-')));
    let digits = text[sign..].iter().take_while(|byte| byte.is_ascii_digit()).count();
    std::str::from_utf8(&text[..sign + digits]).ok()?.parse().ok()
}

/// One client's reply.
#[derive(Default)]
struct ReplyBuilder(Vec<OutputChunk<StoredValue>>);

impl ReplyBuilder {
    fn raw(mut self, bytes: &[u8]) -> Self {
        match self.0.last_mut() {
            Some(OutputChunk::Own(own)) => own.extend_from_slice(bytes),
            _ => self.0.push(OutputChunk::Own(bytes.to_vec())),
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

    fn value(self, value: &StoredValue) -> Self {
        if value.bytes().len() <= SHORT {
            return self.bytes(value.bytes());
        }
        let mut reply = self.number(value.bytes().len() as i64);
        reply.0.push(OutputChunk::Shared(value.clone()));
        reply
    }

    fn value_or_empty(self, value: Option<&StoredValue>) -> Self {
        match value {
            Some(value) => self.value(value),
            None => self.bytes(&[]),
        }
    }

    fn send(self, client: ConnectionId, replies: &mut Replies) {
        replies.extend(self.0.into_iter().map(|chunk| (client, chunk)));
    }
}
