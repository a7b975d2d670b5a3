//! The wire format of torch's TCPStore: parsing and encoding of requests. Integers are little-endian; a key or a value is a u64 length
//! and its bytes; there are no tags, so replies come in the order of requests.
//!
//! No memory is allocated for a declared length before its bytes have arrived.

use crate::net::server::OVERHEAD;

/// The greeting of clients since torch 2.2, after a byte 0.
pub const MAGIC: u32 = 0x3C85_F7CE;
/// The longest key, bytes (torch's own limits, all three).
pub const MAX_KEY: usize = 8 * 1024;
/// The longest value of one request, bytes.
pub const MAX_VALUE: usize = 8 * 1024 * 1024;
/// The most keys of one request.
pub const MAX_KEYS: u64 = 128 * 1024;

/// A request.
#[derive(Clone, PartialEq, Eq, Debug)]
#[expect(missing_docs, reason = "the fields are named after what they are")]
pub enum StoreRequest {
    /// Sets a key. No reply.
    Set { key: Vec<u8>, value: Vec<u8> },
    /// Sets a key if it has the expected value, or is missing and nothing was expected. Reply: its value then.
    CompareSet { key: Vec<u8>, expected: Vec<u8>, desired: Vec<u8> },
    /// Reply: the value, empty for a missing key.
    Get(Vec<u8>),
    /// Adds to the decimal number at a key. Reply: the sum.
    Add { key: Vec<u8>, amount: i64 },
    /// Reply: 0 if all keys exist, else 1.
    Check(Vec<Vec<u8>>),
    /// Reply: 0, once all keys exist.
    Wait(Vec<Vec<u8>>),
    /// Reply: the number of keys, without queues.
    CountKeys,
    /// Deletes a key. Reply: how many were deleted.
    Delete(Vec<u8>),
    /// Appends to a value. No reply.
    Append { key: Vec<u8>, value: Vec<u8> },
    /// Reply: several values.
    MultiGet(Vec<Vec<u8>>),
    /// Sets several keys, in order. No reply.
    MultiSet(Vec<(Vec<u8>, Vec<u8>)>),
    /// Cancels the wait. Reply: 1.
    CancelWait,
    /// Reply: the same number.
    Ping(u32),
    /// Adds a value to the end of a queue. No reply.
    QueuePush { key: Vec<u8>, value: Vec<u8> },
    /// Removes the first value of a queue. Reply: the length before, and the value if there is one.
    QueuePop(Vec<u8>),
    /// Reply: the length of a queue.
    QueueLength(Vec<u8>),
    /// Reply: all keys, without queues.
    ListKeys,
    /// Adds 1 at a key. Reply: 0, once the sum is `world`.
    Barrier { key: Vec<u8>, world: i64 },
}

/// Why a connection is closed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ProtocolError {
    /// There is no such opcode.
    #[error("no operation has opcode {0}")]
    Opcode(u8),
    /// A key or a value is longer than allowed, or there are too many.
    #[error("a length of {0} is above the limit")]
    TooLong(u64),
}

/// A part of a request.
#[derive(Clone, Copy)]
enum RequestPart {
    Key,
    Value,
    Number,
    Nonce,
}

use RequestPart::{Key, Nonce, Number, Value};

/// The parts that follow an opcode, and whether a count of them comes first.
fn shape(opcode: u8) -> Option<(&'static [RequestPart], bool)> {
    Some(match opcode {
        1 | 9 | 14 => (&[Key, Value], false),
        2 => (&[Key, Value, Value], false),
        3 | 8 | 15 | 16 => (&[Key], false),
        4 | 18 => (&[Key, Number], false),
        5 | 6 | 10 => (&[Key], true),
        7 | 12 | 17 => (&[], false),
        11 => (&[Key, Value], true),
        13 => (&[Nonce], false),
        _ => return None,
    })
}

/// The last opcode of clients without [`MAGIC`] (torch 2.1), whose opcodes are one less than the current ones.
const LAST_OLD_OPCODE: u8 = 11;

#[derive(Debug, Default)]
enum Field {
    Bytes(Vec<u8>),
    Number(u64),
    #[default]
    Taken,
}

/// A request whose beginning has arrived.
#[derive(Debug)]
struct PartialRequest {
    opcode: u8,
    parts: usize,
    fields: Vec<Field>,
}

/// Parses the requests of one client.
#[derive(Debug, Default)]
pub struct RequestParser {
    bytes: Vec<u8>,
    /// Bytes that are parsed.
    start: usize,
    /// What is added to an opcode to get the current one; `None` until that is known.
    shift: Option<u8>,
    partial: Option<PartialRequest>,
    fields_cost: usize,
}

impl RequestParser {
    /// Takes received bytes.
    pub fn feed(&mut self, bytes: &[u8]) {
        if self.bytes.capacity() - self.bytes.len() < bytes.len() {
            // Not doubled, as usual: many clients may send large values at once.
            self.bytes.reserve_exact(bytes.len().max(self.bytes.len() / 4));
        }
        self.bytes.extend_from_slice(bytes);
    }

    /// Memory it holds, in bytes, roughly.
    pub fn held(&self) -> usize {
        self.bytes.capacity() + self.fields_cost
    }

    /// The next request; `None` until it has arrived completely. After an error the parser cannot be used any more.
    pub fn next_request(&mut self) -> Result<Option<StoreRequest>, ProtocolError> {
        let result = self.parse();
        if !matches!(result, Ok(Some(_))) {
            self.bytes.drain(..self.start);
            self.start = 0;
            // A large value leaves a large buffer.
            self.bytes.shrink_to(4 * self.bytes.len().max(1024));
        }
        result
    }

    fn parse(&mut self) -> Result<Option<StoreRequest>, ProtocolError> {
        let Some(shift) = self.read_greeting() else { return Ok(None) };
        if self.partial.is_none() {
            let Some(&[opcode]) = self.peek() else { return Ok(None) };
            if shift > 0 && opcode > LAST_OLD_OPCODE {
                return Err(ProtocolError::Opcode(opcode));
            }
            let today = opcode.wrapping_add(shift);
            let (parts, counted) = shape(today).ok_or(ProtocolError::Opcode(opcode))?;
            let times = match (counted, self.peek::<9>()) {
                (false, _) => 1,
                (true, None) => return Ok(None),
                (true, Some(&[_, ref count @ ..])) => u64::from_le_bytes(*count),
            };
            if times > MAX_KEYS {
                return Err(ProtocolError::TooLong(times));
            }
            self.start += if counted { 9 } else { 1 };
            self.partial =
                Some(PartialRequest { opcode: today, parts: times as usize * parts.len(), fields: Vec::new() });
        }
        let Some(mut partial) = self.partial.take() else { return Ok(None) };
        let kinds = shape(partial.opcode).map_or(&[][..], |(parts, _)| parts);
        while partial.fields.len() < partial.parts {
            let kind = kinds[partial.fields.len() % kinds.len()];
            let Some(field) = self.read_field(kind)? else {
                self.partial = Some(partial);
                return Ok(None);
            };
            partial.fields.push(field);
        }
        self.fields_cost = 0;
        Ok(build_request(partial))
    }

    /// Reads the greeting, and returns the difference between current opcodes and the client's. A current client sends 0 and the
    /// magic number; after a 0 of an older one the length of a key follows, which is never that long.
    fn read_greeting(&mut self) -> Option<u8> {
        if self.shift.is_none() {
            let [first] = *self.peek()?;
            self.shift = Some(1);
            if first == 0 {
                self.shift = None;
                let [_, magic @ ..] = *self.peek::<5>()?;
                let today = u32::from_le_bytes(magic) == MAGIC;
                self.start += if today { 5 } else { 0 };
                self.shift = Some(u8::from(!today));
            }
        }
        self.shift
    }

    /// The next bytes, if they have arrived.
    fn peek<const N: usize>(&self) -> Option<&[u8; N]> {
        self.bytes.get(self.start..)?.first_chunk()
    }

    fn read_field(&mut self, part: RequestPart) -> Result<Option<Field>, ProtocolError> {
        let limit = match part {
            Number => {
                let Some(number) = self.peek().copied() else { return Ok(None) };
                self.start += 8;
                return Ok(Some(Field::Number(u64::from_le_bytes(number))));
            }
            Nonce => {
                let Some(number) = self.peek().copied() else { return Ok(None) };
                self.start += 4;
                return Ok(Some(Field::Number(u32::from_le_bytes(number).into())));
            }
            Key => MAX_KEY,
            Value => MAX_VALUE,
        };
        let Some(length) = self.peek().copied().map(u64::from_le_bytes) else { return Ok(None) };
        if length > limit as u64 {
            return Err(ProtocolError::TooLong(length));
        }
        let begin = self.start + 8;
        let end = begin + length as usize;
        let Some(bytes) = self.bytes.get(begin..end).map(<[u8]>::to_vec) else { return Ok(None) };
        self.start = end;
        self.fields_cost += bytes.len() + OVERHEAD;
        Ok(Some(Field::Bytes(bytes)))
    }
}

/// Makes a request of its fields. Never `None` for opcodes that [`shape`] allows.
fn build_request(partial: PartialRequest) -> Option<StoreRequest> {
    let mut fields = partial.fields;
    let mut bytes = |i: usize| match fields.get_mut(i).map(std::mem::take) {
        Some(Field::Bytes(bytes)) => bytes,
        _ => Vec::new(),
    };
    Some(match partial.opcode {
        1 => StoreRequest::Set { key: bytes(0), value: bytes(1) },
        2 => StoreRequest::CompareSet { key: bytes(0), expected: bytes(1), desired: bytes(2) },
        3 => StoreRequest::Get(bytes(0)),
        4 => StoreRequest::Add { key: bytes(0), amount: number(&fields, 1) },
        5 => StoreRequest::Check((0..partial.parts).map(bytes).collect()),
        6 => StoreRequest::Wait((0..partial.parts).map(bytes).collect()),
        7 => StoreRequest::CountKeys,
        8 => StoreRequest::Delete(bytes(0)),
        9 => StoreRequest::Append { key: bytes(0), value: bytes(1) },
        10 => StoreRequest::MultiGet((0..partial.parts).map(bytes).collect()),
        11 => StoreRequest::MultiSet((0..partial.parts / 2).map(|i| (bytes(2 * i), bytes(2 * i + 1))).collect()),
        12 => StoreRequest::CancelWait,
        13 => StoreRequest::Ping(number(&fields, 0) as u32),
        14 => StoreRequest::QueuePush { key: bytes(0), value: bytes(1) },
        15 => StoreRequest::QueuePop(bytes(0)),
        16 => StoreRequest::QueueLength(bytes(0)),
        17 => StoreRequest::ListKeys,
        18 => StoreRequest::Barrier { key: bytes(0), world: number(&fields, 1) },
        _ => return None,
    })
}

fn number(fields: &[Field], i: usize) -> i64 {
    match fields.get(i) {
        Some(Field::Number(number)) => *number as i64,
        _ => 0,
    }
}

/// The greeting of a current client.
pub fn greeting() -> Vec<u8> {
    [&[0], &MAGIC.to_le_bytes()[..]].concat()
}

impl StoreRequest {
    /// Encodes the request as a current client does.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![self.opcode()];
        let put = |out: &mut Vec<u8>, bytes: &[u8]| {
            out.extend_from_slice(&(bytes.len() as u64).to_le_bytes());
            out.extend_from_slice(bytes);
        };
        match self {
            Self::CountKeys | Self::CancelWait | Self::ListKeys => {}
            Self::Get(key) | Self::Delete(key) | Self::QueuePop(key) | Self::QueueLength(key) => put(&mut out, key),
            Self::Set { key, value } | Self::Append { key, value } | Self::QueuePush { key, value } => {
                put(&mut out, key);
                put(&mut out, value);
            }
            Self::CompareSet { key, expected, desired } => {
                [key, expected, desired].into_iter().for_each(|bytes| put(&mut out, bytes));
            }
            Self::Add { key, amount: number } | Self::Barrier { key, world: number } => {
                put(&mut out, key);
                out.extend_from_slice(&number.to_le_bytes());
            }
            Self::Check(keys) | Self::Wait(keys) | Self::MultiGet(keys) => {
                out.extend_from_slice(&(keys.len() as u64).to_le_bytes());
                keys.iter().for_each(|key| put(&mut out, key));
            }
            Self::MultiSet(pairs) => {
                out.extend_from_slice(&(pairs.len() as u64).to_le_bytes());
                for (key, value) in pairs {
                    put(&mut out, key);
                    put(&mut out, value);
                }
            }
            Self::Ping(nonce) => out.extend_from_slice(&nonce.to_le_bytes()),
        }
        out
    }

    fn opcode(&self) -> u8 {
        match self {
            Self::Set { .. } => 1,
            Self::CompareSet { .. } => 2,
            Self::Get(_) => 3,
            Self::Add { .. } => 4,
            Self::Check(_) => 5,
            Self::Wait(_) => 6,
            Self::CountKeys => 7,
            Self::Delete(_) => 8,
            Self::Append { .. } => 9,
            Self::MultiGet(_) => 10,
            Self::MultiSet(_) => 11,
            Self::CancelWait => 12,
            Self::Ping(_) => 13,
            Self::QueuePush { .. } => 14,
            Self::QueuePop(_) => 15,
            Self::QueueLength(_) => 16,
            Self::ListKeys => 17,
            Self::Barrier { .. } => 18,
        }
    }
}
