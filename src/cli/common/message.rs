//! The launcher's own messages: errors, notices and log lines. A reader that is slow never blocks the job for long.
//!
//! Log lines of Paddle's front end have the form of Paddle's launcher, because users' scripts match them. Those of torchrun's have the
//! form of all other messages: of torchrun's lines scripts match the text.

use crate::sys::clock;
use crate::sys::io::console::{Console, MID_LINE};
use std::fmt;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber, warn};
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

/// Time that a write to a full pipe or disk may wait, unless the write before has waited in vain.
const WRITE_TIMEOUT: Duration = Duration::from_secs(1);
/// The same for each write of the final report.
const REPORT_TIMEOUT: Duration = Duration::from_secs(5);

/// Whether the last message was not accepted: the next one does not wait. By stream.
static STUCK: [AtomicBool; 2] = [AtomicBool::new(false), AtomicBool::new(false)];
/// Whether it was accepted in part: the next one begins a new line.
static CUT: [AtomicBool; 2] = [AtomicBool::new(false), AtomicBool::new(false)];
/// When the wait for readers of the final report ends, in milliseconds of `clock::now`; 0: none is written.
static REPORT_UNTIL: AtomicU64 = AtomicU64::new(0);

/// Begins the final report of a job, the last messages, which wait for a slow reader up to `patience` in all.
pub fn begin_final_report(patience: Duration) {
    let until = clock::now().saturating_add(patience).as_millis().max(1);
    REPORT_UNTIL.store(u64::try_from(until).unwrap_or(u64::MAX), Ordering::Relaxed);
}

/// How long the next message may wait.
fn timeout(is_stuck: bool) -> Duration {
    match REPORT_UNTIL.load(Ordering::Relaxed) {
        0 if is_stuck => Duration::ZERO,
        0 => WRITE_TIMEOUT,
        until => Duration::from_millis(until).saturating_sub(clock::now()).min(REPORT_TIMEOUT),
    }
}

/// Writes to stderr. Output that does not fit is dropped: a job neither waits nor fails because of a message.
pub fn to_stderr(bytes: &[u8]) {
    write(2, bytes);
}

/// Writes to stdout in the same way: for notices, not for requested output.
pub fn to_stdout(bytes: &[u8]) {
    write(1, bytes);
}

/// Prints the line that says why the launcher ends.
pub fn print_error(text: &str) {
    to_stderr(format!("rlaunch: error: {text}\n").as_bytes());
}

/// Prints a line on stderr whatever the log level.
pub fn print_notice(line: &str) {
    to_stderr(format!("rlaunch: {line}\n").as_bytes());
}

/// Logs a warning, and prints it on stdout if stderr has not accepted it, as where its disk is full.
pub fn warn_on_either(text: &str) {
    warn!("{text}");
    if STUCK[1].load(Ordering::Relaxed) {
        to_stdout(format!("rlaunch: {text}\n").as_bytes());
    }
}

fn write(fd: i32, bytes: &[u8]) {
    let console = if fd == 1 { Console::open(io::stdout()) } else { Console::open(io::stderr()) };
    let Ok(console) = console else { return };
    let (stuck, cut) = if fd == 1 { (&STUCK[0], &CUT[0]) } else { (&STUCK[1], &CUT[1]) };
    let begins_line =
        (console.is_terminal() && MID_LINE.swap(false, Ordering::Relaxed)) | cut.swap(false, Ordering::Relaxed);
    let bytes = [if begins_line { b"\n" } else { &b""[..] }, bytes].concat();
    let written = console.write_all(&bytes, timeout(stuck.load(Ordering::Relaxed)));
    let is_accepted = written == bytes.len();
    stuck.store(!is_accepted, Ordering::Relaxed);
    cut.store(!is_accepted && (written > 0 || begins_line), Ordering::Relaxed);
    if !is_accepted {
        // Given up: what follows does not wait again.
        REPORT_UNTIL.store(0, Ordering::Relaxed);
    }
}

struct Stderr;

impl io::Write for Stderr {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        to_stderr(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The form of a log line.
enum LogFormat {
    /// `LAUNCH LEVEL time text`.
    Paddle,
    /// `rlaunch: warning: text`, `rlaunch: TIME text`; each line of a text of several.
    Torch,
}

struct Text(String);

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if field.name() == "message" {
            self.0 = format!("{value:?}");
        }
    }
}

impl<S, N> FormatEvent<S, N> for LogFormat
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(&self, _: &FmtContext<'_, S, N>, mut out: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        let level = match *event.metadata().level() {
            Level::ERROR => "ERROR",
            Level::WARN => "WARNING",
            Level::INFO => "INFO",
            _ => "DEBUG",
        };
        let mut text = Text(String::new());
        event.record(&mut text);
        match self {
            LogFormat::Paddle => writeln!(out, "LAUNCH {level} {} {}", clock::local_timestamp(), text.0),
            LogFormat::Torch => {
                let head = match *event.metadata().level() {
                    Level::ERROR => "error:".to_owned(),
                    Level::WARN => "warning:".to_owned(),
                    _ => clock::local_timestamp(),
                };
                text.0.split('\n').try_for_each(|line| writeln!(out, "rlaunch: {head} {line}"))
            }
        }
    }
}

/// Runs `body` with log lines of `level` (`DEBUG` to `CRITICAL`) and above on stderr, in the form of Paddle's launcher.
/// The launcher logs nothing above ERROR, so CRITICAL silences it.
pub fn with_paddle_log<T>(level: &str, body: impl FnOnce() -> T) -> T {
    with_log(LogFormat::Paddle, level, body)
}

/// Log lines in the form of torchrun's front end.
pub fn with_torchrun_log<T>(level: &str, body: impl FnOnce() -> T) -> T {
    with_log(LogFormat::Torch, level, body)
}

fn with_log<T>(format: LogFormat, level: &str, body: impl FnOnce() -> T) -> T {
    let max_level = match level {
        "DEBUG" => LevelFilter::DEBUG,
        "INFO" => LevelFilter::INFO,
        "WARNING" => LevelFilter::WARN,
        "ERROR" => LevelFilter::ERROR,
        _ => LevelFilter::OFF,
    };
    let subscriber = tracing_subscriber::fmt().event_format(format).with_writer(|| Stderr).with_max_level(max_level);
    tracing::subscriber::with_default(subscriber.finish(), body)
}
