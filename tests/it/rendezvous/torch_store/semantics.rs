//! The store against a simple model of it: lists instead of tables, and everything looked at anew each time.

use crate::rendezvous::torch_store::frames;
use proptest::collection::vec;
use proptest::prelude::*;
use rlaunch::net::server::ConnectionId;
use rlaunch::net::server::{BudgetExceeded, MemoryBudget};
use rlaunch::rendezvous::torch_store::frame::StoreRequest;
use rlaunch::rendezvous::torch_store::state::{Replies, StoreError, StoreState};
use std::collections::{BTreeMap, BTreeSet};

type Bytes = Vec<u8>;

#[derive(Default)]
struct Model {
    keys: BTreeMap<Bytes, Bytes>,
    queues: BTreeMap<Bytes, Vec<Bytes>>,
    /// The waiting clients, the longest first, and the keys that each still lacks.
    waits: Vec<(ConnectionId, BTreeSet<Bytes>)>,
    replies: Vec<(ConnectionId, Bytes)>,
}

fn framed(bytes: &[u8]) -> Bytes {
    [&(bytes.len() as u64).to_le_bytes(), bytes].concat()
}

fn number(number: usize) -> Bytes {
    (number as u64).to_le_bytes().to_vec()
}

impl Model {
    fn get(&self, key: &[u8]) -> Bytes {
        self.keys.get(key).cloned().unwrap_or_default()
    }

    fn has(&self, key: &Bytes) -> bool {
        self.keys.contains_key(key) || self.queues.get(key).is_some_and(|queue| !queue.is_empty())
    }

    fn set(&mut self, key: Bytes, value: Bytes) {
        self.keys.insert(key.clone(), value);
        self.wake(&key, usize::MAX);
    }

    /// Replies to at most `most` clients that wait for nothing else.
    fn wake(&mut self, key: &[u8], most: usize) {
        let mut replied = 0;
        let mut left = Vec::new();
        for (client, mut lacking) in std::mem::take(&mut self.waits) {
            if replied < most && lacking.remove(key) && lacking.is_empty() {
                self.replies.push((client, vec![0]));
                replied += 1;
            } else {
                left.push((client, lacking));
            }
        }
        self.waits = left;
    }

    fn sum(&self, key: &[u8], amount: i64) -> Option<i64> {
        match self.keys.get(key) {
            None => Some(amount),
            Some(value) => Some(String::from_utf8(value.clone()).ok()?.parse::<i64>().ok()?.wrapping_add(amount)),
        }
    }

    /// Whether the client may stay.
    fn handle(&mut self, client: ConnectionId, request: StoreRequest) -> bool {
        let reply = match request {
            StoreRequest::Set { key, value } => return self.quiet(key, value),
            StoreRequest::MultiSet(pairs) => return pairs.into_iter().all(|(key, value)| self.quiet(key, value)),
            StoreRequest::Append { key, value } => return self.quiet(key.clone(), [self.get(&key), value].concat()),
            StoreRequest::CompareSet { key, expected, desired } => {
                let old = self.keys.get(&key).cloned();
                if old.clone().unwrap_or_default() == expected {
                    self.set(key.clone(), desired);
                }
                framed(if self.keys.contains_key(&key) { &self.keys[&key] } else { &expected })
            }
            StoreRequest::Get(key) => framed(&self.get(&key)),
            StoreRequest::MultiGet(keys) => keys.iter().flat_map(|key| framed(&self.get(key))).collect(),
            StoreRequest::Add { key, amount } => {
                let Some(sum) = self.sum(&key, amount) else { return false };
                self.set(key, sum.to_string().into_bytes());
                sum.to_le_bytes().to_vec()
            }
            StoreRequest::Barrier { key, world } => {
                self.waits.retain(|(other, _)| *other != client);
                let Some(sum) = self.sum(&key, 1) else { return false };
                self.keys.insert(key.clone(), sum.to_string().into_bytes());
                if sum < world {
                    self.waits.push((client, [key].into()));
                    return true;
                }
                self.wake(&key, usize::MAX);
                vec![0]
            }
            StoreRequest::Check(keys) => vec![u8::from(!keys.iter().all(|key| self.has(key)))],
            StoreRequest::Wait(keys) => {
                self.waits.retain(|(other, _)| *other != client);
                let lacking: BTreeSet<Bytes> = keys.into_iter().filter(|key| !self.has(key)).collect();
                if !lacking.is_empty() {
                    self.waits.push((client, lacking));
                    return true;
                }
                vec![0]
            }
            StoreRequest::CancelWait => {
                self.waits.retain(|(other, _)| *other != client);
                vec![1]
            }
            StoreRequest::CountKeys => number(self.keys.len()),
            StoreRequest::Delete(key) => number(usize::from(self.keys.remove(&key).is_some())),
            StoreRequest::Ping(nonce) => nonce.to_le_bytes().to_vec(),
            StoreRequest::QueuePush { key, value } => {
                self.queues.entry(key.clone()).or_default().push(value);
                self.wake(&key, 1);
                return true;
            }
            StoreRequest::QueuePop(key) => match self.queues.get_mut(&key) {
                Some(queue) if !queue.is_empty() => [number(queue.len()), framed(&queue.remove(0))].concat(),
                _ => number(0),
            },
            StoreRequest::QueueLength(key) => number(self.queues.get(&key).map_or(0, Vec::len)),
            StoreRequest::ListKeys => {
                [number(self.keys.len()), self.keys.keys().flat_map(|key| framed(key)).collect()].concat()
            }
        };
        self.replies.push((client, reply));
        true
    }

    fn quiet(&mut self, key: Bytes, value: Bytes) -> bool {
        self.set(key, value);
        true
    }
}

/// The replies in order, each client's for itself: nothing is promised about the order among clients.
fn by_client<'a>(replies: impl Iterator<Item = (ConnectionId, &'a [u8])>) -> BTreeMap<ConnectionId, Bytes> {
    let mut sent = BTreeMap::<ConnectionId, Bytes>::new();
    replies.filter(|(_, bytes)| !bytes.is_empty()).for_each(|(client, bytes)| {
        sent.entry(client).or_default().extend_from_slice(bytes);
    });
    sent
}

/// Few names, so that clients meet; numbers, so that some can be added to.
fn few() -> impl Strategy<Value = StoreRequest> {
    let name = || prop_oneof![Just(b"a".to_vec()), Just(b"b".to_vec()), Just(b"c".to_vec())];
    let value = || prop_oneof![Just(b"1".to_vec()), Just(b"".to_vec()), Just(vec![b'7'; 600])];
    prop_oneof![
        1 => frames::requests(),
        3 => (name(), value()).prop_map(|(key, value)| StoreRequest::Set { key, value }),
        2 => (name(), value(), value())
            .prop_map(|(key, expected, desired)| StoreRequest::CompareSet { key, expected, desired }),
        2 => name().prop_map(StoreRequest::Get),
        2 => (name(), any::<i64>()).prop_map(|(key, amount)| StoreRequest::Add { key, amount }),
        2 => vec(name(), 0..3).prop_map(StoreRequest::Check),
        4 => vec(name(), 0..3).prop_map(StoreRequest::Wait),
        4 => name().prop_map(StoreRequest::Delete),
        2 => (name(), value()).prop_map(|(key, value)| StoreRequest::Append { key, value }),
        1 => vec(name(), 0..3).prop_map(StoreRequest::MultiGet),
        1 => Just(StoreRequest::CancelWait),
        4 => (name(), value()).prop_map(|(key, value)| StoreRequest::QueuePush { key, value }),
        3 => name().prop_map(StoreRequest::QueuePop),
        1 => name().prop_map(StoreRequest::QueueLength),
        3 => (name(), 0..4_i64).prop_map(|(key, world)| StoreRequest::Barrier { key, world }),
    ]
}

#[derive(Clone, Debug)]
enum Step {
    Ask(StoreRequest),
    Leave,
}

proptest! {
    #[test]
    fn the_store_behaves_like_its_model(
        steps in vec((0..4 as ConnectionId, prop_oneof![15 => few().prop_map(Step::Ask), 1 => Just(Step::Leave)]), 0..60)
    ) {
        let budget = MemoryBudget::new(1 << 20);
        let (mut store, mut model) = (StoreState::new(budget.clone()), Model::default());
        for (client, step) in steps {
            let mut replies = Replies::new();
            model.replies.clear();
            let stays = match step {
                Step::Leave => false,
                Step::Ask(request) => {
                    let fits = model.handle(client, request.clone());
                    let listed = request == StoreRequest::ListKeys;
                    prop_assert_eq!(store.handle(client, request, &mut replies), if fits { Ok(()) } else { Err(StoreError::NotANumber) });
                    let sort = |mut sent: BTreeMap<ConnectionId, Bytes>| {
                        // Keys are listed in no order.
                        if listed {
                            sent.values_mut().for_each(|bytes| bytes.sort_unstable());
                        }
                        sent
                    };
                    let said = sort(by_client(replies.iter().map(|(client, piece)| (*client, piece.bytes()))));
                    let meant = sort(by_client(model.replies.iter().map(|(client, bytes)| (*client, &bytes[..]))));
                    prop_assert_eq!(said, meant);
                    fits
                }
            };
            if !stays {
                store.forget(client);
                model.waits.retain(|(other, _)| *other != client);
            }
        }
        store.clear();
        prop_assert_eq!(budget.used(), 0);
    }

    #[test]
    fn the_store_holds_no_more_than_it_may(steps in vec((0..4 as ConnectionId, frames::requests()), 0..200)) {
        let budget = MemoryBudget::new(2000);
        let mut store = StoreState::new(budget.clone());
        for (client, request) in steps {
            if store.handle(client, request, &mut Replies::new()).is_err() {
                store.forget(client);
            }
            prop_assert!(budget.used() <= 2000);
        }
        store.clear();
        prop_assert_eq!(budget.used(), 0);
    }
}

#[test]
fn a_large_value_is_sent_to_many_without_a_copy() {
    let budget = MemoryBudget::new(4 << 20);
    let mut store = StoreState::new(budget.clone());
    let mut replies = Replies::new();
    store.handle(0, StoreRequest::Set { key: b"k".to_vec(), value: vec![1; 3 << 20] }, &mut replies).unwrap();
    for client in 0..1000 {
        store.handle(client, StoreRequest::Get(b"k".to_vec()), &mut replies).unwrap();
    }
    store.handle(0, StoreRequest::Delete(b"k".to_vec()), &mut replies).unwrap();
    let sent: usize = replies.iter().map(|(_, piece)| piece.bytes().len()).sum();
    assert_eq!(sent, 1000 * (8 + (3 << 20)) + 8);
    assert!(budget.used() > 3 << 20, "what waits to be sent counts");
    drop(replies);
    assert_eq!(budget.used(), 0);
}

#[test]
fn one_request_for_a_value_many_times_is_not_answered_with_more_than_there_is_room_for() {
    let mut store = StoreState::new(MemoryBudget::new(1 << 20));
    let mut replies = Replies::new();
    store.handle(1, StoreRequest::Set { key: b"k".to_vec(), value: vec![7; 512] }, &mut replies).unwrap();
    let ask = |times: usize| StoreRequest::MultiGet(vec![b"k".to_vec(); times]);
    assert_eq!(store.handle(1, ask(1 << 17), &mut replies), Err(StoreError::Full(BudgetExceeded)));
    assert!(replies.is_empty());
    store.handle(1, ask(1 << 10), &mut replies).unwrap();
    let sent: usize = replies.iter().map(|(_, piece)| piece.bytes().len()).sum();
    assert_eq!(sent, (8 + 512) << 10);
}
