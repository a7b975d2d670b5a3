//! The tail of a log: its last lines, escaped.

use crate::report::console::escape::plain;
use crate::report::console::lines::LineSplitter;
use std::collections::VecDeque;

const ESC: u8 = 0x1b;

/// Limits of a tail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TailLimits {
    /// At most this many lines; default 20.
    pub lines: usize,
    /// At most this many bytes in all, and an eighth of them for each line; default 16 KiB.
    pub bytes: usize,
}

impl Default for TailLimits {
    fn default() -> Self {
        Self { lines: 20, bytes: 16 * 1024 }
    }
}

/// The end of a log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogTail {
    /// The lines, oldest first: valid UTF-8 without colors and control characters. A shortened one ends with `…`.
    pub lines: Vec<String>,
    /// Earlier lines, or the end of a long line, are missing. A caller that read only the end of a log sets it.
    pub cut: bool,
    /// There is no log any more. A caller that looks for it sets this.
    pub is_missing: bool,
}

/// The line of faulthandler with the extension modules that a crashed process had imported, and the bytes of it that are kept.
const MODULES: &str = "Extension modules: ";
const MODULES_SHOWN: usize = 80;

/// The last lines of `log`. Of a line that is overwritten (progress bars) the last state counts; blank lines at the end do not
/// count.
pub fn tail(log: &[u8], limits: TailLimits) -> LogTail {
    let mut lines = VecDeque::new();
    let mut cut = false;
    let mut blank = 0;
    for row in rows(log) {
        let text = plain(&row);
        if text.trim().is_empty() {
            blank += 1;
            continue;
        }
        let blanks = std::mem::take(&mut blank).min(limits.lines);
        lines.extend(std::iter::repeat_n(String::new(), blanks));
        lines.push_back(text);
        while lines.len() > limits.lines {
            lines.pop_front();
            cut = true;
        }
    }
    let mut room = limits.bytes;
    let mut shown = VecDeque::new();
    for mut line in lines.into_iter().rev() {
        if line.starts_with(MODULES) {
            // faulthandler names hundreds; how many there are ends the line.
            let total = line.rfind(" (total: ").map(|at| line.split_off(at)).unwrap_or_default();
            cut |= shorten(&mut line, MODULES_SHOWN);
            line += &total;
        }
        cut |= shorten(&mut line, limits.bytes / 8);
        if line.len() > room {
            cut = true;
            break;
        }
        room -= line.len();
        shown.push_front(line);
    }
    LogTail { lines: shown.into(), cut, is_missing: false }
}

/// The rows that a terminal shows of a text. What follows `\r` or a cursor movement upwards (CSI A) replaces the row.
fn rows(text: &[u8]) -> Vec<Vec<u8>> {
    let (mut rows, mut at, mut replaces) = (vec![Vec::new()], 0_usize, false);
    let mut rest = text;
    while let Some(first) = rest.first() {
        let length = match (upwards(rest), first) {
            (Some((count, length)), _) => {
                (at, replaces) = (at.saturating_sub(count), true);
                length
            }
            (_, b'\n') => {
                (at, replaces) = (at + 1, true);
                rows.resize_with(rows.len().max(at + 1), Vec::new);
                1
            }
            (_, b'\r') => {
                replaces = true;
                1
            }
            _ => {
                if std::mem::take(&mut replaces) {
                    rows[at].clear();
                }
                let length = 1 + rest[1..].iter().take_while(|byte| !matches!(**byte, b'\n' | b'\r' | ESC)).count();
                rows[at].extend_from_slice(&rest[..length]);
                length
            }
        };
        rest = &rest[length..];
    }
    rows
}

/// A cursor movement upwards at the beginning of a text: the number of rows, and its length.
fn upwards(text: &[u8]) -> Option<(usize, usize)> {
    let body = text.strip_prefix(&[ESC, b'['])?;
    let digits = body.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let count = std::str::from_utf8(&body[..digits]).ok()?.parse().unwrap_or(1);
    (body.get(digits) == Some(&b'A')).then_some((count.max(1), digits + 3))
}

/// All lines of a text, escaped.
pub(crate) fn plain_lines(text: &[u8]) -> Vec<String> {
    let (mut lines, mut splitter) = (Vec::new(), LineSplitter::new());
    splitter.feed(text, |line| lines.push(plain(line)));
    lines.extend(splitter.finish().map(|rest| plain(&rest)));
    lines
}

/// Cuts `line` to at most `most` bytes, including a final `…`. Returns whether it did.
pub(crate) fn shorten(line: &mut String, most: usize) -> bool {
    if line.len() <= most {
        return false;
    }
    let mark = if most >= '…'.len_utf8() { "…" } else { "" };
    let mut end = most - mark.len();
    while !line.is_char_boundary(end) {
        end -= 1;
    }
    line.truncate(end);
    line.push_str(mark);
    true
}
