//! Splits one rank's output into whole lines, however the stream is cut into pieces.
//!
//! `\n` and `\r\n` end a line. After any other `\r` the following bytes replace the line, as on a terminal, so a progress
//! bar leaves its newest state. All other bytes pass unchanged, invalid UTF-8 too.

/// A longer line, in bytes, is returned in pieces, each as a line of its own.
pub const LONGEST: usize = 64 * 1024;

/// Splits one stream.
#[derive(Clone, Debug, Default)]
pub struct LineSplitter {
    held: Vec<u8>,
    /// A `\r` came last: the next byte replaces the held text, unless it ends the line.
    returned: bool,
    /// The held text was taken, so the next line end ends that text and is not an empty line.
    taken: bool,
}

impl LineSplitter {
    /// An empty splitter.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes the next bytes and passes each completed line, without its end, to `out`.
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

    /// Whether an unfinished line is held.
    pub fn is_holding(&self) -> bool {
        !self.held.is_empty()
    }

    /// Takes the held part of an unfinished line, so that a prompt or a progress bar is shown. An incomplete character
    /// stays. The following bytes are a line of their own.
    pub fn take_pending(&mut self) -> Option<Vec<u8>> {
        let whole = self.held.len() - unfinished(&self.held);
        if whole == 0 {
            return None;
        }
        let rest = self.held.split_off(whole);
        self.taken = true;
        Some(std::mem::replace(&mut self.held, rest))
    }

    /// Takes all held bytes, for a stream that has ended.
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

/// The number of bytes at the end that are an incomplete UTF-8 character.
pub(crate) fn unfinished(bytes: &[u8]) -> usize {
    let last = &bytes[bytes.len().saturating_sub(3)..];
    let Some(lead) = last.iter().rposition(|b| *b >= 0xc0) else { return 0 };
    let cut = |e: std::str::Utf8Error| e.error_len().is_none();
    if std::str::from_utf8(&last[lead..]).is_err_and(cut) { last.len() - lead } else { 0 }
}
