//! What a rank's own Python says of the exception that ends it (`rlaunch_rank.py`). Its stderr cannot say so much: programs
//! also print exceptions that they handle.

use crate::report::cause::fault::{CodeLocation, RankFault};
use crate::report::cause::traceback::{ExceptionEffect, RaisedException};
use serde::Deserialize;
use std::time::Duration;

/// Whether an exception that nothing caught ended a rank's main program.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum UncaughtException {
    /// Unknown: the rank is no Python program, or one of an environment without rlaunch.
    #[default]
    Unknown,
    /// None has so far.
    None,
    /// This one did.
    Raised(NotedException),
}

/// The exception that ended a rank's main program, as its Python knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotedException {
    /// Its text is complete.
    pub fault: RankFault,
    /// The file of its innermost frame.
    pub raised_in: Option<String>,
    /// The interpreter, where something could not be imported.
    pub interpreter: Option<String>,
    /// `VIRTUAL_ENV`, if the interpreter is not of it, and something could not be imported.
    pub other_venv: Option<String>,
    /// When it was noted, by the monotonic clock of the machine.
    pub at: Duration,
}

/// The notes of a rank's Python beside the exception that ends its main program.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RankNotes {
    /// The first exception that ended a thread.
    pub thread: Option<ThreadError>,
    /// Where its program called `sys.exit` last, and with which exit status.
    pub exit_call: Option<(i32, CodeLocation)>,
    /// That call is known to have ended its main program.
    pub has_left: bool,
}

/// An exception that ended a thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ThreadError {
    /// The thread's name.
    pub name: String,
    /// The exception.
    pub fault: RankFault,
    /// When it ended, by the monotonic clock of the machine.
    pub at: Duration,
}

impl ThreadError {
    /// Returns true if the thread may be why the rank has been silent since this time: those that wait for it use up first what it had made ready.
    pub fn ended_shortly_before(&self, silent_since: Duration) -> bool {
        const USED_UP_WITHIN: Duration = Duration::from_secs(60);
        self.at.saturating_add(USED_UP_WITHIN) >= silent_since
    }
}

/// The first line, which a rank writes when its Python starts.
const STARTED: &str = "started";

#[derive(Deserialize)]
struct Note {
    what: String,
    text: String,
    file: Option<String>,
    #[serde(default)]
    line: u32,
    function: Option<String>,
    raised_in: Option<String>,
    interpreter: Option<String>,
    other_venv: Option<String>,
    #[serde(default)]
    at_ns: u64,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum SideNote {
    Exit {
        exit: i32,
        file: String,
        line: u32,
        function: String,
        #[serde(default)]
        left: bool,
    },
    Thread {
        thread: String,
        #[serde(flatten)]
        error: Note,
    },
}

/// A process by its id and its start time in clock ticks since boot (proc_pid_stat(5)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessIdentity {
    /// Its process id.
    pub pid: i32,
    /// Its start time.
    pub started: u64,
}

/// Reads the notes of a rank's process: `started`, again for each further program that the process executes, and a line of JSON for
/// an exception that ended a thread, for a call of `sys.exit`, and for the exception that ended the main program. Each line begins
/// with the id and the start time of its writer: what other processes have written does not count. Accepts any bytes.
pub fn parse(note: &[u8], rank: ProcessIdentity) -> (UncaughtException, RankNotes) {
    let text = String::from_utf8_lossy(note);
    let writer = format!("{} {} ", rank.pid, rank.started);
    let mut lines = text.lines().filter_map(|line| line.strip_prefix(&writer));
    let mut notes = RankNotes::default();
    if lines.next() != Some(STARTED) {
        return (UncaughtException::Unknown, notes);
    }
    for line in lines.filter(|line| *line != STARTED) {
        match serde_json::from_str(line) {
            Ok(SideNote::Exit { exit, file, line, function, left }) => {
                notes.has_left = left;
                notes.exit_call = Some((exit, CodeLocation { file, line, function: Some(function) }));
            }
            Ok(SideNote::Thread { thread, error }) => {
                let NotedException { fault, at, .. } = error.into();
                notes.thread.get_or_insert(ThreadError { name: thread, fault, at });
            }
            Err(_) => {
                let main = serde_json::from_str::<Note>(line);
                return (main.map_or(UncaughtException::Unknown, |note| UncaughtException::Raised(note.into())), notes);
            }
        }
    }
    (UncaughtException::None, notes)
}

impl From<Note> for NotedException {
    fn from(note: Note) -> Self {
        let Note { what, text, file, line, function, raised_in, interpreter, other_venv, at_ns } = note;
        let place = file.map(|file| CodeLocation { file, line, function });
        let fault = RankFault { what, text, place };
        Self { fault, raised_in, interpreter, other_venv, at: Duration::from_nanos(at_ns) }
    }
}

impl UncaughtException {
    /// When the exception was noted, if there is one.
    pub fn at(&self) -> Option<Duration> {
        match self {
            Self::Raised(noted) => Some(noted.at),
            Self::Unknown | Self::None => None,
        }
    }

    /// The uncaught one among the printed exceptions; as Python described it if it is not among them.
    pub(crate) fn find_printed(&self, printed: &[RaisedException]) -> Option<RaisedException> {
        let Self::Raised(NotedException { fault, .. }) = self else { return None };
        // It carries the traceback of another one, which says more: of a process that the rank started, of a group's member.
        if fault.text.contains("Traceback (most recent call last)") || fault.what.ends_with("ExceptionGroup") {
            return None;
        }
        let same = printed.iter().rev().find(|one| is_printed_form(&one.fault, fault));
        let mut found = match same {
            Some(printed) => printed.clone(),
            None => RaisedException { fault: fault.clone(), root: None, lines: 0..0, fate: ExceptionEffect::Raised },
        };
        found.fate = ExceptionEffect::Raised;
        // Nothing in the output marks where the message ends.
        found.fault.text = first_lines(&found.fault.text, fault.text.lines().count());
        Some(found)
    }
}

/// Whether a fault in the output is the noted one. Python appends to some first lines when it prints them: `. Did you mean: ...`.
fn is_printed_form(printed: &RankFault, noted: &RankFault) -> bool {
    fn first_line(fault: &RankFault) -> &str {
        fault.text.trim_start().lines().next().unwrap_or_default().trim_end()
    }
    let (printed_line, noted_line) = (first_line(printed), first_line(noted));
    printed.what == noted.what
        && printed_line.starts_with(noted_line)
        && printed_line.is_empty() == noted_line.is_empty()
}

/// The first `count` lines of a text.
pub(crate) fn first_lines(text: &str, count: usize) -> String {
    text.lines().take(count).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_is_read() {
        let place = CodeLocation { file: "t.py".into(), line: 3, function: Some("f".into()) };
        let noted = |place, raised_in, ns| {
            let fault = RankFault { what: "E".into(), text: "a\nb".into(), place };
            UncaughtException::Raised(NotedException {
                fault,
                raised_in,
                interpreter: None,
                other_venv: None,
                at: Duration::from_nanos(ns),
            })
        };
        let rank = ProcessIdentity { pid: 7, started: 99 };
        let whole = r#"{"what": "E", "text": "a\nb", "file": "t.py", "line": 3, "function": "f", "raised_in": "lib.py", "at_ns": 7}"#;
        let short = r#"{"what": "E", "text": "a\nb", "file": null}"#;
        let raised = noted(Some(place), Some("lib.py".into()), 7);
        for (note, wanted) in [
            (String::new(), UncaughtException::Unknown),
            ("\u{fffd}\n".into(), UncaughtException::Unknown),
            ("7 99 started\n".into(), UncaughtException::None),
            ("7 99 started\n7 99 started\n".into(), UncaughtException::None),
            ("7 99 started\n7 99 {\"what\": 1}\n".into(), UncaughtException::Unknown),
            ("7 99 started\n7 99 {\"what\": \"E\", \"text\"".into(), UncaughtException::Unknown),
            (format!("7 99 started\n7 99 {short}\n"), noted(None, None, 0)),
            (format!("7 99 started\n7 99 {whole}\n"), raised.clone()),
            // Another process, one that had the same number before, and one that does not say which it is.
            (format!("7 99 started\n8 99 started\n8 99 {whole}\n"), UncaughtException::None),
            (format!("7 98 started\n7 98 {whole}\n7 99 started\n"), UncaughtException::None),
            (format!("started\n7 99 started\n{whole}\n"), UncaughtException::None),
            (format!("8 99 started\n8 99 {short}\n7 99 started\n7 99 {whole}\n"), raised),
            (format!("8 99 started\n8 99 {whole}\n"), UncaughtException::Unknown),
        ] {
            assert_eq!(parse(note.as_bytes(), rank), (wanted, RankNotes::default()), "{note:?}");
        }
        assert_eq!(parse(b"\xff\n", rank).0, UncaughtException::Unknown);
    }

    #[test]
    fn a_thread_that_ended_long_before_a_silence_is_no_reason_for_it() {
        let ended = |seconds| ThreadError {
            name: "loader".into(),
            fault: RankFault::default(),
            at: Duration::from_secs(seconds),
        };
        let reasons =
            [100, 3_539, 3_540, 3_600, 4_000].map(|at| ended(at).ended_shortly_before(Duration::from_secs(3_600)));
        assert_eq!(reasons, [false, false, true, true, true]);
    }

    #[test]
    fn a_thread_and_a_call_of_exit_are_noted_beside() {
        let rank = ProcessIdentity { pid: 7, started: 99 };
        let note = concat!(
            "7 99 started\n",
            r#"7 99 {"thread": "loader", "what": "E", "text": "a", "file": "t.py", "line": 3, "function": "f", "at_ns": 7}"#,
            "\n",
            r#"7 99 {"exit": 3, "file": "t.py", "line": 9, "function": "main"}"#,
            "\n",
        );
        let (main, notes) = parse(note.as_bytes(), rank);
        assert_eq!(main, UncaughtException::None);
        let place = |line, function: &str| CodeLocation { file: "t.py".into(), line, function: Some(function.into()) };
        assert_eq!(notes.exit_call, Some((3, place(9, "main"))));
        let fault = RankFault { what: "E".into(), text: "a".into(), place: Some(place(3, "f")) };
        assert_eq!(notes.thread, Some(ThreadError { name: "loader".into(), fault, at: Duration::from_nanos(7) }));
        let whole = [note, "7 99 {\"what\": \"E\", \"text\": \"b\"}\n"].concat();
        assert!(matches!(parse(whole.as_bytes(), rank).0, UncaughtException::Raised(noted) if noted.fault.text == "b"));
    }
}
