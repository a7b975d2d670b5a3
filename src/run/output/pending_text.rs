//! The form in which the text of a log is copied to a console: byte for byte or in whole lines, without the tracebacks that are
//! left out.

use crate::report::console::escape::ColorPolicy;
use crate::report::console::lines::LONGEST;
use crate::report::console::prefix::write_line;
use crate::report::{InterruptFilter, LineSplitter};

/// How a followed log is copied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LogForm {
    /// Byte for byte.
    Bytes,
    /// Whole lines, each with this prefix.
    Lines(String),
    /// Byte for byte, from a rank at a terminal. Of several followed logs, a line that is not a progress bar is copied whole.
    Terminal,
}

/// What applies to all logs of a console.
#[derive(Clone, Copy)]
pub struct TextRules<'a> {
    /// What becomes of colors in lines.
    pub colours: ColorPolicy,
    /// Only lines that contain one of these texts are copied; empty: all lines.
    pub only: &'a [Vec<u8>],
    /// Whether several logs share the console.
    pub shared: bool,
}

/// What has been read of a log and not been copied.
pub struct PendingText {
    unfinished: Unfinished,
    /// After Ctrl-C: leaves out the tracebacks of KeyboardInterrupt.
    interrupts: Option<InterruptFilter>,
}

enum Unfinished {
    None,
    /// An unfinished line, and the prefix of each line.
    Line(String, LineSplitter),
    /// The same without changes.
    Raw(Vec<u8>),
}

impl PendingText {
    /// Nothing has been read yet.
    pub fn new(form: LogForm) -> Self {
        let unfinished = match form {
            LogForm::Bytes => Unfinished::None,
            LogForm::Lines(prefix) => Unfinished::Line(prefix, LineSplitter::new()),
            LogForm::Terminal => Unfinished::Raw(Vec::new()),
        };
        Self { unfinished, interrupts: None }
    }

    /// From now on leaves out tracebacks that end in KeyboardInterrupt.
    pub fn leave_out_interrupts(&mut self) {
        self.interrupts.get_or_insert_default();
    }

    /// Takes the next bytes and copies what is finished. Returns whether it holds an unfinished line.
    pub fn feed(&mut self, bytes: &[u8], rules: TextRules<'_>, out: &mut Vec<u8>) -> bool {
        let show = |bytes: &[u8]| self.unfinished.feed(bytes, rules, out);
        match &mut self.interrupts {
            Some(filter) => filter.feed(bytes, show),
            None => [bytes].into_iter().for_each(show),
        }
        self.unfinished.holds(rules, out)
    }

    /// Copies an unfinished line that has been held long enough, with a prefix as a line of its own.
    pub fn take_held(&mut self, rules: TextRules<'_>, out: &mut Vec<u8>) {
        match &mut self.unfinished {
            Unfinished::None => {}
            Unfinished::Raw(text) => out.append(text),
            Unfinished::Line(prefix, lines) => {
                if let Some(line) = lines.take_pending() {
                    write_line(out, prefix, &line, rules.colours);
                }
            }
        }
    }

    /// Copies the rest. Returns whether a traceback was left out.
    pub fn finish(&mut self, rules: TextRules<'_>, out: &mut Vec<u8>) -> bool {
        let left_out = self
            .interrupts
            .take()
            .map_or(0, |mut filter| filter.finish(|bytes| self.unfinished.feed(bytes, rules, out)));
        match &mut self.unfinished {
            Unfinished::None => {}
            Unfinished::Raw(text) => out.append(text),
            Unfinished::Line(prefix, lines) => {
                if let Some(line) = lines.finish().filter(|line| is_wanted(line, rules.only)) {
                    write_line(out, prefix, &line, rules.colours);
                }
            }
        }
        left_out > 0
    }
}

impl Unfinished {
    fn feed(&mut self, bytes: &[u8], rules: TextRules<'_>, out: &mut Vec<u8>) {
        match self {
            Self::None => out.extend_from_slice(bytes),
            Self::Raw(text) => text.extend_from_slice(bytes),
            Self::Line(prefix, lines) => lines.feed(bytes, |line| {
                if is_wanted(line, rules.only) {
                    write_line(out, prefix, line, rules.colours);
                }
            }),
        }
    }

    /// Whether it holds an unfinished line; copies what it need not hold.
    fn holds(&mut self, rules: TextRules<'_>, out: &mut Vec<u8>) -> bool {
        match self {
            Self::None => false,
            Self::Raw(text) => {
                let held = if rules.shared { unfinished_line(text) } else { 0 };
                out.extend(text.drain(..text.len() - held));
                held > 0
            }
            Self::Line(_, lines) => lines.is_holding() && rules.only.is_empty(),
        }
    }
}

/// The length of the line at the end of a text, unless it is shown at once: a progress bar, which moves the cursor, or a very
/// long one.
fn unfinished_line(text: &[u8]) -> usize {
    let line = text.rsplit(|byte| *byte == b'\n').next().unwrap_or_default();
    if line.len() > LONGEST || line.iter().any(|byte| matches!(byte, b'\r' | 0x1b)) { 0 } else { line.len() }
}

/// Whether a line contains one of these texts, or there are none.
fn is_wanted(line: &[u8], only: &[Vec<u8>]) -> bool {
    only.is_empty() || only.iter().any(|text| text.is_empty() || line.windows(text.len()).any(|part| part == text))
}
