//! One rank's output, split into whole lines as it comes, in whatever pieces it comes.
//!
//! `\n` and `\r\n` end a line. A `\r` with anything else behind it means that what follows replaces the
//! line, as on a terminal: of a progress bar its newest state is left. Everything else passes byte for
//! byte, invalid UTF-8 too. How the stream was cut into pieces changes nothing.

/// A line that grows beyond this many bytes is given out in pieces, each as a line of its own.
pub const LONGEST: usize = 64 * 1024;

/// Splits one stream.
#[derive(Clone, Debug, Default)]
pub struct Splitter {
    held: Vec<u8>,
    /// A `\r` came last: the next byte replaces what is held, unless it ends the line.
    returned: bool,
    /// What was held has been taken, so a line end that comes next ends that and is no empty line.
    taken: bool,
}

impl Splitter {
    /// Nothing held.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes in the next bytes; gives each line that they complete, without its end, to `out`.
    pub fn feed(&mut self, bytes: &[u8], mut out: impl FnMut(&[u8])) {
        for piece in bytes.split_inclusive(|b| *b == b'\n') {
            let Some(text) = piece.strip_suffix(b"\n") else {
                self.hold(piece, &mut out);
                continue;
            };
            let whole = self.held.is_empty() && !self.taken && text.len() <= LONGEST && !text.contains(&b'\r');
            if whole {
                out(text);
            } else {
                self.hold(text, &mut out);
                if !(self.taken && self.held.is_empty()) {
                    out(&self.held);
                }
                self.held.clear();
            }
            (self.returned, self.taken) = (false, false);
        }
    }

    /// Whether there is something of an unfinished line.
    pub fn is_holding(&self) -> bool {
        !self.held.is_empty()
    }

    /// Takes what is held of an unfinished line, so that a prompt or a progress bar is seen; `None`
    /// when that is nothing. A character that has come only in part stays. What comes next is a
    /// line of its own.
    pub fn take_pending(&mut self) -> Option<Vec<u8>> {
        let whole = self.held.len() - unfinished(&self.held);
        if whole == 0 {
            return None;
        }
        let rest = self.held.split_off(whole);
        self.taken = true;
        Some(std::mem::replace(&mut self.held, rest))
    }

    /// Takes all that is held, for a stream that has ended; `None` when that is nothing.
    pub fn finish(&mut self) -> Option<Vec<u8>> {
        let held = std::mem::take(self).held;
        (!held.is_empty()).then_some(held)
    }

    fn hold(&mut self, text: &[u8], out: &mut impl FnMut(&[u8])) {
        for (i, run) in text.split(|b| *b == b'\r').enumerate() {
            self.returned |= i > 0;
            if run.is_empty() {
                continue;
            }
            if std::mem::take(&mut self.returned) {
                self.held.clear();
            }
            self.push(run, out);
        }
    }

    fn push(&mut self, mut run: &[u8], out: &mut impl FnMut(&[u8])) {
        while self.held.len() + run.len() > LONGEST {
            let (fits, rest) = run.split_at(LONGEST - self.held.len());
            self.held.extend_from_slice(fits);
            let kept = self.held.split_off(LONGEST - unfinished(&self.held));
            out(&self.held);
            (self.held, run) = (kept, rest);
        }
        self.held.extend_from_slice(run);
    }
}

/// How many bytes at the end are the beginning of a UTF-8 character whose rest is missing.
pub(super) fn unfinished(bytes: &[u8]) -> usize {
    let last = &bytes[bytes.len().saturating_sub(3)..];
    let Some(lead) = last.iter().rposition(|b| *b >= 0xc0) else { return 0 };
    let cut = |e: std::str::Utf8Error| e.error_len().is_none();
    if std::str::from_utf8(&last[lead..]).is_err_and(cut) { last.len() - lead } else { 0 }
}
