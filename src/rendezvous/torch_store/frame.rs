//! The wire format of torch's TCPStore, from bytes to requests and back. Integers are little-endian; a key
//! or a value is a u64 length and its bytes; there are no tags, so replies come in the order of requests.
//!
//! Nothing is allocated for a length before its bytes have come.

use super::ledger::OVERHEAD;

/// What a client says first since torch 2.2, behind a byte 0.
pub const MAGIC: u32 = 0x3C85_F7CE;
/// The longest key, bytes (torch's own limits, all three).
pub const MAX_KEY: usize = 8 * 1024;
/// The longest value of one request, bytes.
pub const MAX_VALUE: usize = 8 * 1024 * 1024;
/// The most keys of one request.
pub const MAX_KEYS: u64 = 128 * 1024;

/// What a client asks for.
#[derive(Clone, PartialEq, Eq, Debug)]
#[expect(missing_docs, reason = "the fields are named after what they are")]
pub enum Request {
    /// Sets a key. No reply.
    Set { key: Vec<u8>, value: Vec<u8> },
    /// Sets a key if it has this value, or is missing and nothing was expected. The value it then has.
    CompareSet { key: Vec<u8>, expected: Vec<u8>, desired: Vec<u8> },
    /// The value, empty for a missing key.
    Get(Vec<u8>),
    /// Adds to the decimal number at a key; the sum.
    Add { key: Vec<u8>, amount: i64 },
    /// Whether all are there: 0, else 1.
    Check(Vec<Vec<u8>>),
    /// 0, once all are there.
    Wait(Vec<Vec<u8>>),
    /// How many keys there are, queues left out.
    CountKeys,
    /// Removes a key; how many were removed.
    Delete(Vec<u8>),
    /// Puts bytes at the end of a value. No reply.
    Append { key: Vec<u8>, value: Vec<u8> },
    /// Several values.
    MultiGet(Vec<Vec<u8>>),
    /// Sets several keys, in order. No reply.
    MultiSet(Vec<(Vec<u8>, Vec<u8>)>),
    /// Waits no more; 1.
    CancelWait,
    /// The number again.
    Ping(u32),
    /// Puts a value at the end of a queue. No reply.
    QueuePush { key: Vec<u8>, value: Vec<u8> },
    /// The length of a queue before, and its first value if there is one.
    QueuePop(Vec<u8>),
    /// The length of a queue.
    QueueLength(Vec<u8>),
    /// The names of all keys, queues left out.
    ListKeys,
    /// Adds 1 at a key; 0, once the sum is `world`.
    Barrier { key: Vec<u8>, world: i64 },
}

/// Why a connection is closed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Broken {
    /// There is no such opcode.
    Opcode(u8),
    /// A key or a value is longer than allowed, or there are too many.
    TooLong(u64),
}

/// A part of a request.
#[derive(Clone, Copy)]
enum Part {
    Key,
    Value,
    Number,
    Nonce,
}

use Part::{Key, Nonce, Number, Value};

/// The parts behind an opcode, and whether a number of how often they come stands before them.
fn shape(opcode: u8) -> Option<(&'static [Part], bool)> {
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

/// The last opcode of clients that say no [`MAGIC`] (torch 2.1), as they count: one less than today.
const LAST_OLD_OPCODE: u8 = 11;

#[derive(Debug, Default)]
enum Field {
    Bytes(Vec<u8>),
    Number(u64),
    #[default]
    Taken,
}

/// A request of which the beginning has come.
#[derive(Debug)]
struct Partial {
    opcode: u8,
    parts: usize,
    fields: Vec<Field>,
}

/// Makes requests of what one client sends.
#[derive(Debug, Default)]
pub struct Parser {
    bytes: Vec<u8>,
    /// How many of the bytes are done with.
    start: usize,
    /// What is added to an opcode to have today's; `None` until the client has said what it is.
    shift: Option<u8>,
    partial: Option<Partial>,
    fields_cost: usize,
}

impl Parser {
    /// Takes what has come.
    pub fn feed(&mut self, bytes: &[u8]) {
        if self.bytes.capacity() - self.bytes.len() < bytes.len() {
            // Not twice as much, as usual: many clients may send large values at once.
            self.bytes.reserve_exact(bytes.len().max(self.bytes.len() / 4));
        }
        self.bytes.extend_from_slice(bytes);
    }

    /// Memory it holds, in bytes, roughly.
    pub fn held(&self) -> usize {
        self.bytes.capacity() + self.fields_cost
    }

    /// The next request; `None` when more has to come. After an error nothing is right any more.
    pub fn next_request(&mut self) -> Result<Option<Request>, Broken> {
        let result = self.parse();
        if !matches!(result, Ok(Some(_))) {
            self.bytes.drain(..self.start);
            self.start = 0;
            // A large value leaves a large buffer.
            self.bytes.shrink_to(4 * self.bytes.len().max(1024));
        }
        result
    }

    fn parse(&mut self) -> Result<Option<Request>, Broken> {
        let Some(shift) = self.greet() else { return Ok(None) };
        if self.partial.is_none() {
            let Some(&[opcode]) = self.ahead() else { return Ok(None) };
            if shift > 0 && opcode > LAST_OLD_OPCODE {
                return Err(Broken::Opcode(opcode));
            }
            let today = opcode.wrapping_add(shift);
            let (parts, counted) = shape(today).ok_or(Broken::Opcode(opcode))?;
            let times = match (counted, self.ahead::<9>()) {
                (false, _) => 1,
                (true, None) => return Ok(None),
                (true, Some(&[_, ref count @ ..])) => u64::from_le_bytes(*count),
            };
            if times > MAX_KEYS {
                return Err(Broken::TooLong(times));
            }
            self.start += if counted { 9 } else { 1 };
            self.partial = Some(Partial { opcode: today, parts: times as usize * parts.len(), fields: Vec::new() });
        }
        let Some(mut partial) = self.partial.take() else { return Ok(None) };
        let kinds = shape(partial.opcode).map_or(&[][..], |(parts, _)| parts);
        while partial.fields.len() < partial.parts {
            let kind = kinds[partial.fields.len() % kinds.len()];
            let Some(field) = self.field(kind)? else {
                self.partial = Some(partial);
                return Ok(None);
            };
            partial.fields.push(field);
        }
        self.fields_cost = 0;
        Ok(request(partial))
    }

    /// What the client's opcodes lack to today's, once that can be told: a client of today says 0 and the
    /// magic number; behind the 0 of an older one the length of a key follows, which is never that long.
    fn greet(&mut self) -> Option<u8> {
        if self.shift.is_none() {
            let [first] = *self.ahead()?;
            self.shift = Some(1);
            if first == 0 {
                self.shift = None;
                let [_, magic @ ..] = *self.ahead::<5>()?;
                let today = u32::from_le_bytes(magic) == MAGIC;
                self.start += if today { 5 } else { 0 };
                self.shift = Some(u8::from(!today));
            }
        }
        self.shift
    }

    /// The next bytes, if they have come.
    fn ahead<const N: usize>(&self) -> Option<&[u8; N]> {
        self.bytes.get(self.start..)?.first_chunk()
    }

    fn field(&mut self, part: Part) -> Result<Option<Field>, Broken> {
        let limit = match part {
            Number => {
                let Some(number) = self.ahead().copied() else { return Ok(None) };
                self.start += 8;
                return Ok(Some(Field::Number(u64::from_le_bytes(number))));
            }
            Nonce => {
                let Some(number) = self.ahead().copied() else { return Ok(None) };
                self.start += 4;
                return Ok(Some(Field::Number(u32::from_le_bytes(number).into())));
            }
            Key => MAX_KEY,
            Value => MAX_VALUE,
        };
        let Some(length) = self.ahead().copied().map(u64::from_le_bytes) else { return Ok(None) };
        if length > limit as u64 {
            return Err(Broken::TooLong(length));
        }
        let begin = self.start + 8;
        let end = begin + length as usize;
        let Some(bytes) = self.bytes.get(begin..end).map(<[u8]>::to_vec) else { return Ok(None) };
        self.start = end;
        self.fields_cost += bytes.len() + OVERHEAD;
        Ok(Some(Field::Bytes(bytes)))
    }
}

/// A request that is there whole. `None` never comes of what [`shape`] allows.
fn request(partial: Partial) -> Option<Request> {
    let mut fields = partial.fields;
    let mut bytes = |i: usize| match fields.get_mut(i).map(std::mem::take) {
        Some(Field::Bytes(bytes)) => bytes,
        _ => Vec::new(),
    };
    Some(match partial.opcode {
        1 => Request::Set { key: bytes(0), value: bytes(1) },
        2 => Request::CompareSet { key: bytes(0), expected: bytes(1), desired: bytes(2) },
        3 => Request::Get(bytes(0)),
        4 => Request::Add { key: bytes(0), amount: number(&fields, 1) },
        5 => Request::Check((0..partial.parts).map(bytes).collect()),
        6 => Request::Wait((0..partial.parts).map(bytes).collect()),
        7 => Request::CountKeys,
        8 => Request::Delete(bytes(0)),
        9 => Request::Append { key: bytes(0), value: bytes(1) },
        10 => Request::MultiGet((0..partial.parts).map(bytes).collect()),
        11 => Request::MultiSet((0..partial.parts / 2).map(|i| (bytes(2 * i), bytes(2 * i + 1))).collect()),
        12 => Request::CancelWait,
        13 => Request::Ping(number(&fields, 0) as u32),
        14 => Request::QueuePush { key: bytes(0), value: bytes(1) },
        15 => Request::QueuePop(bytes(0)),
        16 => Request::QueueLength(bytes(0)),
        17 => Request::ListKeys,
        18 => Request::Barrier { key: bytes(0), world: number(&fields, 1) },
        _ => return None,
    })
}

fn number(fields: &[Field], i: usize) -> i64 {
    match fields.get(i) {
        Some(Field::Number(number)) => *number as i64,
        _ => 0,
    }
}

/// What a client says first.
pub fn greeting() -> Vec<u8> {
    [&[0], &MAGIC.to_le_bytes()[..]].concat()
}

impl Request {
    /// As a client of today sends it.
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
