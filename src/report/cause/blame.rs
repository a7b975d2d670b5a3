//! The cause of a rank's failure, read from the end of its stderr. The script needs no change.

use crate::model::Exit;
use crate::report::cause::fault::{FaultKind, RankFault};
use crate::report::cause::lost_peer::lost_peer;
use crate::report::cause::native;
use crate::report::cause::native::Crash;
use crate::report::cause::traceback;
use crate::report::cause::traceback::{ExceptionEffect, RaisedException, without_rank};
use crate::report::cause::uncaught::{UncaughtException, first_lines};
use crate::report::console::tail::plain_lines;

/// The cause of a rank's failure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blame {
    /// The kind of failure.
    pub kind: FaultKind,
    /// The error; of chained exceptions the last one that is no lost connection to a peer, if there is one.
    pub fault: RankFault,
    /// The first error: the root of a chain, the exception before an abort, the failed assertion on a GPU.
    pub root: Option<RankFault>,
    /// The lost connection to a peer that followed, as in the clean-up of a program (`finally: dist.barrier()`).
    pub later: Option<RankFault>,
    /// Why the exception need not be what ended the rank, if that is so.
    pub doubt: Option<Doubt>,
}

/// Why a printed exception need not be what ended the rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Doubt {
    /// It ended a thread. Otherwise the rank's Python says that it was caught.
    pub in_thread: bool,
    /// The last line that the rank printed below the first line of the exception, but for a library's warnings and bars.
    pub last_line: Option<String>,
}

impl Blame {
    /// Why the rank failed, in a line: the error, and the rank's last line where the error need not be the reason.
    pub fn in_a_line(&self) -> String {
        let error = self.fault.in_a_line();
        match self.last_line() {
            Some(line) => format!("{error}; its last line: {}", line.chars().take(300).collect::<String>()),
            None => error,
        }
    }

    /// The rank's last line, where the error need not be the reason.
    pub fn last_line(&self) -> Option<&str> {
        self.doubt.as_ref()?.last_line.as_deref()
    }
}

/// A rank that printed more lines than this after an exception that it caught did not end because of it.
const MOST_LINES_AFTER: usize = 20;

/// Reads the end of a rank's stderr, given its exit status and what its Python noted; `None` if nothing in it explains that
/// status. Accepts any bytes, in linear time.
pub fn blame(stderr: &[u8], exit: Exit, uncaught: &UncaughtException) -> Option<Blame> {
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
    let mut raised = traceback::find(&lines, &stops);
    let all: Vec<RankFault> = raised.iter().map(|r| r.fault.clone()).collect();
    let of_reader = dead_paddle_worker(&lines).or_else(|| errors_of_threads(&raised).pop());
    let is_noted = if let Some(noted) = uncaught.find_printed(&raised) {
        raised = vec![noted];
        true
    } else {
        false
    };
    let was_caught = *uncaught == UncaughtException::None;
    let last_word = lines.iter().rposition(|l| !l.is_empty()).unwrap_or(0);

    let weigh = |raised: &RaisedException| {
        let lines_after = (last_word + 1).saturating_sub(raised.lines.end);
        weight_of_exception(raised, exit, lines_after, (is_noted, was_caught))
    };
    let raised_in = |raised: &RaisedException| match uncaught {
        UncaughtException::Raised(noted) => noted.raised_in.clone(),
        _ => lines[raised.lines.clone()].iter().rev().find_map(|line| {
            let (file, _) = line.trim_start().strip_prefix("File \"")?.split_once('"')?;
            Some(file.to_owned())
        }),
    };
    let exceptions = raised.iter().map(|r| (weigh(r), r.lines.start, Found::Raised(r)));
    let natives = crashes.iter().map(|c| (weight_of_crash(c, exit), c.line, Found::Crash(c)));
    let (_, at, found) =
        exceptions.chain(natives).filter(|(weight, ..)| *weight > 0).max_by_key(|(weight, at, _)| (*weight, *at))?;
    Some(match found {
        Found::Raised(raised) => {
            let kind = match kind(&raised.fault) {
                FaultKind::Exception if is_lost_helper(&raised.fault, raised_in(raised).as_deref()) => {
                    FaultKind::LostHelper
                }
                other => other,
            };
            let assertion = || crashes.iter().find(|c| c.kind == FaultKind::DeviceAssert).map(|c| c.fault.clone());
            let root = if kind == FaultKind::DeviceAssert { assertion() } else { None };
            let root = root.or_else(|| raised.root.clone()).or_else(|| dead_worker_beside(&raised.fault, &all));
            let root = root.map(|root| reader_error_before(&root, of_reader.as_ref()).unwrap_or(root));
            let root = root.or_else(|| reader_error_before(&raised.fault, of_reader.as_ref()));
            let in_thread = raised.fate == ExceptionEffect::InThread;
            let lost = |fault: &RankFault| lost_peer(fault.to_string().as_bytes()).is_some();
            if let Some(first) = root.as_ref().filter(|root| lost(&raised.fault) && !lost(root)) {
                let (fault, later) = (first.clone(), Some(raised.fault.clone()));
                return Some(Blame { kind: self::kind(&fault), fault, root: None, later, doubt: None });
            }
            let mut fault = raised.fault.clone();
            let is_doubtful = (was_caught || in_thread) && lost_peer(fault.text.as_bytes()).is_none();
            if is_doubtful {
                // What follows need not belong to the message.
                fault.text = first_lines(&fault.text, 1);
            }
            let doubt = (was_caught || in_thread).then(|| {
                let below = lines.get(raised.lines.start..).unwrap_or_default().iter().map(|line| line.trim());
                let last_line = below.rev().find(|line| !traceback::is_noise(line)).map(str::to_owned);
                // The message of CUDA's errors has several lines.
                let is_shown = is_doubtful && kind == FaultKind::Exception && !fault.text.contains("CUDA error");
                Doubt { in_thread, last_line: last_line.filter(|line| is_shown && *line != fault.to_string()) }
            });
            Blame { kind, fault, root, later: None, doubt }
        }
        Found::Crash(crash) => {
            let is_shown = |r: &&RaisedException| {
                crash.kind != FaultKind::Message && r.fate == ExceptionEffect::Raised && r.lines.end <= at
            };
            let before = raised.iter().rfind(is_shown);
            // C++ threads that still run when the interpreter exits: the exception that ended it is the cause.
            let is_teardown = |before: &&RaisedException| {
                crash.fault.text.contains("without an active exception") && at - before.lines.end <= 2
            };
            if let Some(before) = before.filter(is_teardown) {
                return Some(Blame {
                    kind: kind(&before.fault),
                    fault: before.fault.clone(),
                    root: before.root.clone(),
                    later: None,
                    doubt: None,
                });
            }
            let root = before.map(|r| r.fault.clone());
            Blame { kind: crash.kind, fault: crash.fault.clone(), root, later: None, doubt: None }
        }
    })
}

/// The last exception in an output that ended otherwise, and how many lines follow it.
pub fn find_logged(stderr: &[u8]) -> Option<(RankFault, usize)> {
    let text = plain_lines(stderr);
    let lines: Vec<&str> = text.iter().map(|l| without_rank(l)).collect();
    let raised = traceback::find(&lines, &vec![false; lines.len()]);
    let logged = raised.into_iter().rfind(|one| one.fate == ExceptionEffect::Raised)?;
    let mut fault = logged.fault;
    // What follows need not belong to the message.
    fault.text = first_lines(&fault.text, 1);
    let message = logged.lines.clone().find(|at| lines[*at].starts_with(&fault.what)).unwrap_or(logged.lines.end);
    Some((fault, lines.iter().skip(message + 1).filter(|line| !line.is_empty()).count()))
}

enum Found<'a> {
    Raised(&'a RaisedException),
    Crash(&'a Crash),
}

/// Whether a signal ended it, or a shell reports that one ended its child. Of SIGINT: Python also ends so by a
/// KeyboardInterrupt.
fn is_by_signal(exit: Exit) -> bool {
    matches!(exit, Exit::Signal(_) | Exit::Code(129..=192)) && exit.shell_status() != 130
}

/// An exception ends Python with a code. Before a signal it counts only as the last output, because programs log exceptions
/// that they handle. `is_noted`, `was_caught`: what the rank's Python says of it.
fn weight_of_exception(
    raised: &RaisedException,
    exit: Exit,
    lines_after: usize,
    (is_noted, was_caught): (bool, bool),
) -> u8 {
    let signal = is_by_signal(exit);
    match raised.fate {
        ExceptionEffect::Ignored => 0,
        ExceptionEffect::Raised if is_noted && !signal => 7,
        ExceptionEffect::Raised if is_noted => 2,
        ExceptionEffect::InThread if lines_after == 0 => 1,
        _ if was_caught && (signal || lines_after > MOST_LINES_AFTER) => 0,
        ExceptionEffect::InThread => u8::from(!signal),
        ExceptionEffect::Raised if !signal => 5,
        ExceptionEffect::Raised => 2 * u8::from(lines_after == 0),
    }
}

fn weight_of_crash(crash: &Crash, exit: Exit) -> u8 {
    match (crash.kind, exit) {
        (FaultKind::Panic, Exit::Code(101)) | (FaultKind::Message, Exit::Code(2 | 126 | 127)) => 6,
        (FaultKind::DeviceAssert | FaultKind::Message, _) => 3,
        _ if crash.echo => 3,
        _ => 4,
    }
}

/// The exception by which torch reports that a worker of a DataLoader died (`_error_if_any_worker_fails` in
/// torch/csrc/DataLoader.cpp), if it is not the error itself: the loss of the connection to the worker may be noticed first.
fn dead_worker_beside(fault: &RankFault, all: &[RankFault]) -> Option<RankFault> {
    let is_it =
        |one: &&RankFault| one.text.starts_with("DataLoader worker (pid ") && one.text.contains("is killed by signal");
    all.iter().find(is_it).filter(|one| *one != fault).cloned()
}

/// The exceptions that ended threads. One of a worker of Paddle's DataLoader is the text of the thread's, with a traceback of
/// its own.
fn errors_of_threads(raised: &[RaisedException]) -> Vec<RankFault> {
    let is_text_of = |before: &RaisedException, one: &RaisedException| {
        before.fate == ExceptionEffect::InThread && before.lines.end == one.lines.start
    };
    let is_of_thread =
        |at: usize| raised[at].fate == ExceptionEffect::InThread || at > 0 && is_text_of(&raised[at - 1], &raised[at]);
    (0..raised.len()).filter(|at| is_of_thread(*at)).map(|at| raised[at].fault.clone()).collect()
}

/// The line by which Paddle's DataLoader says that a worker has died (dataloader_iter.py of Paddle 3.3). A thread logs it, before or
/// after the traceback of the main program.
fn dead_paddle_worker(lines: &[&str]) -> Option<RankFault> {
    let line = lines.iter().rfind(|line| line.contains(" workers exit unexpectedly, pids: "))?;
    let (_, rest) = line.split_once("DataLoader ")?;
    Some(RankFault { what: format!("DataLoader {rest}"), ..RankFault::default() })
}

/// The error in a worker of Paddle's DataLoader behind the one that the rank ends by (blocking_queue.h of Paddle 3.3).
/// `of_reader`: what a thread of the rank has printed of it.
fn reader_error_before(fault: &RankFault, of_reader: Option<&RankFault>) -> Option<RankFault> {
    let is_it = fault.text.contains("Blocking queue is killed because the data reader raises an exception");
    if is_it { of_reader.cloned() } else { None }
}

/// Whether an exception is the loss of a connection of multiprocessing. `raised_in`: the file of its innermost frame.
fn is_lost_helper(fault: &RankFault, raised_in: Option<&str>) -> bool {
    let errors = ["ConnectionResetError", "ConnectionRefusedError", "BrokenPipeError", "EOFError", "FileNotFoundError"];
    errors.contains(&fault.what.as_str())
        && raised_in.is_some_and(|file| {
            // A descriptor that another process shares is received in the second one.
            file.ends_with("multiprocessing/connection.py") || file.ends_with("multiprocessing/reduction.py")
        })
}

/// The kind of failure behind an exception.
fn kind(fault: &RankFault) -> FaultKind {
    let (what, text) = (fault.what.as_str(), fault.text.as_str());
    let full = what.ends_with("OutOfMemoryError")
        || text.contains("ResourceExhaustedError")
        || text.contains("CUDA out of memory")
        || text.contains("Out of memory error on GPU")
        || (text.contains("CUDA error") && text.contains("out of memory"));
    match fault {
        _ if text.contains("device-side assert") => FaultKind::DeviceAssert,
        _ if full => FaultKind::DeviceMemory,
        _ => FaultKind::Exception,
    }
}
