//! Leaves out the tracebacks of one rank that end in KeyboardInterrupt: after Ctrl-C every rank prints one.

use crate::report::cause::traceback::{CHAINS, HEADER};
use crate::report::console::escape::plain;

const EXCEPTION: &str = "KeyboardInterrupt";

/// A longer traceback, in bytes, is not left out.
const LONGEST: usize = 256 * 1024;

/// `KeyboardInterrupt` with its colors is shorter, in bytes.
const LONGEST_COLORED: usize = 64;

/// Where a stream is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Position {
    /// Outside of a traceback.
    #[default]
    Outside,
    /// After the message between two chained tracebacks: the second one is not left out.
    Chained,
    /// In a traceback, which is held.
    Inside,
    /// After the last line of one with KeyboardInterrupt. It is held until it is clear that no other is chained to it.
    Ended,
}

/// The filter of one stream, in pieces of any size.
#[derive(Clone, Debug, Default)]
pub struct InterruptFilter {
    position: Position,
    /// Lines of a traceback that may be left out.
    held: Vec<u8>,
    /// An unfinished line.
    line: Vec<u8>,
    /// The beginning of the present line has been passed on.
    passes: bool,
    left_out: usize,
}

impl InterruptFilter {
    /// Takes the next bytes and passes on those that are no part of such a traceback.
    pub fn feed(&mut self, bytes: &[u8], mut out: impl FnMut(&[u8])) {
        for piece in bytes.split_inclusive(|b| *b == b'\n') {
            let is_end = piece.ends_with(b"\n");
            if self.passes {
                out(piece);
                self.passes = !is_end;
                continue;
            }
            self.line.extend_from_slice(piece);
            if is_end {
                self.take_line(&mut out);
            } else if self.is_other_text() {
                // A prompt or a progress bar is shown at once.
                match self.position {
                    Position::Ended => self.left_out += 1,
                    _ => out(&self.held),
                }
                out(&self.line);
                self.held.clear();
                self.line.clear();
                (self.passes, self.position) = (true, Position::Outside);
            }
        }
    }

    /// Whether the unfinished line cannot be part of a traceback that is left out.
    fn is_other_text(&self) -> bool {
        match self.position {
            Position::Outside | Position::Chained | Position::Ended => !may_begin_one(&self.line),
            Position::Inside => {
                let text = without_prefix(&self.line);
                let is_frame = text.starts_with(b" ");
                let is_colored = text.starts_with(b"\x1b") && text.len() < LONGEST_COLORED;
                let is_exception = is_colored || EXCEPTION.as_bytes().starts_with(text.trim_ascii_end());
                let may_be_part = is_frame || is_exception || may_begin_one(&self.line);
                !may_be_part || self.held.len() + self.line.len() > LONGEST
            }
        }
    }

    /// Ends the stream. Returns the number of tracebacks that were left out.
    pub fn finish(&mut self, mut out: impl FnMut(&[u8])) -> usize {
        if !self.line.is_empty() {
            self.take_line(&mut out);
        }
        match self.position {
            Position::Ended => self.left_out += 1,
            _ => out(&self.held),
        }
        std::mem::take(self).left_out
    }

    fn take_line(&mut self, out: &mut impl FnMut(&[u8])) {
        let line = std::mem::take(&mut self.line);
        let text = without_prefix(line.trim_ascii_end());
        let is_chain = CHAINS.iter().any(|chain| text == chain.as_bytes());
        let next = match self.position {
            // Python 3.13 and later color it at a terminal.
            Position::Inside if plain(text) == EXCEPTION => Some(Position::Ended),
            Position::Inside if text.starts_with(b" ") && self.held.len() + line.len() <= LONGEST => {
                Some(Position::Inside)
            }
            Position::Ended if text.is_empty() => Some(Position::Ended),
            _ => None,
        };
        if let Some(next) = next {
            self.held.extend_from_slice(&line);
            self.position = next;
            return;
        }
        match self.position {
            Position::Ended if !is_chain => self.left_out += 1,
            _ => out(&self.held),
        }
        self.held.clear();
        let is_chained = self.position == Position::Chained;
        if text == HEADER.as_bytes() && !is_chained {
            self.held = line;
            self.position = Position::Inside;
            return;
        }
        out(&line);
        let stays = is_chain || is_chained && text.is_empty();
        self.position = if stays { Position::Chained } else { Position::Outside };
    }
}

/// torch writes `[rank0]: ` before each line of a traceback once there is a process group (_distributed_excepthook of
/// torch/distributed/distributed_c10d.py).
const PREFIX: &[u8] = b"[rank";

/// What follows the number and `PREFIX`; `None` if the line does not begin with these.
fn after_number(line: &[u8]) -> Option<&[u8]> {
    let rest = line.strip_prefix(PREFIX)?;
    Some(&rest[rest.iter().take_while(|byte| byte.is_ascii_digit()).count()..])
}

/// The line without torch's prefix.
fn without_prefix(line: &[u8]) -> &[u8] {
    after_number(line).and_then(|rest| rest.strip_prefix(b"]: ")).unwrap_or(line)
}

/// Whether an unfinished line may be the beginning of torch's prefix.
fn is_part_of_prefix(line: &[u8]) -> bool {
    PREFIX.starts_with(line) || after_number(line).is_some_and(|rest| b"]: ".starts_with(rest))
}

/// Whether the beginning of a line may be that of a traceback, or of the message between two.
fn may_begin_one(line: &[u8]) -> bool {
    let text = without_prefix(line.trim_ascii_end());
    is_part_of_prefix(line) || CHAINS.into_iter().chain([HEADER]).any(|whole| whole.as_bytes().starts_with(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    const INTERRUPTED: &str = "Traceback (most recent call last):\n  File \"train.py\", line 1, in <module>\n    \
                               import torch\n    ^^^^^^\nKeyboardInterrupt\n";
    const FAILED: &str = "Traceback (most recent call last):\n  File \"a.py\", line 2, in f\n    g()\nOSError: no\n";
    const DURING: &str = "\nDuring handling of the above exception, another exception occurred:\n\n";

    /// What remains of a text, and the number of tracebacks that were left out; the same in pieces of any size.
    fn filtered(text: &str) -> (String, usize) {
        let of = |size: usize| {
            let (mut filter, mut shown) = (InterruptFilter::default(), Vec::new());
            text.as_bytes().chunks(size).for_each(|piece| filter.feed(piece, |bytes| shown.extend_from_slice(bytes)));
            let left_out = filter.finish(|bytes| shown.extend_from_slice(bytes));
            (String::from_utf8_lossy(&shown).into_owned(), left_out)
        };
        let whole = of(text.len().max(1));
        for size in [1, 7, 40] {
            assert_eq!(of(size), whole, "{size}");
        }
        whole
    }

    #[test]
    fn a_traceback_of_an_interrupt_is_left_out_and_counted() {
        assert_eq!(filtered(INTERRUPTED), (String::new(), 1));
        assert_eq!(filtered(&format!("a\n{INTERRUPTED}b\n{INTERRUPTED}{FAILED}")), (format!("a\nb\n{FAILED}"), 2));
        assert_eq!(filtered(INTERRUPTED.trim_end()), (String::new(), 1), "the stream ends without a line end");
        let colored = INTERRUPTED.replace("KeyboardInterrupt", "\x1b[1;35mKeyboardInterrupt\x1b[0m");
        assert_eq!(filtered(&colored), (String::new(), 1));
    }

    #[test]
    fn torch_writes_the_rank_before_each_line() {
        let prefixed = |text: &str| text.lines().map(|line| format!("[rank12]: {line}\n")).collect::<String>();
        assert_eq!(filtered(&format!("a\n{}b\n", prefixed(INTERRUPTED))), ("a\nb\n".to_owned(), 1));
        for text in [prefixed(FAILED), "[rank0]: loss 0.1\n[rank\n[rank0] ".to_owned()] {
            assert_eq!(filtered(&text), (text, 0));
        }
    }

    #[test]
    fn everything_else_stays() {
        let cut = &INTERRUPTED[..INTERRUPTED.len() - "KeyboardInterrupt\n".len()];
        let chained = format!("{FAILED}{DURING}{INTERRUPTED}");
        let chain = format!("{INTERRUPTED}{DURING}{FAILED}");
        let with_text = INTERRUPTED.replace("KeyboardInterrupt\n", "KeyboardInterrupt: stop\n");
        let broken = format!("{cut}saved model.pt\nKeyboardInterrupt\n");
        for text in
            ["", "x", "a\n\n 50%|===\r 51%", "KeyboardInterrupt\n", FAILED, cut, &with_text, &broken, &chained, &chain]
        {
            assert_eq!(filtered(text), (text.to_owned(), 0));
        }
        assert_eq!(filtered(&format!("{cut}{INTERRUPTED}")), (cut.to_owned(), 1));
        assert_eq!(filtered(&format!("{INTERRUPTED}\n\ndone\n")), ("done\n".to_owned(), 1));
    }

    #[test]
    fn text_without_a_line_end_is_shown_at_once() {
        let (mut filter, mut shown) = (InterruptFilter::default(), Vec::new());
        for piece in [INTERRUPTED, "saving:   0%", "\rsaving:  10%"] {
            filter.feed(piece.as_bytes(), |bytes| shown.extend_from_slice(bytes));
        }
        assert_eq!(String::from_utf8_lossy(&shown), "saving:   0%\rsaving:  10%");
        let (mut filter, mut shown) = (InterruptFilter::default(), Vec::new());
        for piece in [FAILED.split_once("OSError").map_or("", |(head, _)| head), "save? [y/n] "] {
            filter.feed(piece.as_bytes(), |bytes| shown.extend_from_slice(bytes));
        }
        assert!(shown.ends_with(b"save? [y/n] "), "the traceback is none of an interrupt");
    }

    #[test]
    fn a_traceback_that_is_too_long_stays() {
        let long = INTERRUPTED.replace("    ^^^^^^\n", &"    ^^^^^^\n".repeat(LONGEST / 10));
        let (shown, left_out) = filtered(&long);
        assert_eq!((shown == long, left_out), (true, 0));
    }
}
