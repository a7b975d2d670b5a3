//! Escape sequences: only text, tabs and colors of a rank's output reach a shared terminal.
//!
//! Colors are SGR sequences: ESC [ ... m with digits, `;` and `:` alone. An open one is closed at the end of the line. Any
//! other sequence that is complete on its line (cursor, screen, title, clipboard, charset; C1 forms too) is removed. Of an
//! incomplete one only the introducer is removed, so that garbage cannot hide the text after it. Other control characters
//! are removed. Bytes that are not UTF-8 pass, except that 0x80 to 0x9f, controls in eight-bit terminals, become U+FFFD.
//! Syntax: ECMA-48, and XTerm's control sequences, ctlseqs.

const ESC: u8 = 0x1b;
const RESET: &[u8] = b"\x1b[0m";

/// What happens to colors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ColorPolicy {
    /// Kept, for a terminal.
    Keep,
    /// Removed, for a file, a pipe or NO_COLOR.
    Drop,
}

/// The token at the beginning of some bytes, with its length.
enum Token {
    Shown(usize),
    Color { length: usize, resets: bool },
    Hidden(usize),
    Stray,
}

/// Appends `line` to `out`, escaped.
pub fn clean(out: &mut Vec<u8>, line: &[u8], colors: ColorPolicy) {
    let mut rest = line;
    let mut open = false;
    while let Some(at) = rest.iter().position(|b| !matches!(b, b'\t' | b' '..=b'~')) {
        out.extend_from_slice(&rest[..at]);
        rest = &rest[at..];
        let length = match piece(rest) {
            Token::Shown(length) => {
                out.extend_from_slice(&rest[..length]);
                length
            }
            Token::Color { length, resets } => {
                if colors == ColorPolicy::Keep {
                    out.extend_from_slice(&rest[..length]);
                    open = !resets;
                }
                length
            }
            Token::Hidden(length) => length,
            Token::Stray => {
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

/// `line` as text: escaped, without colors, U+FFFD for invalid UTF-8.
pub fn plain(line: &[u8]) -> String {
    let mut out = Vec::with_capacity(line.len());
    clean(&mut out, line, ColorPolicy::Drop);
    String::from_utf8(out).unwrap_or_else(|e| String::from_utf8_lossy(e.as_bytes()).into_owned())
}

fn piece(rest: &[u8]) -> Token {
    match *rest {
        [ESC, kind, ..] => sequence(rest, kind),
        [0xc2, c1 @ 0x80..=0x9f, ..] => match sequence(rest, c1 - 0x40) {
            Token::Color { length, .. } => Token::Hidden(length),
            other => other,
        },
        [lead @ 0x80..=0xff, ..] => match character(rest) {
            Some(length) => Token::Shown(length),
            None if lead < 0xa0 => Token::Stray,
            None => Token::Shown(1),
        },
        _ => Token::Hidden(1),
    }
}

/// The length of the first UTF-8 character of `rest`.
fn character(rest: &[u8]) -> Option<usize> {
    (2..=rest.len().min(4)).find(|&n| std::str::from_utf8(&rest[..n]).is_ok())
}

/// A sequence of this `kind` after its two-byte introducer. Each scan ends at the next introducer, so the whole is
/// linear.
fn sequence(rest: &[u8], kind: u8) -> Token {
    let body = &rest[2..];
    match kind {
        b'[' => {
            let parameters = count(body, 0x30..=0x3f);
            let between = count(&body[parameters..], 0x20..=0x2f);
            let length = parameters + between + 3;
            match body.get(parameters + between) {
                Some(b'm') if between == 0 && !body[..parameters].iter().any(|b| (b'<'..=b'?').contains(b)) => {
                    Token::Color { length, resets: body[..parameters].iter().all(|b| *b == b'0') }
                }
                Some(0x40..=0x7e) => Token::Hidden(length),
                _ => Token::Hidden(2),
            }
        }
        b']' | b'P' | b'X' | b'^' | b'_' => Token::Hidden(2 + string(body).unwrap_or(0)),
        0x20..=0x2f => {
            let between = count(body, 0x20..=0x2f);
            let complete = matches!(body.get(between), Some(0x30..=0x7e));
            Token::Hidden(if complete { between + 3 } else { 1 })
        }
        0x30..=0x7e => Token::Hidden(2),
        _ => Token::Hidden(1),
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
