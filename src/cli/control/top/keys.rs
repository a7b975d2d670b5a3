//! Keys, from the bytes that a terminal sends for them (XTerm's control sequences, ctlseqs; VT220's editing keys).

const ESC: u8 = 0x1b;
/// No sequence of a key is longer.
const LONGEST: usize = 32;

/// A key that means something here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Key {
    /// A printable ASCII character, or a control character.
    Char(char),
    Up,
    Down,
    PageUp,
    PageDown,
    Home,
    End,
    Escape,
}

/// Decodes what is read in pieces.
#[derive(Debug, Default)]
pub(super) struct KeyDecoder(Vec<u8>);

impl KeyDecoder {
    /// The keys that are complete with these bytes.
    pub fn feed(&mut self, bytes: &[u8]) -> Vec<Key> {
        self.0.extend_from_slice(bytes);
        let mut keys = Vec::new();
        while let Some((key, length)) = first(&self.0) {
            keys.extend(key);
            self.0.drain(..length);
        }
        keys
    }

    /// Whether an ESC may be the key of that name or the beginning of another key's sequence.
    pub fn is_undecided(&self) -> bool {
        !self.0.is_empty()
    }

    /// What the bytes are if none follow.
    pub fn decide(&mut self) -> Option<Key> {
        let held = std::mem::take(&mut self.0);
        (held == [ESC]).then_some(Key::Escape)
    }
}

/// The first key, if it is one that is used, and the number of its bytes; `None`: more bytes are needed.
fn first(bytes: &[u8]) -> Option<(Option<Key>, usize)> {
    match *bytes {
        [ESC] | [ESC, b'O'] | [] => None,
        [ESC, b'O', letter, ..] => Some((named(&[], letter), 3)),
        [ESC, b'[', ref body @ ..] => {
            let parameters = body.iter().take_while(|byte| (0x20..=0x3f).contains(*byte)).count();
            match body.get(parameters) {
                _ if parameters > LONGEST => Some((None, 2 + parameters)),
                Some(end) => Some((named(&body[..parameters], *end), 3 + parameters)),
                None => None,
            }
        }
        // Another key with Alt, or a second ESC.
        [ESC, ESC, ..] => Some((Some(Key::Escape), 1)),
        [ESC, _, ..] => Some((None, 2)),
        [byte, ..] => Some((byte.is_ascii().then(|| Key::Char(char::from(byte))), 1)),
    }
}

fn named(parameters: &[u8], end: u8) -> Option<Key> {
    Some(match (parameters, end) {
        (_, b'A') => Key::Up,
        (_, b'B') => Key::Down,
        (_, b'H') | (b"1" | b"7", b'~') => Key::Home,
        (_, b'F') | (b"4" | b"8", b'~') => Key::End,
        (b"5", b'~') => Key::PageUp,
        (b"6", b'~') => Key::PageDown,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_the_same_however_their_bytes_arrive() {
        let bytes = b"q\x1b[A\x1bOB\x1b[6~\x1b[5~\x1b[1~\x1b[F\x1b[200~x\x1b[1;5Ak\xc3\xbc\x1bz\x1b\x1b[A\x0c";
        use Key::{Char, Down, End, Escape, Home, PageDown, PageUp, Up};
        let expected =
            [Char('q'), Up, Down, PageDown, PageUp, Home, End, Char('x'), Up, Char('k'), Escape, Up, Char('\x0c')];
        assert_eq!(KeyDecoder::default().feed(bytes), expected);
        let mut decoder = KeyDecoder::default();
        let single: Vec<Key> = bytes.iter().flat_map(|byte| decoder.feed(&[*byte])).collect();
        assert_eq!(single, expected);
        assert!(!decoder.is_undecided());
    }

    #[test]
    fn a_lone_esc_is_a_key_and_an_endless_sequence_is_none() {
        let mut decoder = KeyDecoder::default();
        assert_eq!((decoder.feed(b"\x1b"), decoder.is_undecided()), (vec![], true));
        assert_eq!((decoder.decide(), decoder.is_undecided()), (Some(Key::Escape), false));
        decoder.feed(b"\x1b[1");
        assert_eq!(decoder.decide(), None);
        decoder.feed(b"\x1b[");
        decoder.feed(&[b'1'; LONGEST + 1]);
        assert_eq!(decoder.feed(b"q"), [Key::Char('q')]);
    }
}
