//! The last lines of a log, as text that is safe to show.

use super::escape::plain;
use super::lines::Splitter;
use std::collections::VecDeque;

/// How much of a log a tail shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// At most this many lines; default 20.
    pub lines: usize,
    /// At most this many bytes of text in all, and an eighth of them a line; default 16 KiB.
    pub bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { lines: 20, bytes: 16 * 1024 }
    }
}

/// The end of a log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tail {
    /// The lines, oldest first: without colours and control characters, valid UTF-8. One that was too
    /// long ends with `…`.
    pub lines: Vec<String>,
    /// Something before them, or the end of a long line, is not shown. For a caller to set who gave only
    /// the end of a log.
    pub cut: bool,
}

/// The last lines of `log`. Of a line that `\r` overwrites the last state counts; blank lines at the
/// end count as nothing.
pub fn tail(log: &[u8], limits: Limits) -> Tail {
    let mut lines = VecDeque::new();
    let mut cut = false;
    let mut blank = 0;
    each_line(log, |line| {
        let text = plain(line);
        if text.trim().is_empty() {
            blank += 1;
            return;
        }
        let blanks = std::mem::take(&mut blank).min(limits.lines);
        lines.extend(std::iter::repeat_n(String::new(), blanks));
        lines.push_back(text);
        while lines.len() > limits.lines {
            lines.pop_front();
            cut = true;
        }
    });
    let mut room = limits.bytes;
    let mut shown = VecDeque::new();
    for mut line in lines.into_iter().rev() {
        cut |= shorten(&mut line, limits.bytes / 8);
        if line.len() > room {
            cut = true;
            break;
        }
        room -= line.len();
        shown.push_front(line);
    }
    Tail { lines: shown.into(), cut }
}

/// All lines of a text, each safe to show.
pub(super) fn plain_lines(text: &[u8]) -> Vec<String> {
    let mut lines = Vec::new();
    each_line(text, |line| lines.push(plain(line)));
    lines
}

fn each_line(text: &[u8], mut take: impl FnMut(&[u8])) {
    let mut splitter = Splitter::new();
    splitter.feed(text, &mut take);
    if let Some(rest) = splitter.finish() {
        take(&rest);
    }
}

/// Cuts `line` to at most `most` bytes, `…` at its end included; says whether it did.
pub(super) fn shorten(line: &mut String, most: usize) -> bool {
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
