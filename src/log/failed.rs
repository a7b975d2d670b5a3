//! The last block on stderr of a job in torchrun's words that has failed: torchelastic's report of it, which tools and
//! people look for, with what it leaves out (the last lines, the log, what became of the others).

use super::escape::plain;
use super::tail::Tail;
use super::verdict::{Culprit, Verdict, aftermath};
use super::wording::lasted;
use crate::model::Exit;
use crate::model::exit::signal_name;

/// No border is longer.
const WIDEST: usize = 60;

/// What torchelastic says where nobody knows more.
const NO_TRACEBACK: &str = "To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html";

/// A worker that failed of itself.
#[derive(Clone, Debug, PartialEq)]
pub struct Failure {
    /// Its number in the job.
    pub rank: usize,
    /// Its number on its node.
    pub local_rank: usize,
    /// Its process, while it lived.
    pub pid: u32,
    /// How it ended.
    pub exit: Exit,
    /// When, in local time: `2026-11-21_02:34:16`.
    pub time: String,
    /// The file in which it said what it died of, if it did, and what it said.
    pub said: Option<(String, String)>,
}

/// The report. `title`: what the job is called; `root`: who failed first, `culprit` the same as the verdict has it;
/// `others`: who failed beside it and not because of the launcher, in any order.
pub fn report(
    title: &str,
    host: &str,
    (root, culprit): (&Failure, &Culprit),
    others: &[Failure],
    verdict: &Verdict,
) -> String {
    let title = format!("{} FAILED", plain(title.as_bytes()));
    let mut first = failure(0, host, root, Some(culprit));
    first.extend(known(culprit));
    let others: Vec<String> =
        others.iter().enumerate().flat_map(|(index, other)| failure(index + 1, host, other, None)).collect();
    let others = if others.is_empty() { vec!["  <NO_OTHER_FAILURES>".to_owned()] } else { others };
    let lines = || std::iter::once(&title).chain(&first).chain(&others);
    let width = lines().map(|line| line.chars().count()).max().unwrap_or(0).min(WIDEST);
    let (border, section) = ("=".repeat(width), "-".repeat(width));
    let mut text = format!("\n{border}\n{title}\n{section}\nFailures:\n{}\n", others.join("\n"));
    text += &format!("{section}\nRoot Cause (first observed failure):\n{}\n", first.join("\n"));
    text += &format!("{section}\n{}{border}\n", aftermath(verdict));
    text
}

fn failure(index: usize, host: &str, failure: &Failure, culprit: Option<&Culprit>) -> Vec<String> {
    let Failure { rank, local_rank, pid, exit, time, said } = failure;
    let signal = match exit {
        Exit::Signal(number) => signal_name(*number).map_or(String::new(), |name| format!(" ({name})")),
        _ => String::new(),
    };
    let (file, text) = match said {
        Some((file, text)) => (plain(file.as_bytes()), indented(text.lines())),
        None => ("<N/A>".to_owned(), unsaid(*exit, *pid, culprit)),
    };
    let code = exit.returncode();
    vec![
        format!("[{index}]:"),
        format!("  time      : {time}"),
        format!("  host      : {}", plain(host.as_bytes())),
        format!("  rank      : {rank} (local_rank: {local_rank})"),
        format!("  exitcode  : {code} (pid: {pid}) {signal}"),
        format!("  error_file: {file}"),
        format!("  traceback : {text}"),
    ]
}

/// What is known of the end of a worker that said nothing in a file: its traceback on stderr, or the signal.
fn unsaid(exit: Exit, pid: u32, culprit: Option<&Culprit>) -> String {
    if let Exit::Signal(number) = exit {
        return format!("Signal {number} ({}) received by PID {pid}", signal_name(number).unwrap_or("<N/A>"));
    }
    match culprit {
        Some(Culprit { tail: Tail { lines, .. }, .. }) if !lines.is_empty() => {
            indented(lines.iter().map(String::as_str))
        }
        _ => NO_TRACEBACK.to_owned(),
    }
}

fn indented<'a>(lines: impl Iterator<Item = &'a str>) -> String {
    lines.map(|line| plain(line.as_bytes()).trim_end().to_owned()).collect::<Vec<_>>().join("\n  ")
}

/// What the verdict knows beyond torchelastic's fields, in more of the same form.
fn known(culprit: &Culprit) -> Vec<String> {
    let mut lines = Vec::new();
    let mut field = |name: &str, value: String| lines.push(format!("  {name:<10}: {value}"));
    if let Some(blame) = &culprit.blame {
        field("exception", indented(blame.fault.to_string().lines()));
        if let Some(place) = &blame.fault.place {
            field("at", plain(place.to_string().as_bytes()));
        }
    }
    if let Some(who) = culprit.lost_peer {
        field(
            "peer",
            format!("it lost its connection to a dead peer ({}): look for the cause on another node", who.name()),
        );
    }
    if let Some(explanation) = &culprit.explanation {
        field("cause", indented(explanation.lines()));
    }
    if matches!(culprit.exit, Exit::Signal(_)) && !culprit.tail.lines.is_empty() {
        field("last lines", format!("\n  {}", indented(culprit.tail.lines.iter().map(String::as_str))));
    }
    let attempt = if culprit.attempt > 0 { format!(", in attempt {}", culprit.attempt) } else { String::new() };
    field("lived", format!("{}{attempt}", lasted(culprit.lived)));
    if let Some(log) = &culprit.log {
        field("log_file", plain(log.as_bytes()));
    }
    lines
}
