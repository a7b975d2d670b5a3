//! What killed a rank, by the end of the stderr of a script that nobody has changed.

use super::fault::{Fault, Kind};
use super::native::{self, Crash};
use super::tail::plain_lines;
use super::traceback::{self, Fate, Raised, without_rank};
use crate::model::Exit;

/// What a rank died of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blame {
    /// What kind of end it was.
    pub kind: Kind,
    /// The error: of a chain of exceptions the last one, which was raised.
    pub fault: Fault,
    /// What came first: the root of a chain, the exception before an abort, the assertion that failed
    /// on a GPU.
    pub root: Option<Fault>,
}

/// Reads the end of a rank's stderr, in the light of how it ended; `None` when it says nothing that would
/// explain that. Any bytes will do; the time it takes grows linearly with them.
pub fn blame(stderr: &[u8], exit: Exit) -> Option<Blame> {
    if exit.is_success() {
        return None;
    }
    let text = plain_lines(stderr);
    let lines: Vec<&str> = text.iter().map(|l| without_rank(l)).collect();
    let crashes = native::find(&lines);
    let mut stops = vec![false; lines.len()];
    for crash in crashes.iter().filter(|c| !traceback::is_summary(lines[c.line])) {
        stops[crash.line] = true;
    }
    let raised = traceback::find(&lines, &stops);
    let last_word = lines.iter().rposition(|l| !l.is_empty()).unwrap_or(0);

    let exceptions = raised.iter().map(|r| (weight_of_exception(r, exit, last_word), r.lines.start, Found::Raised(r)));
    let natives = crashes.iter().map(|c| (weight_of_crash(c, exit), c.line, Found::Crash(c)));
    let (_, at, found) =
        exceptions.chain(natives).filter(|(weight, ..)| *weight > 0).max_by_key(|(weight, at, _)| (*weight, *at))?;
    Some(match found {
        Found::Raised(raised) => {
            let kind = kind(&raised.fault);
            let assertion = || crashes.iter().find(|c| c.kind == Kind::DeviceAssert).map(|c| c.fault.clone());
            let root = if kind == Kind::DeviceAssert { assertion() } else { None };
            Blame { kind, fault: raised.fault.clone(), root: root.or_else(|| raised.root.clone()) }
        }
        Found::Crash(crash) => {
            let told = |r: &&Raised| crash.kind != Kind::Message && r.fate == Fate::Raised && r.lines.end <= at;
            let before = raised.iter().rfind(told);
            Blame { kind: crash.kind, fault: crash.fault.clone(), root: before.map(|r| r.fault.clone()) }
        }
    })
}

enum Found<'a> {
    Raised(&'a Raised),
    Crash(&'a Crash),
}

/// Whether a signal ended it, or a shell says that one ended its child.
fn by_signal(exit: Exit) -> bool {
    matches!(exit, Exit::Signal(_) | Exit::Code(129..=192))
}

/// An exception ends Python with a code (a KeyboardInterrupt with SIGINT); before a signal it counts only
/// as the last word, because programs log exceptions that they handle.
fn weight_of_exception(raised: &Raised, exit: Exit, last_word: usize) -> u8 {
    let last = raised.lines.end > last_word;
    match (raised.fate, by_signal(exit) && exit.shell_status() != 130) {
        (Fate::Ignored, _) => 0,
        (Fate::InThread, signal) => u8::from(!signal || last),
        (Fate::Raised, false) => 5,
        (Fate::Raised, true) => {
            if last {
                2
            } else {
                0
            }
        }
    }
}

fn weight_of_crash(crash: &Crash, exit: Exit) -> u8 {
    match (crash.kind, exit) {
        (Kind::Panic, Exit::Code(101)) | (Kind::Message, Exit::Code(2 | 126 | 127)) => 6,
        (Kind::DeviceAssert | Kind::Message, _) => 3,
        _ if crash.echo => 3,
        _ => 4,
    }
}

/// What kind of trouble an exception tells of.
fn kind(fault: &Fault) -> Kind {
    let (what, text) = (fault.what.as_str(), fault.text.as_str());
    let full = what.ends_with("OutOfMemoryError")
        || text.contains("ResourceExhaustedError")
        || text.contains("CUDA out of memory")
        || text.contains("Out of memory error on GPU")
        || (text.contains("CUDA error") && text.contains("out of memory"));
    match fault {
        _ if text.contains("device-side assert") => Kind::DeviceAssert,
        _ if full => Kind::DeviceMemory,
        _ => Kind::Exception,
    }
}
