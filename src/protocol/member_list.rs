//! The list of a round's members as text: JSON, compressed. Every node reads the whole list, because frameworks want the endpoints of
//! all ranks, so its length decides what a round costs (docs/agents.md).

use crate::protocol::state::RoundMember;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use flate2::{Compress, Compression, Decompress, FlushCompress, FlushDecompress, Status};

/// The longest list, bytes of JSON.
const MAX_JSON: usize = 128 << 20;
/// By how much the output grows at a time, bytes.
const STEP: usize = 64 << 10;

/// Encodes a list.
pub fn encode(members: &[RoundMember]) -> String {
    let mut members = members.to_vec();
    members.iter_mut().for_each(|member| member.info.endpoints = joined(&member.info.endpoints));
    // It does not fail: a list has no maps with other keys than text.
    let json = serde_json::to_vec(&members).unwrap_or_default();
    STANDARD_NO_PAD.encode(compress(&json))
}

/// The members of an encoded list; `None`: it is none.
pub fn read(text: &str) -> Option<Vec<RoundMember>> {
    let mut members: Vec<RoundMember> = serde_json::from_str(&decode(text)?).ok()?;
    // Each port repeats its host.
    let length = members.iter().map(|member| split_length(&member.info.endpoints)).fold(0, usize::saturating_add);
    if length > MAX_JSON {
        return None;
    }
    members.iter_mut().for_each(|member| member.info.endpoints = split(&member.info.endpoints));
    Some(members)
}

/// Endpoints of one host as one text: `10.0.0.1:6070,6071`. Others stay as they are.
fn joined(endpoints: &[String]) -> Vec<String> {
    let parts: Option<Vec<(&str, &str)>> = endpoints.iter().map(|endpoint| endpoint.rsplit_once(':')).collect();
    match parts.as_deref() {
        Some([(host, _), _, ..]) if parts.iter().flatten().all(|(other, _)| other == host) => {
            let ports: Vec<&str> = parts.iter().flatten().map(|(_, port)| *port).collect();
            vec![format!("{host}:{}", ports.join(","))]
        }
        _ => endpoints.to_vec(),
    }
}

/// The length of what `split` makes of these, in bytes.
fn split_length(endpoints: &[String]) -> usize {
    match endpoints {
        [one] => {
            one.rsplit_once(':').map_or(0, |(host, ports)| (host.len() + 7).saturating_mul(ports.split(',').count()))
        }
        _ => 0,
    }
}

fn split(endpoints: &[String]) -> Vec<String> {
    match endpoints {
        [one] => match one.rsplit_once(':') {
            Some((host, ports)) => ports.split(',').map(|port| format!("{host}:{port}")).collect(),
            None => endpoints.to_vec(),
        },
        _ => endpoints.to_vec(),
    }
}

/// The JSON of an encoded list; `None`: it is none, or is too long.
fn decode(text: &str) -> Option<String> {
    let compressed = STANDARD_NO_PAD.decode(text).ok()?;
    String::from_utf8(decompress(&compressed)?).ok()
}

fn compress(bytes: &[u8]) -> Vec<u8> {
    let (mut encoder, mut output) = (Compress::new(Compression::default(), false), Vec::new());
    loop {
        output.reserve(STEP);
        let rest = bytes.get(encoder.total_in() as usize..).unwrap_or_default();
        match encoder.compress_vec(rest, &mut output, FlushCompress::Finish) {
            Ok(Status::Ok | Status::BufError) => {}
            // An error says that a call before had finished.
            Ok(Status::StreamEnd) | Err(_) => return output,
        }
    }
}

/// `None`: these are no compressed bytes, or too many.
fn decompress(bytes: &[u8]) -> Option<Vec<u8>> {
    let (mut decoder, mut output) = (Decompress::new(false), Vec::new());
    while output.len() <= MAX_JSON {
        output.reserve(STEP);
        let (read, written) = (decoder.total_in(), decoder.total_out());
        let rest = bytes.get(read as usize..)?;
        match decoder.decompress_vec(rest, &mut output, FlushDecompress::None).ok()? {
            Status::StreamEnd => return (output.len() <= MAX_JSON).then_some(output),
            // The rest is missing.
            _ if (decoder.total_in(), decoder.total_out()) == (read, written) => return None,
            Status::Ok | Status::BufError => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::record::NodeInfo;

    fn members(nodes: usize, ranks: usize) -> Vec<RoundMember> {
        let mut random = fastrand::Rng::with_seed(1);
        let mut member = |number: usize| {
            let id = std::iter::repeat_with(|| random.alphanumeric()).take(16).collect();
            let address = format!("10.{}.{}.{}", number >> 16, number >> 8 & 255, number & 255);
            let endpoints = (0..ranks).map(|_| format!("{address}:{}", random.u16(32768..61000))).collect();
            let info = NodeInfo { host: format!("node-{number}"), address, ranks, endpoints, ..NodeInfo::default() };
            RoundMember { id, info }
        };
        (0..nodes).map(&mut member).collect()
    }

    #[test]
    fn a_list_that_would_fill_the_memory_is_none() {
        for (ports, fits) in [(2 << 10, true), ((2 << 10) + 1, false), (64 << 10, false)] {
            let endpoint = format!("{}:{}", "h".repeat((64 << 10) - 7), ",".repeat(ports - 1));
            let members = [("a", NodeInfo { endpoints: vec![endpoint], ..NodeInfo::default() })];
            let list = RoundMember::list(members.iter().map(|(id, info)| (*id, info)));
            assert_eq!(read(&encode(&list)).is_some(), fits, "{ports} ports");
        }
    }

    #[test]
    fn a_list_is_read_as_it_was_written() {
        for nodes in [0, 1, 1000] {
            let list = members(nodes, 8);
            assert_eq!(read(&encode(&list)), Some(list));
        }
    }

    #[test]
    fn endpoints_of_one_host_are_one_text_and_others_stay() {
        for (endpoints, text) in [
            (vec!["10.0.0.1:1", "10.0.0.1:2"], vec!["10.0.0.1:1,2"]),
            (vec!["[fd77::1]:1", "[fd77::1]:2"], vec!["[fd77::1]:1,2"]),
            (vec!["a:1"], vec!["a:1"]),
            (vec!["a:1", "b:2"], vec!["a:1", "b:2"]),
            (vec!["none", "none"], vec!["none", "none"]),
            (vec![], vec![]),
        ] {
            let endpoints: Vec<String> = endpoints.into_iter().map(str::to_owned).collect();
            assert_eq!(joined(&endpoints), text);
            assert_eq!(split(&joined(&endpoints)), endpoints);
            let (length, one) = (endpoints.concat().len(), joined(&endpoints));
            let is_bound = split_length(&one) >= length && split_length(&one) <= length + 5 * endpoints.len();
            assert!(is_bound || one.len() != 1, "{one:?}: {}", split_length(&one));
        }
    }

    #[test]
    fn a_node_adds_less_than_75_bytes_to_the_list() {
        let list = encode(&members(1000, 8));
        assert!(list.len() < 75_000, "{}", list.len());
    }

    #[test]
    fn what_is_no_list_or_grows_too_long_is_none() {
        let bomb = STANDARD_NO_PAD.encode(compress(&vec![b' '; MAX_JSON + STEP]));
        assert!(bomb.len() < 1 << 20);
        for text in ["", "[]", "!", "AAAA", &bomb, &encode(&members(9, 8))[..40]] {
            assert!(decode(text).is_none(), "{text:.40}");
        }
    }
}
