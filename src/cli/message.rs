//! What the launcher itself says: on stderr, and never waiting long for whoever reads it. Log lines
//! have the form of the launcher that is stood in for, which users' scripts match on.

use crate::sys::clock;
use crate::sys::console::Console;
use std::fmt;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

/// How long a pipe that nobody empties is waited for: once, then no more.
const PATIENCE: Duration = Duration::from_secs(1);

static STUCK: AtomicBool = AtomicBool::new(false);

/// Writes to stderr. What does not go is dropped: a job neither waits nor fails for its last words.
pub fn to_stderr(bytes: &[u8]) {
    write(2, bytes);
}

/// Writes to stdout in the same way: for notices, not for what was asked for.
pub fn to_stdout(bytes: &[u8]) {
    write(1, bytes);
}

fn write(fd: i32, bytes: &[u8]) {
    let patience = if STUCK.load(Ordering::Relaxed) { Duration::ZERO } else { PATIENCE };
    if let Ok(console) = Console::open(fd)
        && !console.write_all(bytes, patience)
    {
        STUCK.store(true, Ordering::Relaxed);
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

/// How a log line looks.
enum Form {
    /// `LAUNCH LEVEL time text`.
    Paddle,
    /// `W1121 02:08:43.498000 PID rlaunch] text`, each line of a text of several.
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

impl<S, N> FormatEvent<S, N> for Form
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
            Form::Paddle => writeln!(out, "LAUNCH {level} {} {}", clock::local_timestamp(), text.0),
            Form::Torch => {
                let head = format!("{}{} {}", &level[..1], clock::local_timestamp_as_glog(), std::process::id());
                text.0.split('\n').try_for_each(|line| writeln!(out, "{head} rlaunch] {line}"))
            }
        }
    }
}

/// Runs `body` with log lines in the form of Paddle's launcher going to stderr from `level` on (`DEBUG` to `CRITICAL`;
/// the launcher has nothing to say above ERROR, so CRITICAL keeps it quiet).
pub fn with_messages<T>(level: &str, body: impl FnOnce() -> T) -> T {
    with(Form::Paddle, level, body)
}

/// The same in torch's form.
pub fn with_torch_messages<T>(level: &str, body: impl FnOnce() -> T) -> T {
    with(Form::Torch, level, body)
}

fn with<T>(form: Form, level: &str, body: impl FnOnce() -> T) -> T {
    let least = match level {
        "DEBUG" => LevelFilter::DEBUG,
        "INFO" => LevelFilter::INFO,
        "WARNING" => LevelFilter::WARN,
        "ERROR" => LevelFilter::ERROR,
        _ => LevelFilter::OFF,
    };
    let subscriber = tracing_subscriber::fmt().event_format(form).with_writer(|| Stderr).with_max_level(least);
    tracing::subscriber::with_default(subscriber.finish(), body)
}
