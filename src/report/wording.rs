//! Numbers, durations, exit statuses and sentences for people.

use crate::model::exit::signal_label;
use crate::model::{Exit, ProcessLabel, Role};
use std::time::Duration;

/// Columns that the launcher's own sentences keep to.
pub(crate) const COLUMNS: usize = 80;
/// Ranges that a list of ranks names before it counts the rest.
const LONGEST_LIST: usize = 12;

/// `rank 3`, `ranks 1-6, 8`, `ranks 1-6, 8 and server 0`.
pub(crate) fn named(all: &[ProcessLabel]) -> String {
    let roles: Vec<String> = ProcessLabel::by_role(all).iter().map(|(role, numbers)| ranges(*role, numbers)).collect();
    match roles.split_last() {
        Some((last, first)) if !first.is_empty() => format!("{} and {last}", first.join(", ")),
        _ => roles.concat(),
    }
}

/// The role and the numbers, in order.
fn ranges(role: Role, numbers: &[usize]) -> String {
    let mut pieces: Vec<(usize, usize)> = Vec::new();
    for &rank in numbers {
        match pieces.last_mut() {
            Some((_, last)) if *last + 1 == rank => *last = rank,
            _ => pieces.push((rank, rank)),
        }
    }
    let named = &pieces[..pieces.len().min(LONGEST_LIST)];
    let more = pieces[named.len()..].iter().map(|(first, last)| last - first + 1).sum::<usize>();
    let text = named.iter().map(|&(first, last)| match last - first {
        0 => first.to_string(),
        1 => format!("{first}, {last}"),
        _ => format!("{first}-{last}"),
    });
    let text = text.collect::<Vec<_>>().join(", ");
    let plural = if numbers.len() == 1 { "" } else { "s" };
    if more == 0 { format!("{role}{plural} {text}") } else { format!("{role}{plural} {text} and {more} more") }
}

/// `1 process`, `4 processes`: a number and its noun.
pub(crate) fn counted(count: usize, one: &str, many: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { many })
}

/// `230 ms`, `12.3 s`, `3 min 12 s`, `5 h 2 min`, `2 d 1 h`.
pub(crate) fn lasted(time: Duration) -> String {
    let seconds = time.as_secs();
    match seconds {
        0 => format!("{} ms", time.as_millis()),
        1..60 => format!("{seconds}.{} s", time.subsec_millis() / 100),
        60..3600 => format!("{} min {} s", seconds / 60, seconds % 60),
        3600..86_400 => format!("{} h {} min", seconds / 3600, seconds / 60 % 60),
        _ => format!("{} d {} h", seconds / 86_400, seconds / 3600 % 24),
    }
}

/// `999 B`, `1.5 KB`, `10 MB`: two or three digits.
pub(crate) fn sized(bytes: u64) -> String {
    let units = ["B", "KB", "MB", "GB", "TB"];
    let (mut value, mut unit) = (bytes as f64, 0);
    while value >= 1000.0 && unit + 1 < units.len() {
        (value, unit) = (value / 1024.0, unit + 1);
    }
    if value < 10.0 && unit > 0 { format!("{value:.1} {}", units[unit]) } else { format!("{value:.0} {}", units[unit]) }
}

/// How a process ended, with what its signal usually means.
pub(crate) fn ended(exit: Exit) -> String {
    match exit {
        Exit::Signal(signal) => match meaning(signal) {
            Some(meaning) => format!("{exit} ({meaning})"),
            None => exit.to_string(),
        },
        // A shell's exit status for a child that a signal ended.
        Exit::Code(code @ 129..=192) => format!("{exit} (128 + {}: {})", code - 128, signal_label(code - 128)),
        Exit::Code(126) => format!("{exit} (found, but cannot be run)"),
        Exit::Code(127) => format!("{exit} (command not found)"),
        _ => exit.to_string(),
    }
}

/// The usual meaning of a signal that the launcher did not send.
fn meaning(signal: i32) -> Option<&'static str> {
    Some(match signal {
        libc::SIGHUP => "its terminal was closed",
        libc::SIGINT => "interrupted",
        libc::SIGILL => "an instruction this CPU does not have",
        libc::SIGTRAP => "a trap or breakpoint",
        libc::SIGABRT => "it called abort()",
        libc::SIGBUS => "bad memory access, often a full /dev/shm",
        libc::SIGFPE => "arithmetic error, as integer division by zero",
        libc::SIGKILL => "not sent by rlaunch",
        libc::SIGSEGV => "invalid memory access",
        libc::SIGPIPE => "it wrote to a closed pipe",
        libc::SIGTERM => "sent by another process",
        libc::SIGXCPU => "CPU time limit reached",
        libc::SIGXFSZ => "file size limit reached",
        libc::SIGSYS => "a forbidden system call",
        _ => return None,
    })
}

/// `text` wrapped at [`COLUMNS`], each line with `indent`. A longer word gets a line of its own.
pub(crate) fn wrapped(indent: &str, text: &str) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    let mut columns = 0;
    for word in text.split_whitespace() {
        let width = word.chars().count();
        match lines.last_mut() {
            Some(line) if columns + 1 + width <= COLUMNS => {
                line.push(' ');
                line.push_str(word);
                columns += 1 + width;
            }
            _ => {
                // Continuation lines are indented by two more columns.
                let further = if lines.is_empty() { "" } else { "  " };
                columns = indent.len() + further.len() + width;
                lines.push(format!("{indent}{further}{word}"));
            }
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_two_or_three_digits() {
        let shown = [0, 999, 1000, 1536, 10 << 20, 3 << 30, 2 << 40].map(sized);
        assert_eq!(shown, ["0 B", "999 B", "1.0 KB", "1.5 KB", "10 MB", "3.0 GB", "2.0 TB"]);
    }
}
