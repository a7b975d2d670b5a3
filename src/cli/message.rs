//! What the launcher itself says on stderr: `LAUNCH LEVEL time text`, the form that users' scripts
//! match on.

use crate::sys::clock;
use std::fmt;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

struct Form;

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
        writeln!(out, "LAUNCH {level} {} {}", clock::local_timestamp(), text.0)
    }
}

/// Runs `body` with messages going to stderr from `level` on (`DEBUG` to `CRITICAL`; the launcher
/// has nothing to say above ERROR, so CRITICAL keeps it quiet).
pub fn with_messages<T>(level: &str, body: impl FnOnce() -> T) -> T {
    let least = match level {
        "DEBUG" => tracing_subscriber::filter::LevelFilter::DEBUG,
        "INFO" => tracing_subscriber::filter::LevelFilter::INFO,
        "WARNING" => tracing_subscriber::filter::LevelFilter::WARN,
        "ERROR" => tracing_subscriber::filter::LevelFilter::ERROR,
        _ => tracing_subscriber::filter::LevelFilter::OFF,
    };
    let subscriber =
        tracing_subscriber::fmt().event_format(Form).with_writer(std::io::stderr).with_max_level(least).finish();
    tracing::subscriber::with_default(subscriber, body)
}
