//! Python tracebacks in a text: chained ones, exception groups, SyntaxErrors without a header.

use crate::report::cause::fault::{CodeLocation, RankFault};
use std::ops::Range;

pub(crate) const HEADER: &str = "Traceback (most recent call last):";
const GROUP: &str = "+ Exception Group Traceback (most recent call last):";
pub(crate) const CHAINS: [&str; 2] = [
    "During handling of the above exception, another exception occurred:",
    "The above exception was the direct cause of the following exception:",
];
/// An exception's text is cut after this many lines, because nothing marks where later output begins.
const LONGEST_TEXT: usize = 20;

/// The effect of the exception on the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ExceptionEffect {
    Raised,
    /// It ended a thread only.
    InThread,
    /// Python printed that it ignores it.
    Ignored,
}

/// A printed exception.
#[derive(Clone, Debug)]
pub(crate) struct RaisedException {
    pub fault: RankFault,
    /// The first exception of its chain.
    pub root: Option<RankFault>,
    pub lines: Range<usize>,
    pub fate: ExceptionEffect,
}

/// All tracebacks in `lines`, in their order. `stops`: lines at which an exception's text ends in any case.
pub(crate) fn find(lines: &[&str], stops: &[bool]) -> Vec<RaisedException> {
    let mut found: Vec<RaisedException> = Vec::new();
    let mut fate = ExceptionEffect::Raised;
    let mut chained = false;
    let mut at = 0;
    while at < lines.len() {
        let line = lines[at];
        let start = at;
        let (fault, end) = if line.trim_start() == GROUP {
            group(lines, at + 1, stops)
        } else if line.ends_with(HEADER) && !line.ends_with("C++ Traceback (most recent call last):") {
            read(lines, at + 1, stops)
        } else if begins_without_header(lines, at) {
            read(lines, at, stops)
        } else {
            match line {
                _ if line.starts_with("Exception ignored ") => fate = ExceptionEffect::Ignored,
                _ if line.starts_with("Exception in thread ") => fate = ExceptionEffect::InThread,
                _ if CHAINS.contains(&line) => chained = true,
                _ => {}
            }
            (None, at + 1)
        };
        if let Some(fault) = fault {
            let before = if chained { found.pop() } else { None };
            let (root, fate_before) = before.map_or((None, fate), |b| (b.root.or(Some(b.fault)), b.fate));
            found.push(RaisedException { fault, root, lines: start..end, fate: fate_before });
            (fate, chained) = (ExceptionEffect::Raised, false);
        }
        at = end;
    }
    found
}

/// The line at which the last traceback in `lines` begins, with the exceptions that it is chained to. A traceback that an
/// exception's message quotes (`Original Traceback`, of a worker of torch's DataLoader) is part of that message.
pub(crate) fn last_begin(lines: &[String]) -> Option<usize> {
    let line = |at: usize| without_rank(&lines[at]);
    let begins = |at: &usize| line(*at) == HEADER || line(*at).trim_start() == GROUP;
    let is_chained = |at: usize| {
        (0..at).rev().find(|before| !line(*before).is_empty()).is_some_and(|before| CHAINS.contains(&line(before)))
    };
    let mut found = None;
    for at in (0..lines.len()).rev().filter(begins) {
        found = Some(at);
        if !is_chained(at) {
            break;
        }
    }
    found
}

/// A SyntaxError of the script itself has no header, and neither has a traceback whose beginning is not in the tail.
fn begins_without_header(lines: &[&str], at: usize) -> bool {
    let Some(place) = frame(lines[at]) else { return false };
    if at == 0 || (at == 1 && lines[0].starts_with("    ")) {
        return true;
    }
    let error = lines[at + 1..].iter().take(4).find(|l| !l.starts_with(' ')).and_then(|l| head(l));
    let names = ["SyntaxError", "IndentationError", "TabError"];
    place.function.is_none() && error.is_some_and(|(what, _)| names.contains(&what))
}

/// Reads frames, then the exception, from `at` on. Returns the exception and the number of the next line.
fn read(lines: &[&str], mut at: usize, stops: &[bool]) -> (Option<RankFault>, usize) {
    let mut place: Option<CodeLocation> = None;
    let mut by_user = false;
    let (what, text) = loop {
        let Some(&line) = lines.get(at) else { return (None, at) };
        if let Some(frame) = frame(line) {
            let user = is_users(&frame.file);
            if user || !by_user {
                place = Some(frame);
                by_user = user;
            }
        } else if line.is_empty() || line == HEADER || stops.get(at) == Some(&true) {
            return (None, at);
        } else if let Some(head) = head(line) {
            break head;
        }
        at += 1;
    };
    let (text, end) = text_of(lines, at, text, stops);
    (Some(RankFault { what: what.to_owned(), text, place }), end)
}

/// The text of the exception whose first line is `at`, and the number of the next line.
fn text_of(lines: &[&str], at: usize, first: &str, stops: &[bool]) -> (String, usize) {
    let mut text: Vec<&str> = Vec::new();
    text.extend((!first.is_empty()).then_some(first));
    let mut end = at + 1;
    let mut native = false;
    while let Some(&line) = lines.get(end) {
        native |= is_native_header(line);
        // Paddle puts its C++ traceback into an exception whose own text is empty.
        let foreign = native && !first.is_empty();
        let over = text.len() >= LONGEST_TEXT && !native;
        if over || foreign || stops.get(end) == Some(&true) || begins_something(line) {
            break;
        }
        if is_summary(line) {
            text.clear();
            native = false;
        } else if !is_rule(line) {
            text.push(line.trim_end());
        }
        end += 1;
    }
    if native {
        text.truncate(LONGEST_TEXT);
    }
    while text.last().is_some_and(|l| l.is_empty() || is_rule(l)) {
        text.pop();
    }
    let blank = text.iter().take_while(|l| l.is_empty()).count();
    (text[blank..].join("\n"), end)
}

/// An exception group, printed with a gutter of `|`: its own exception, then those inside as text. Only the first line
/// of an exception's text has the gutter.
fn group(lines: &[&str], at: usize, stops: &[bool]) -> (Option<RankFault>, usize) {
    let drawn = |line: &str| line.starts_with(' ') && line.trim_start().starts_with(['|', '+']);
    let mut end = at;
    for (i, line) in lines.iter().enumerate().skip(at) {
        let foreign = !drawn(line) && (begins_something(line) || stops.get(i) == Some(&true));
        if i > end + LONGEST_TEXT || foreign || line.trim_start() == GROUP {
            break;
        }
        if drawn(line) {
            end = i + 1;
        }
    }
    let inside = |line: &&str| match line.trim_start() {
        bare if !drawn(line) => Some(bare.to_owned()),
        bare => bare.strip_prefix("| ").or(bare.strip_prefix('|')).map(str::to_owned),
    };
    let inner: Vec<Option<String>> = lines[at..end].iter().map(inside).collect();
    let mut faults = inner.split(Option::is_none).filter_map(|section| {
        let section: Vec<&str> = section.iter().flatten().map(String::as_str).collect();
        read(&section, usize::from(section.first() == Some(&HEADER)), &[]).0
    });
    let own = faults.next().map(|mut own| {
        for fault in faults.take(LONGEST_TEXT) {
            own.text.push('\n');
            own.text.push_str(&fault.to_string());
        }
        own
    });
    (own, end)
}

/// `  File "train.py", line 3, in step`; without `in` for a SyntaxError. The dump of `faulthandler` has no
/// comma there and is none.
fn frame(line: &str) -> Option<CodeLocation> {
    let (file, rest) = line.strip_prefix("  File \"")?.split_once("\", line ")?;
    let (number, function) = match rest.split_once(", in ") {
        Some((number, function)) => (number, Some(function.to_owned())),
        None => (rest, None),
    };
    Some(CodeLocation { file: file.to_owned(), line: number.parse().ok()?, function })
}

/// `ValueError: text`, `a.b.Error`; the type and the text.
fn head(line: &str) -> Option<(&str, &str)> {
    let (what, text) = line.split_once(": ").unwrap_or((line.trim_end_matches(':'), ""));
    let dotted = |part: &str| {
        part == "<locals>"
            || (part.starts_with(|c: char| c.is_alphabetic() || c == '_')
                && part.chars().all(|c| c.is_alphanumeric() || c == '_'))
    };
    what.split('.').all(dotted).then_some((what, text))
}

/// Whether a file is the user's own, judged by its path.
pub(crate) fn is_users(file: &str) -> bool {
    let libraries = ["/site-packages/", "/dist-packages/", "/lib/python3", "/lib64/python3"];
    !file.starts_with("<frozen") && !libraries.iter().any(|l| file.contains(l))
}

/// torch prints the exceptions of its ranks as `[rank3]: text`.
pub(crate) fn without_rank(line: &str) -> &str {
    let Some((number, rest)) = line.strip_prefix("[rank").and_then(|l| l.split_once("]:")) else { return line };
    let rest = rest.strip_prefix(' ').unwrap_or(rest);
    if !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit()) { rest } else { line }
}

/// Whether `line` cannot be part of an exception's text.
fn begins_something(line: &str) -> bool {
    let starts = [
        "Exception ignored ",
        "Exception in thread ",
        "Error in sys.excepthook",
        "Error in atexit",
        "LAUNCH ",
        "wandb: ",
        "  + Exception Group",
    ];
    let glog = |l: &str| matches!(l.as_bytes(), [b'[', b'I' | b'W' | b'E' | b'F', b'0'..=b'9', ..]);
    line.ends_with(HEADER) && !is_native_header(line)
        || CHAINS.contains(&line)
        || starts.iter().any(|s| line.starts_with(s))
        || line.contains("Warning: ")
        || glog(line)
}

/// Whether a line says nothing of the reason: an empty one, a warning of a library, a progress bar.
pub(crate) fn is_noise(line: &str) -> bool {
    line.is_empty() || begins_something(line) || line.contains("%|")
}

/// The first line of Paddle's C++ traceback.
pub(crate) fn is_native_header(line: &str) -> bool {
    line == "C++ Traceback (most recent call last):"
}

/// The line before Paddle's own message.
pub(crate) fn is_summary(line: &str) -> bool {
    line == "Error Message Summary:"
}

/// A line of dashes.
pub(crate) fn is_rule(line: &str) -> bool {
    line.len() >= 4 && line.bytes().all(|b| b == b'-')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_traceback_begins_with_its_chain() {
        let begin = |text: &str| last_begin(&text.lines().map(str::to_owned).collect::<Vec<_>>());
        let one = format!("{HEADER}\n  File \"t.py\", line 1, in f\nE: x\n");
        let quoting = format!("{HEADER}\nOSError: Caught OSError in worker 0.\nOriginal {HEADER}\nOSError: no\n");
        assert_eq!(begin("epoch 1\n"), None);
        assert_eq!(begin(&format!("epoch 1\n{one}later\n")), Some(1));
        assert_eq!(begin(&format!("{one}epoch 1\n{one}")), Some(4));
        assert_eq!(begin(&format!("epoch 1\n{quoting}")), Some(1));
        assert_eq!(begin(&format!("epoch 1\n[rank1]: {HEADER}\n[rank1]: E: x\n")), Some(1));
        for chain in CHAINS {
            assert_eq!(begin(&format!("{one}epoch 1\n{one}\n{chain}\n\n{one}")), Some(4), "{chain}");
        }
    }
}
