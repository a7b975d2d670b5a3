//! Requests to torch's TCPStore: the same requests however they are cut, encoded as they were read, in bounded memory.
#![no_main]

use libfuzzer_sys::fuzz_target;
use rlaunch::rendezvous::torch_store::frame::{ProtocolError, RequestParser, StoreRequest, greeting};
use rlaunch_fuzz::{PIECE, cut, messages, repeated};

fn read(bytes: &[u8], step: usize) -> (Vec<StoreRequest>, Option<ProtocolError>) {
    let (mut parser, mut received) = (RequestParser::default(), 0);
    messages(bytes, step, |piece, take| {
        received += piece.len();
        parser.feed(piece);
        while let Some(result) = parser.next_request().transpose() {
            if !take(result) {
                return;
            }
        }
        // Each key costs 8 bytes at least, and some 100 in the tables.
        assert!(parser.held() <= 20 * received + 8 * 1024, "{} for {received}", parser.held());
    })
}

fuzz_target!(|data: &[u8]| {
    let (step, bytes) = cut(data);
    let (whole, failed) = read(bytes, bytes.len().max(1));
    assert_eq!(read(bytes, step), (whole.clone(), failed));
    if let Some(long) = repeated(bytes) {
        read(&long, PIECE);
    }
    let encoded: Vec<u8> = greeting().into_iter().chain(whole.iter().flat_map(StoreRequest::encode)).collect();
    assert_eq!(read(&encoded, step), (whole, None));
});
