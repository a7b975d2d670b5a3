//! Lines of a link between a node and the embedded master: the same messages however they are cut, and again after an encoding.
#![no_main]

use libfuzzer_sys::fuzz_target;
use rlaunch::rendezvous::master::auth::{LinkAuth, LinkSide};
use rlaunch::rendezvous::master::frame::{FrameError, FrameReader, FromMaster, FromNode, SharedBody};
use rlaunch_fuzz::{PIECE, cut, messages, repeated};
use std::fmt::Debug;

/// Reads what the node, or with a key its master, receives.
fn read<M>(bytes: &[u8], step: usize, key: Option<&str>) -> (Vec<M>, Option<FrameError>)
where
    for<'a> M: serde::Deserialize<'a>,
{
    let (mut reader, mut auth) = (FrameReader::default(), LinkAuth::new(key, "n", "m", LinkSide::Master));
    messages(bytes, step, |piece, take| {
        reader.feed(piece);
        while let Some(result) = reader.next_message(&mut auth).transpose() {
            if !take(result) {
                return;
            }
        }
        assert!(reader.held() <= 2 * bytes.len() + 8 * 1024);
    })
}

fn check<M>(bytes: &[u8], step: usize)
where
    M: Clone + Debug + PartialEq + serde::Serialize,
    for<'a> M: serde::Deserialize<'a>,
{
    let (whole, failed) = read::<M>(bytes, bytes.len().max(1), None);
    assert_eq!(read::<M>(bytes, step, None), (whole.clone(), failed));
    let mut auth = LinkAuth::new(Some("key"), "n", "m", LinkSide::Node);
    let signed: Vec<u8> = whole.iter().flat_map(|message| SharedBody::of(message).line(&mut auth)).collect();
    assert_eq!(read::<M>(&signed, step, Some("key")), (whole, None));
}

fuzz_target!(|data: &[u8]| {
    let (step, bytes) = cut(data);
    check::<FromNode>(bytes, step);
    check::<FromMaster>(bytes, step);
    if let Some(long) = repeated(bytes) {
        read::<FromNode>(&long, PIECE, None);
        read::<FromMaster>(&long, PIECE, None);
    }
    // Without the key, nothing is a message.
    assert!(read::<FromNode>(bytes, step, Some("another")).0.is_empty());
});
