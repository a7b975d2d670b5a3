//! Any bytes, cut into any pieces, are parsed the same way, and take no more memory than has come.

use proptest::collection::vec;
use proptest::prelude::*;
use rlaunch::rendezvous::torch_store::frame::{
    MAX_KEY, MAX_KEYS, MAX_VALUE, ProtocolError, RequestParser, StoreRequest, greeting,
};

fn bytes() -> impl Strategy<Value = Vec<u8>> {
    vec(any::<u8>(), 0..12)
}

pub fn requests() -> impl Strategy<Value = StoreRequest> {
    prop_oneof![
        (bytes(), bytes()).prop_map(|(key, value)| StoreRequest::Set { key, value }),
        (bytes(), bytes(), bytes()).prop_map(|(key, expected, desired)| StoreRequest::CompareSet {
            key,
            expected,
            desired
        }),
        bytes().prop_map(StoreRequest::Get),
        (bytes(), any::<i64>()).prop_map(|(key, amount)| StoreRequest::Add { key, amount }),
        vec(bytes(), 0..4).prop_map(StoreRequest::Check),
        vec(bytes(), 0..4).prop_map(StoreRequest::Wait),
        Just(StoreRequest::CountKeys),
        bytes().prop_map(StoreRequest::Delete),
        (bytes(), bytes()).prop_map(|(key, value)| StoreRequest::Append { key, value }),
        vec(bytes(), 0..4).prop_map(StoreRequest::MultiGet),
        vec((bytes(), bytes()), 0..4).prop_map(StoreRequest::MultiSet),
        Just(StoreRequest::CancelWait),
        any::<u32>().prop_map(StoreRequest::Ping),
        (bytes(), bytes()).prop_map(|(key, value)| StoreRequest::QueuePush { key, value }),
        bytes().prop_map(StoreRequest::QueuePop),
        bytes().prop_map(StoreRequest::QueueLength),
        Just(StoreRequest::ListKeys),
        (bytes(), any::<i64>()).prop_map(|(key, world)| StoreRequest::Barrier { key, world }),
    ]
}

/// The frames of bytes that come in pieces of these lengths, in turn.
fn read(bytes: &[u8], cuts: &[usize]) -> (Vec<StoreRequest>, Option<ProtocolError>) {
    let (mut parser, mut found, mut rest) = (RequestParser::default(), Vec::new(), bytes);
    for cut in cuts.iter().copied().chain([usize::MAX]).cycle() {
        let (piece, later) = rest.split_at(cut.min(rest.len()));
        parser.feed(piece);
        loop {
            match parser.next_request() {
                Ok(Some(request)) => found.push(request),
                Ok(None) => break,
                Err(broken) => return (found, Some(broken)),
            }
        }
        // A field costs what it is and a little more; the shortest is 8 bytes on the wire, of 4 an end.
        assert!(parser.held() <= 14 * bytes.len() + 8192, "{} bytes for {}", parser.held(), bytes.len());
        rest = later;
        if rest.is_empty() {
            return (found, None);
        }
    }
    unreachable!("the last piece is all that is left");
}

/// The beginnings of real requests, and noise.
fn noise() -> impl Strategy<Value = Vec<u8>> {
    let opcode = (0..20_u8).prop_map(|opcode| vec![opcode]);
    let length = prop_oneof![0..20_u64, any::<u64>(), Just(MAX_KEYS), Just(MAX_VALUE as u64)];
    let length = length.prop_map(|length| length.to_le_bytes().to_vec());
    vec(prop_oneof![opcode, length, vec(any::<u8>(), 0..20)], 0..40).prop_map(|parts| parts.concat())
}

proptest! {
    #[test]
    fn sent_frames_are_parsed(sent in vec(requests(), 0..12), cuts in vec(1..40_usize, 0..20)) {
        let wire = sent.iter().fold(greeting(), |wire, request| [wire, request.encode()].concat());
        prop_assert_eq!(read(&wire, &cuts), (sent, None));
    }

    #[test]
    fn noise_is_read_the_same_however_it_is_cut(
        greets in any::<bool>(), noise in noise(), cuts in vec(1..40_usize, 0..20)
    ) {
        let wire = if greets { [greeting(), noise].concat() } else { noise };
        prop_assert_eq!(read(&wire, &cuts), read(&wire, &[]));
    }
}

fn refused(request: &[u8]) -> Option<ProtocolError> {
    let (found, broken) = read(&[greeting(), request.to_vec()].concat(), &[]);
    assert_eq!(found, []);
    broken
}

#[test]
fn limits_are_torchs_own() {
    let with = |opcode: u8, parts: &[u64]| {
        parts.iter().fold(vec![opcode], |wire, part| [wire, part.to_le_bytes().to_vec()].concat())
    };
    let (key, value) = (MAX_KEY as u64, MAX_VALUE as u64);
    assert_eq!(refused(&with(3, &[key])), None);
    assert_eq!(refused(&with(3, &[key + 1])), Some(ProtocolError::TooLong(key + 1)));
    assert_eq!(refused(&with(1, &[0, value])), None);
    assert_eq!(refused(&with(1, &[0, value + 1])), Some(ProtocolError::TooLong(value + 1)));
    for opcode in [5, 6, 10, 11] {
        assert_eq!(refused(&with(opcode, &[MAX_KEYS])), None);
        assert_eq!(refused(&with(opcode, &[MAX_KEYS + 1])), Some(ProtocolError::TooLong(MAX_KEYS + 1)));
        assert_eq!(refused(&with(opcode, &[u64::MAX])), Some(ProtocolError::TooLong(u64::MAX)));
    }
    for opcode in [0, 19, 255] {
        assert_eq!(refused(&[opcode]), Some(ProtocolError::Opcode(opcode)));
    }
}

#[test]
fn a_client_that_does_not_greet_counts_its_opcodes_from_set() {
    let set = StoreRequest::Set { key: b"k".to_vec(), value: b"v".to_vec() };
    let sent = [set, StoreRequest::Get(b"k".to_vec()), StoreRequest::CancelWait];
    let wire: Vec<u8> = sent
        .iter()
        .flat_map(|request| {
            let mut wire = request.encode();
            wire[0] -= 1;
            wire
        })
        .collect();
    assert_eq!(read(&wire, &[1]), (sent.to_vec(), None));
    assert_eq!(read(b"GET / HTTP/1.1\r\n", &[]), (vec![], Some(ProtocolError::Opcode(b'G'))));
    assert_eq!(read(&[12], &[]), (vec![], Some(ProtocolError::Opcode(12))));
}
