//! The failure report of a torchrun job: torchelastic's report, which tools parse, plus what it leaves out (the last
//! lines, the log, the other workers). At a terminal the additions stand above it, as every front end prints them.

use crate::model::Exit;
use crate::model::exit::signal_name;
use crate::report::cause::blame::Blame;
use crate::report::cause::fault::FaultKind;
use crate::report::cause::traceback::last_begin;
use crate::report::console::escape::plain;
use crate::report::failure_report::{
    Culprit, FailureCause, FailureReport, ReportStyle, aftermath, describe_doubt, describe_lost_peer, head,
};
use crate::report::wording::lasted;

/// The longest border.
const WIDEST: usize = 60;

/// The traceback field of a worker that printed none. (torchelastic: a page on its decorator, which rlaunch does not need.)
const NO_TRACEBACK: &str = "<N/A>";

/// A worker that failed by itself.
#[derive(Clone, Debug, PartialEq)]
pub struct WorkerFailure {
    /// Its rank.
    pub rank: usize,
    /// Its local rank.
    pub local_rank: usize,
    /// Its pid while it lived.
    pub pid: u32,
    /// How it ended.
    pub exit: Exit,
    /// When, in local time: `2026-11-21_02:34:16`.
    pub time: String,
    /// Its error file and the text in it, if it wrote one.
    pub error_file: Option<(String, String)>,
    /// Its error as its stderr has it.
    pub blame: Option<Blame>,
    /// Why the launcher sent it SIGABRT while the others ran, if it did: a sentence.
    pub aborted: Option<String>,
}

/// All that the report says.
pub struct TorchrunReport<'a> {
    /// The job's name.
    pub title: &'a str,
    /// This node's name.
    pub host: &'a str,
    /// The worker that failed first.
    pub root: WorkerFailure,
    /// That worker in the failure report.
    pub culprit: Culprit,
    /// Workers that failed too and were not signalled by the launcher, in any order.
    pub others: Vec<WorkerFailure>,
}

impl TorchrunReport<'_> {
    /// torchelastic's report with the additions in its form.
    pub fn frame(&self, report: &FailureReport) -> String {
        let mut root = failure(0, self.host, &self.root, Some(&self.culprit));
        root.extend(abort_field(&self.root));
        root.extend(known(&self.culprit));
        self.framed(&root, report)
    }

    /// The report for a terminal. `is_above`: the terminal has what the root worker wrote to its stderr.
    pub fn at_terminal(&self, report: &FailureReport, style: ReportStyle, is_above: bool) -> String {
        let mut root = self.root.clone();
        let mut culprit = self.culprit.clone();
        if let (Some(blame), true) = (&culprit.blame, is_above) {
            let text = plain(blame.fault.in_a_line().as_bytes());
            culprit.tail.lines = vec![text.clone()];
            root.error_file = root.error_file.map(|(file, _)| (file, text));
        }
        let mut fields = failure(0, self.host, &root, Some(&culprit));
        fields.extend(last_lines(&culprit).filter(|_| !is_above));
        let outcome = FailureCause::Failed(Box::new(self.culprit.clone()));
        let own = FailureReport { outcome, ..report.clone() };
        format!("\n{}{}", head(&own, style), self.framed(&fields, report))
    }

    fn framed(&self, root: &[String], report: &FailureReport) -> String {
        let title = format!("{} FAILED", plain(self.title.as_bytes()));
        let others = self.others.iter().enumerate();
        let others: Vec<String> =
            others.flat_map(|(index, other)| other_failure(index + 1, self.host, other)).collect();
        let others = if others.is_empty() { vec!["  <NO_OTHER_FAILURES>".to_owned()] } else { others };
        let lines = || std::iter::once(&title).chain(root).chain(&others);
        let width = lines().map(|line| line.chars().count()).max().unwrap_or(0).min(WIDEST);
        let (border, section) = ("=".repeat(width), "-".repeat(width));
        let mut text = format!("\n{border}\n{title}\n{section}\nFailures:\n{}\n", others.join("\n"));
        text += &format!("{section}\nRoot Cause (first observed failure):\n{}\n", root.join("\n"));
        text += &format!("{section}\n{}{border}\n", aftermath(report));
        text
    }
}

fn other_failure(index: usize, host: &str, other: &WorkerFailure) -> Vec<String> {
    let mut lines = failure(index, host, other, None);
    lines.extend(abort_field(other));
    lines.extend(other.blame.iter().flat_map(error_fields));
    lines
}

fn failure(index: usize, host: &str, failure: &WorkerFailure, culprit: Option<&Culprit>) -> Vec<String> {
    let WorkerFailure { rank, local_rank, pid, exit, time, error_file, .. } = failure;
    let signal = match exit {
        Exit::Signal(number) => signal_name(*number).map_or(String::new(), |name| format!(" ({name})")),
        _ => String::new(),
    };
    let (file, text) = match error_file {
        Some((file, text)) => (plain(file.as_bytes()), indented(text.lines())),
        None => ("<N/A>".to_owned(), without_error_file(*exit, *pid, culprit)),
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

/// The traceback field of a worker without an error file: its traceback on stderr, or the signal.
fn without_error_file(exit: Exit, pid: u32, culprit: Option<&Culprit>) -> String {
    if let Exit::Signal(number) = exit {
        return format!("Signal {number} ({}) received by PID {pid}", signal_name(number).unwrap_or("<N/A>"));
    }
    match culprit {
        Some(culprit) if !culprit.tail.lines.is_empty() && has_traceback(culprit) => {
            indented(traceback(&culprit.tail.lines).iter().map(String::as_str))
        }
        _ => NO_TRACEBACK.to_owned(),
    }
}

/// Returns true if the last lines are of an exception, and not of a program that refuses its arguments.
fn has_traceback(culprit: &Culprit) -> bool {
    culprit.blame.as_ref().is_some_and(|blame| blame.kind != FaultKind::Message)
}

/// The last traceback in these lines; all of them if none begins here.
fn traceback(lines: &[String]) -> &[String] {
    &lines[last_begin(lines).unwrap_or(0)..]
}

/// What the traceback field leaves out of a worker's last lines: those before the traceback, or all where there is none.
fn last_lines(culprit: &Culprit) -> Option<String> {
    let lines = &culprit.tail.lines;
    let (name, lines) = if has_traceback(culprit) && !matches!(culprit.exit, Exit::Signal(_)) {
        ("before", &lines[..last_begin(lines).unwrap_or(0)])
    } else {
        ("last lines", &lines[..])
    };
    (!lines.is_empty()).then(|| field(name, &format!("\n  {}", indented(lines.iter().map(String::as_str)))))
}

fn indented<'a>(lines: impl Iterator<Item = &'a str>) -> String {
    lines.map(|line| plain(line.as_bytes()).trim_end().to_owned()).collect::<Vec<_>>().join("\n  ")
}

/// An additional field, in the form of torchelastic's.
fn field(name: &str, value: &str) -> String {
    format!("  {name:<10}: {value}")
}

/// That the launcher ended the worker, and why.
fn abort_field(failure: &WorkerFailure) -> Option<String> {
    failure.aborted.as_ref().map(|why| field("aborted", &plain(why.as_bytes())))
}

/// What stderr says of a worker's error.
fn error_fields(blame: &Blame) -> Vec<String> {
    let mut lines = Vec::new();
    let mut add = |name: &str, value: &str| lines.push(field(name, value));
    if let Some(line) = blame.last_line() {
        add("last line", &plain(line.as_bytes()));
    }
    add("exception", &indented(blame.fault.to_string().lines()));
    if let Some(place) = &blame.fault.place {
        add("at", &plain(place.to_string().as_bytes()));
    }
    for (name, fault) in [("first", &blame.root), ("then", &blame.later)] {
        if let Some(fault) = fault {
            add(name, &plain(fault.in_a_line().as_bytes()));
        }
    }
    if let Some(hint) = blame.kind.hint() {
        add("cause", hint);
    }
    if let Some(doubt) = &blame.doubt {
        add("cause", describe_doubt(doubt));
    }
    lines
}

/// What the failure report knows beyond torchelastic's fields, in the same form.
fn known(culprit: &Culprit) -> Vec<String> {
    let mut lines: Vec<String> = culprit.blame.iter().flat_map(error_fields).collect();
    if let Some((library, peers)) = &culprit.lost_peer {
        lines.push(field("peer", &describe_lost_peer(*library, peers)));
    }
    if let Some(explanation) = &culprit.explanation {
        lines.push(field("cause", &indented(explanation.lines())));
    }
    lines.extend(last_lines(culprit));
    let attempt = if culprit.attempt > 0 { format!(", in attempt {}", culprit.attempt) } else { String::new() };
    lines.push(field("lived", &format!("{}{attempt}", lasted(culprit.lived))));
    lines.extend(culprit.log.iter().map(|log| field("log_file", &plain(log.as_bytes()))));
    lines
}
