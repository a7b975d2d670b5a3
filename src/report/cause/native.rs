//! Crashes without a Python exception: the interpreter, the C library, C++, Rust, Paddle, device assertions, shells.

use crate::report::cause::fault::{CodeLocation, FaultKind, RankFault, place};
use crate::report::cause::traceback::{is_native_header, is_rule, is_summary, is_users};

/// The most lines after a head that can belong to it.
const LONGEST_TEXT: usize = 10;
const LONGEST_DUMP: usize = 100;
/// Texts of shells for the signals that end a child.
const SIGNALS: [&str; 6] =
    ["Killed", "Segmentation fault", "Aborted", "Bus error", "Illegal instruction", "Floating point exception"];
const UNRUNNABLE: [&str; 3] = [": not found", ": No such file or directory", ": Permission denied"];

/// A crash found in a text.
#[derive(Clone, Debug)]
pub(crate) struct Crash {
    pub kind: FaultKind,
    pub fault: RankFault,
    pub line: usize,
    /// It names the signal, not the cause.
    pub echo: bool,
}

/// All crashes, in their order.
pub(crate) fn find(lines: &[&str]) -> Vec<Crash> {
    let mut usage = false;
    let mut found = Vec::new();
    for (at, line) in lines.iter().enumerate() {
        usage |= line.starts_with("usage: ");
        let ahead = &lines[at + 1..];
        let crash = interpreter(line, ahead)
            .or_else(|| panic_of(line, ahead))
            .or_else(|| terminate(line, ahead))
            .or_else(|| libc(line))
            .or_else(|| assertion(line))
            .or_else(|| paddle(line, ahead))
            .or_else(|| message(line, usage));
        found.extend(crash.map(|(kind, fault, echo)| Crash { kind, fault, line: at, echo }));
    }
    found
}

type Found = Option<(FaultKind, RankFault, bool)>;

fn fault(what: &str, text: impl Into<String>, place: Option<CodeLocation>) -> RankFault {
    RankFault { what: what.to_owned(), text: text.into(), place }
}

/// Lines up to a blank one or one that `ends` it.
fn until(lines: &[&str], ends: impl Fn(&str) -> bool) -> String {
    let text = lines.iter().take(LONGEST_TEXT).take_while(|l| !l.trim().is_empty() && !ends(l));
    text.map(|l| l.trim_end()).collect::<Vec<_>>().join("\n")
}

fn interpreter(line: &str, ahead: &[&str]) -> Found {
    let text = line.strip_prefix("Fatal Python error: ")?;
    // faulthandler: the current thread's frames, innermost first.
    let dump = ahead.iter().take(LONGEST_DUMP).skip_while(|l| !l.starts_with("Current thread "));
    let mut frames = dump.skip(1).map_while(|l| {
        let (file, rest) = l.strip_prefix("  File \"")?.split_once("\", line ")?;
        let (number, function) = rest.split_once(" in ")?;
        Some(CodeLocation { file: file.to_owned(), line: number.parse().ok()?, function: Some(function.to_owned()) })
    });
    let first = frames.next();
    let users = |p: &CodeLocation| is_users(&p.file);
    let place = if first.as_ref().is_some_and(users) { first } else { frames.find(users).or(first) };
    Some((FaultKind::Interpreter, fault("Fatal Python error", text, place), text.starts_with("Aborted")))
}

fn panic_of(line: &str, ahead: &[&str]) -> Found {
    let (_, rest) = line.strip_prefix("thread '")?.split_once("panicked at ")?;
    if let Some(at) = rest.strip_suffix(':') {
        let text = until(ahead, |l| l.starts_with("note: ") || l.starts_with("stack backtrace:"));
        return Some((FaultKind::Panic, fault("Rust panic", text, place(at)), false));
    }
    // Before Rust 1.73 the message stood first, in quotes.
    let (text, at) = rest.rsplit_once(", ").unwrap_or((rest, ""));
    Some((FaultKind::Panic, fault("Rust panic", text.trim_matches('\''), place(at)), false))
}

fn terminate(line: &str, ahead: &[&str]) -> Found {
    if let Some(what) = line.strip_prefix("terminate called after throwing an instance of '") {
        let says = ahead.first().and_then(|l| l.trim_start().strip_prefix("what():")).map(str::trim);
        let more = until(ahead.get(1..).unwrap_or_default(), |l| {
            ["Fatal Python", "Exception raised from", "Aborted", "frame #"].iter().any(|s| l.starts_with(s))
        });
        let text = match (says, more.as_str()) {
            (None, _) => String::new(),
            (Some(says), "") => says.to_owned(),
            (Some(says), more) => format!("{says}\n{more}"),
        };
        return Some((FaultKind::Terminate, fault(what.trim_end_matches('\''), text, None), false));
    }
    let text = line.strip_prefix("libc++abi: terminating ").or_else(|| line.strip_prefix("terminate called "))?;
    Some((FaultKind::Terminate, fault("std::terminate", text, None), false))
}

fn libc(line: &str) -> Found {
    let heads = [
        "malloc(): ",
        "malloc_consolidate(): ",
        "calloc(): ",
        "realloc(): ",
        "free(): ",
        "munmap_chunk(): ",
        "double free or corruption",
        "corrupted size vs. prev_size",
        "corrupted double-linked list",
        "*** stack smashing detected ***",
        "*** buffer overflow detected ***",
        "*** Error in `",
    ];
    let text = line.trim_end();
    heads.iter().any(|h| text.starts_with(h)).then(|| (FaultKind::Abort, fault("glibc", text, None), false))
}

/// `program: file.c:3: function: Assertion ...`, or the same from a kernel on a GPU with its block and
/// thread: both quote what failed.
fn assertion(line: &str) -> Found {
    let line = line.trim_end();
    let (before, after) = line.split_once("Assertion `")?;
    let text = after.strip_suffix(" failed.")?.trim_end_matches(['`', '\'']);
    if before.contains("thread: [") {
        let at = before.split(": ").next().and_then(place);
        return Some((FaultKind::DeviceAssert, fault("assertion on the GPU", text, at), false));
    }
    let at = before.split(": ").find_map(place);
    Some((FaultKind::Abort, fault("assertion failed", text, at), false))
}

fn paddle(line: &str, ahead: &[&str]) -> Found {
    if !is_summary(line) {
        return None;
    }
    let ahead = ahead.get(usize::from(ahead.first().is_some_and(|l| is_rule(l)))..).unwrap_or_default();
    let (what, text) = ahead.first()?.split_once(": ")?;
    // Paddle's answer to SIGTERM, by which rlaunch stops ranks: no reason.
    if text.starts_with("`Termination signal`") {
        return None;
    }
    let more = until(&ahead[1..], |l| is_native_header(l) || is_rule(l) || l.trim_start().starts_with("[TimeInfo"));
    let text = if more.is_empty() { text.to_owned() } else { format!("{text}\n{more}") };
    let echo = what == "FatalError";
    let kind = if what == "ResourceExhaustedError" { FaultKind::DeviceMemory } else { FaultKind::Paddle };
    Some((kind, fault(what, text, None), echo))
}

/// A shell's message about a command, or a program's about its command line.
fn message(line: &str, usage: bool) -> Found {
    let line = line.trim_end();
    let echo = SIGNALS.contains(&line.trim_end_matches(" (core dumped)")) || by_shell(line);
    let of_shell = line.contains("sh: ") && UNRUNNABLE.iter().any(|u| line.ends_with(u));
    let refused = of_shell
        || line.ends_with(": command not found")
        || line.starts_with("/usr/bin/env: ")
        || line.contains(": can't open file ")
        || (usage && line.contains(": error: "));
    (echo || refused).then(|| (FaultKind::Message, fault("", line, None), echo))
}

/// `run.sh: line 3:  4711 Killed    python train.py` is how bash puts it.
fn by_shell(line: &str) -> bool {
    let number_and_rest = || {
        let (_, rest) = line.split_once(": line ")?.1.split_once(':')?;
        rest.trim_start().split_once(' ')
    };
    number_and_rest().is_some_and(|(pid, rest)| {
        pid.parse::<u32>().is_ok() && SIGNALS.iter().any(|s| rest.trim_start().starts_with(s))
    })
}
