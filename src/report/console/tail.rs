//! The tail of a log: its last lines, escaped.

use crate::report::console::escape::plain;
use crate::report::console::lines::LineSplitter;
use std::collections::VecDeque;

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
}

/// The last lines of `log`. Of a line that `\r` overwrites the last state counts; blank lines at the end do not count.
pub fn tail(log: &[u8], limits: TailLimits) -> LogTail {
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
    LogTail { lines: shown.into(), cut }
}

/// All lines of a text, escaped.
pub(crate) fn plain_lines(text: &[u8]) -> Vec<String> {
    let mut lines = Vec::new();
    each_line(text, |line| lines.push(plain(line)));
    lines
}

fn each_line(text: &[u8], mut take: impl FnMut(&[u8])) {
    let mut splitter = LineSplitter::new();
    splitter.feed(text, &mut take);
    if let Some(rest) = splitter.finish() {
        take(&rest);
    }
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
