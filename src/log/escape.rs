//! What of a rank's output may reach a shared terminal: text, tabs and colours.
//!
//! Colours are SGR sequences, ESC [ ... m with digits, `;` and `:` alone; one that is left open is closed
//! at the end of the line. Every other sequence that is complete on its line (cursor, screen, title,
//! clipboard, charset; C1 forms too) is taken away whole. Of an incomplete one only its introducer is,
//! so that garbage cannot hide the text behind it. Other control characters are taken away. Bytes that
//! are no UTF-8 pass, but 0x80 to 0x9f among them, controls in eight-bit terminals, become U+FFFD.
//! Syntax: ECMA-48, and XTerm's control sequences, ctlseqs.

const ESC: u8 = 0x1b;
const RESET: &[u8] = b"\x1b[0m";

/// What becomes of colours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Colours {
    /// They stay, for a terminal.
    Keep,
    /// They go, for a file, a pipe or NO_COLOR.
    Drop,
}

/// What stands at the beginning of some bytes, and how many of them it takes.
enum Piece {
    Shown(usize),
    Colour { length: usize, resets: bool },
    Hidden(usize),
    Stray,
}

/// Appends `line` to `out`, made safe.
pub fn clean(out: &mut Vec<u8>, line: &[u8], colours: Colours) {
    let mut rest = line;
    let mut open = false;
    while let Some(at) = rest.iter().position(|b| !matches!(b, b'\t' | b' '..=b'~')) {
        out.extend_from_slice(&rest[..at]);
        rest = &rest[at..];
        let length = match piece(rest) {
            Piece::Shown(length) => {
                out.extend_from_slice(&rest[..length]);
                length
            }
            Piece::Colour { length, resets } => {
                if colours == Colours::Keep {
                    out.extend_from_slice(&rest[..length]);
                    open = !resets;
                }
                length
            }
            Piece::Hidden(length) => length,
            Piece::Stray => {
                out.extend_from_slice("\u{fffd}".as_bytes());
                1
            }
        };
        rest = &rest[length..];
    }
    out.extend_from_slice(rest);
    if open {
        out.extend_from_slice(RESET);
    }
}

/// `line` as text: made safe, without colours, U+FFFD for what is no UTF-8.
pub fn plain(line: &[u8]) -> String {
    let mut out = Vec::with_capacity(line.len());
    clean(&mut out, line, Colours::Drop);
    String::from_utf8(out).unwrap_or_else(|e| String::from_utf8_lossy(e.as_bytes()).into_owned())
}

fn piece(rest: &[u8]) -> Piece {
    match *rest {
        [ESC, kind, ..] => sequence(rest, kind),
        [0xc2, c1 @ 0x80..=0x9f, ..] => match sequence(rest, c1 - 0x40) {
            Piece::Colour { length, .. } => Piece::Hidden(length),
            other => other,
        },
        [lead @ 0x80..=0xff, ..] => match character(rest) {
            Some(length) => Piece::Shown(length),
            None if lead < 0xa0 => Piece::Stray,
            None => Piece::Shown(1),
        },
        _ => Piece::Hidden(1),
    }
}

/// The length of the UTF-8 character that `rest` begins with.
fn character(rest: &[u8]) -> Option<usize> {
    (2..=rest.len().min(4)).find(|&n| std::str::from_utf8(&rest[..n]).is_ok())
}

/// A sequence whose introducer, two bytes, says `kind`. Each scan ends at the next introducer, so the
/// whole stays linear.
fn sequence(rest: &[u8], kind: u8) -> Piece {
    let body = &rest[2..];
    match kind {
        b'[' => {
            let parameters = count(body, 0x30..=0x3f);
            let between = count(&body[parameters..], 0x20..=0x2f);
            let length = parameters + between + 3;
            match body.get(parameters + between) {
                Some(b'm') if between == 0 && !body[..parameters].iter().any(|b| (b'<'..=b'?').contains(b)) => {
                    Piece::Colour { length, resets: body[..parameters].iter().all(|b| *b == b'0') }
                }
                Some(0x40..=0x7e) => Piece::Hidden(length),
                _ => Piece::Hidden(2),
            }
        }
        b']' | b'P' | b'X' | b'^' | b'_' => Piece::Hidden(2 + string(body).unwrap_or(0)),
        0x20..=0x2f => {
            let between = count(body, 0x20..=0x2f);
            let complete = matches!(body.get(between), Some(0x30..=0x7e));
            Piece::Hidden(if complete { between + 3 } else { 1 })
        }
        0x30..=0x7e => Piece::Hidden(2),
        _ => Piece::Hidden(1),
    }
}

fn count(bytes: &[u8], range: std::ops::RangeInclusive<u8>) -> usize {
    bytes.iter().take_while(|b| range.contains(b)).count()
}

/// The length of a control string with its terminator; `None` if it has none.
fn string(body: &[u8]) -> Option<usize> {
    let mut last = 0;
    for (i, &byte) in body.iter().enumerate() {
        match (last, byte) {
            (_, 0x07 | 0x18 | 0x1a) | (ESC, b'\\') | (0xc2, 0x9c) => return Some(i + 1),
            (ESC, _) | (0xc2, 0x80..=0x9f) => return None,
            _ => last = byte,
        }
    }
    None
}
