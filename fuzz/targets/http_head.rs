//! HTTP requests and responses: the same messages however they are cut, printed as they were read, in bounded memory.
#![no_main]

use libfuzzer_sys::fuzz_target;
use rlaunch::rendezvous::master::http::{self, HttpError, HttpMessage, HttpParser};
use rlaunch_fuzz::{PIECE, cut, messages, repeated};

fn read(bytes: &[u8], step: usize, mut parser: HttpParser) -> (Vec<HttpMessage>, Option<HttpError>) {
    let mut received = 0;
    messages(bytes, step, |piece, take| {
        received += piece.len();
        parser.feed(piece);
        while let Some(result) = parser.next_message().transpose() {
            if !take(result) {
                return;
            }
        }
        assert!(parser.held() <= 2 * received + 2 * http::MAX_HEAD, "{} for {received}", parser.held());
    })
}

fuzz_target!(|data: &[u8]| {
    let (step, bytes) = cut(data);
    for new in [HttpParser::of_requests, HttpParser::of_responses] {
        let (whole, failed) = read(bytes, bytes.len().max(1), new());
        // A long head is noticed earlier if its end has not arrived.
        if failed.is_none() {
            assert_eq!(read(bytes, step, new()), (whole.clone(), None));
        }
        for message in whole {
            let _ = (message.keeps_alive(), message.upgrades_to("rlaunch"), message.status());
            let own = |name: &str| name != "content-length";
            let headers = message.headers.iter().filter(|(name, _)| own(name));
            let headers: String = headers.map(|(name, value)| format!("{name}: {value}\r\n")).collect();
            let length = format!("content-length: {}\r\n\r\n", message.body.len());
            let printed = [message.first.join(" ").as_bytes(), b"\r\n", headers.as_bytes(), length.as_bytes()].concat();
            let (again, failed) = read(&[&printed, &message.body[..]].concat(), step, new());
            let [again] = &again[..] else { panic!("{message:?} became {again:?} ({failed:?})") };
            let others = |message: &HttpMessage| {
                message.headers.iter().filter(|(name, _)| own(name)).cloned().collect::<Vec<_>>()
            };
            assert_eq!((&again.first, &again.body, others(again)), (&message.first, &message.body, others(&message)));
        }
    }
    if let Some(long) = repeated(bytes) {
        read(&long, PIECE, HttpParser::of_requests());
        read(&long, PIECE, HttpParser::of_responses());
    }
    let path = String::from_utf8_lossy(bytes);
    assert_eq!(http::decode(&http::encode(&path)), path);
    assert!(http::decode(&path).len() <= 3 * path.len());
});
