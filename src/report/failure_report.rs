//! The failure report: the text on stderr after a failed job. It names the rank that failed first and its error, then
//! the other ranks.
//!
//! The launcher's own sentences keep to 80 columns; paths and a rank's output are not wrapped. The report fits on about one
//! screen for any number of ranks: ranks are named in ranges, and like failures are one sentence.

use crate::model::exit::signal_label;
use crate::model::{Exit, ProcessLabel};
use crate::report::cause::blame::{Blame, Doubt};
use crate::report::cause::fault::RankFault;
use crate::report::cause::lost_peer::LostPeer;
use crate::report::console::escape::plain;
use crate::report::console::tail::{LogTail, shorten};
use crate::report::wording::{counted, ended, lasted, named, wrapped};
use std::time::Duration;

/// Limits: lines of an exception's text; kinds of failure, or sweeps, that get a line each; characters of a line.
const LONGEST_TEXT: usize = 10;
const MOST_ALIKE: usize = 4;
const LONGEST_LINE: usize = 2000;

/// Why an exception need not be what ended the rank. One that was caught may be that of a process that the rank started.
pub(crate) fn describe_doubt(doubt: &Doubt) -> &'static str {
    if doubt.in_thread {
        "this exception ended a thread; the rank ended later"
    } else {
        "the rank itself did not end by this exception: its program caught it, a hook of its own ended it, or a process that it started has printed it"
    }
}

/// What is known of a job that failed or was stopped.
#[derive(Clone, Debug, PartialEq)]
pub struct FailureReport {
    /// Why it ended.
    pub outcome: FailureCause,
    /// The other ranks that failed or were stopped.
    pub victims: Vec<Victim>,
    /// Processes that ranks left behind and that were ended.
    pub swept: Vec<SweptProcesses>,
    /// How many restarts were used.
    pub restarts: u32,
    /// How many more there were because users asked for them.
    pub requested_restarts: u32,
    /// The launcher's exit status.
    pub status: i32,
}

/// Why a job ended.
#[derive(Clone, Debug, PartialEq)]
pub enum FailureCause {
    /// The first rank that failed by itself.
    Failed(Box<Culprit>),
    /// A stop signal came before any rank had failed.
    Stopped {
        /// The signal.
        signal: i32,
    },
}

/// The rank that failed first.
#[derive(Clone, Debug, PartialEq)]
pub struct Culprit {
    /// Its role and number.
    pub label: ProcessLabel,
    /// Its number on its node, in jobs that have only ranks.
    pub local_rank: Option<usize>,
    /// Its node's name.
    pub host: String,
    /// Its pid while it lived.
    pub pid: u32,
    /// How it ended.
    pub exit: Exit,
    /// From its start to its end.
    pub lived: Duration,
    /// 0 for the first run; shown from 1 on.
    pub attempt: u32,
    /// Its log file, if it has one.
    pub log: Option<String>,
    /// Where its core file is, if it left one.
    pub core: Option<String>,
    /// The error that it printed.
    pub blame: Option<Blame>,
    /// The end of its log.
    pub tail: LogTail,
    /// It failed because it lost its connection to a peer, and no rank of this node is the cause.
    pub lost_peer: Option<(LostPeer, PeersOfVictim)>,
    /// The launcher stopped it while it was exiting, so its exit says nothing.
    pub stopped_by_launcher: bool,
    /// Why the launcher sent it SIGABRT while the others ran, if it did: a sentence.
    pub aborted: Option<String>,
    /// Whether its exit is by that signal, or the SIGKILL that followed.
    pub ended_by_launcher: bool,
    /// Further facts about its end, such as the OOM killer's; a paragraph a line.
    pub explanation: Option<String>,
}

impl Culprit {
    /// Why it failed: the exception that it printed, else its exit.
    pub fn reason(&self) -> String {
        self.blame.as_ref().map_or(self.exit.to_string(), |blame| blame.fault.to_string())
    }
}

/// What is known of the peers of a rank that lost its connection to one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PeersOfVictim {
    /// These had exited successfully before.
    Exited(Vec<ProcessLabel>),
    /// There are other nodes, whose launchers know more.
    OnOtherNodes,
    /// All are on this node, and none has printed an error.
    Silent,
    /// It waited for one that the job does not have.
    Absent {
        /// Its number.
        rank: usize,
        /// How many ranks the job has.
        ranks: usize,
    },
}

/// The sentence on a culprit that lost its connection to a peer.
pub fn describe_lost_peer(library: LostPeer, peers: &PeersOfVictim) -> String {
    let what = if library.is_timeout() { "it waited for a peer in vain" } else { "it lost its connection to a peer" };
    let library = library.name();
    match peers {
        PeersOfVictim::Exited(ranks) => {
            let had = if ranks.len() == 1 { "had" } else { "had all" };
            format!("{what} ({library}): {} {had} exited with 0 before", named(ranks))
        }
        PeersOfVictim::Absent { rank, ranks } => {
            format!(
                "it waits for rank {rank}, which this job does not have ({library}): it has {}",
                counted(*ranks, "rank", "ranks")
            )
        }
        PeersOfVictim::OnOtherNodes => format!("{what} ({library}): look for the cause on another node"),
        PeersOfVictim::Silent => {
            format!("{what} ({library}); no other rank has printed an error: see their logs")
        }
    }
}

/// Another rank that failed or was stopped.
#[derive(Clone, Debug, PartialEq)]
pub struct Victim {
    /// Its role and number.
    pub label: ProcessLabel,
    /// Its pid while it lived.
    pub pid: u32,
    /// How it ended.
    pub exit: Exit,
    /// From its start to its end.
    pub lived: Duration,
    /// The launcher had signalled it before it ended.
    pub signalled: bool,
    /// It printed that its peer was gone.
    pub lost_peer: bool,
    /// It printed the same error as the culprit.
    pub same_failure: bool,
    /// An error of its own, other than the culprit's.
    pub own_error: Option<RankFault>,
    /// It was killed after the grace period.
    pub killed_after_grace: bool,
}

/// Processes that a rank left behind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SweptProcesses {
    /// The rank that left them; `None` if unknown.
    pub owner: Option<ProcessLabel>,
    /// How many.
    pub count: usize,
    /// Their programs' names.
    pub names: Vec<String>,
}

/// The style of the report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReportStyle {
    /// Colors for a terminal, unless NO_COLOR is set.
    pub color: bool,
}

/// The report, ending with a line end.
pub fn render(report: &FailureReport, style: ReportStyle) -> String {
    let mut block = ReportWriter { text: String::new(), style };
    block.head(report, true);
    block.aftermath(report);
    block.text
}

/// Its first part without the rank's last lines: which rank failed, and why.
pub fn head(report: &FailureReport, style: ReportStyle) -> String {
    let mut block = ReportWriter { text: String::new(), style };
    block.head(report, false);
    block.text
}

/// The victims, the swept processes and the exit status, one or more lines each.
pub fn aftermath(report: &FailureReport) -> String {
    let mut block = ReportWriter { text: String::new(), style: ReportStyle::default() };
    block.aftermath(report);
    block.text
}

/// The outcome in one sentence.
pub(crate) fn headline(report: &FailureReport) -> String {
    match &report.outcome {
        FailureCause::Failed(culprit) => match &culprit.blame {
            Some(blame) if culprit.stopped_by_launcher => {
                format!("{} failed: {}", culprit.label, plain(blame.in_a_line().as_bytes()))
            }
            _ if culprit.ended_by_launcher => format!("{} failed: {} (sent by rlaunch)", culprit.label, culprit.exit),
            _ => format!("{} failed: {}", culprit.label, ended(culprit.exit)),
        },
        FailureCause::Stopped { signal } => format!("stopped by signal {}", signal_label(*signal)),
    }
}

struct ReportWriter {
    text: String,
    style: ReportStyle,
}

impl ReportWriter {
    fn line(&mut self, line: &str) {
        self.text.push_str(line);
        self.text.push('\n');
    }

    fn sentence_line(&mut self, indent: &str, sentence: &str) {
        for line in wrapped(indent, sentence) {
            self.line(&line);
        }
    }

    fn paint(&mut self, sgr: &str, lines: &[String]) {
        for line in lines {
            if self.style.color {
                self.line(&format!("\x1b[{sgr}m{line}\x1b[0m"));
            } else {
                self.line(line);
            }
        }
    }

    fn head(&mut self, report: &FailureReport, has_tail: bool) {
        self.paint("1;31", &wrapped("", &headline(report)));
        if let FailureCause::Failed(culprit) = &report.outcome {
            self.culprit(culprit, has_tail);
        }
    }

    fn culprit(&mut self, culprit: &Culprit, has_tail: bool) {
        let Culprit { host, pid, lived, .. } = culprit;
        let local_rank = culprit.local_rank.map_or(String::new(), |local| format!("local rank {local}, "));
        let attempt = if culprit.attempt > 0 { format!(", attempt {}", culprit.attempt) } else { String::new() };
        let host = plain(host.as_bytes());
        self.sentence_line("  ", &format!("on {host}, {local_rank}pid {pid}{attempt}, lived {}", lasted(*lived)));
        if let Some(why) = &culprit.aborted {
            self.sentence_line("  ", &plain(why.as_bytes()));
        }
        if let Some(blame) = &culprit.blame {
            self.blame(blame);
        }
        if let Some((library, peers)) = &culprit.lost_peer {
            self.sentence_line("  ", &describe_lost_peer(*library, peers));
        }
        for paragraph in culprit.explanation.iter().flat_map(|e| e.lines()) {
            self.sentence_line("  ", &plain(paragraph.as_bytes()));
        }
        if has_tail {
            self.tail(&culprit.tail);
        }
        if let Some(core) = &culprit.core {
            self.line(&format!("  {}", plain(core.as_bytes())));
        }
        if let Some(log) = &culprit.log {
            self.line(&format!("  log: {}", plain(log.as_bytes())));
        }
    }

    fn aftermath(&mut self, report: &FailureReport) {
        self.victims(report);
        self.sweeps(&report.swept);
        let count = |number: u32| counted(number as usize, "restart", "restarts");
        let restarts = match (report.restarts, report.requested_restarts) {
            (0, 0) => String::new(),
            (own, 0) => format!(" after {}", count(own)),
            (0, requested) => format!(" after {} at a user's request", count(requested)),
            (own, requested) => format!(" after {}, and {requested} at a user's request", count(own)),
        };
        self.sentence_line("", &format!("exit status {}{restarts}", report.status));
    }

    fn blame(&mut self, blame: &Blame) {
        if let Some(line) = blame.last_line() {
            self.line(&format!("  its last line: {}", shown(line)));
        }
        let text = blame.fault.to_string();
        let said = || text.lines().filter(|l| !l.trim().is_empty());
        let mut lines: Vec<String> = said().take(LONGEST_TEXT).map(shown).collect();
        for (i, line) in lines.iter_mut().enumerate() {
            line.insert_str(0, if i == 0 { "  " } else { "    " });
        }
        self.paint("1", &lines);
        match said().count().saturating_sub(LONGEST_TEXT) {
            0 => {}
            more => self.line(&format!("    ({})", counted(more, "more line", "more lines"))),
        }
        if let Some(place) = &blame.fault.place {
            self.line(&format!("  at {}", shown(&place.to_string())));
        }
        for (when, fault) in [("first", &blame.root), ("then", &blame.later)] {
            let Some(fault) = fault else { continue };
            let text = fault.to_string();
            let at = fault.place.as_ref().map_or(String::new(), |place| format!(", at {place}"));
            self.line(&format!("  {when} {}{}", shown(text.lines().next().unwrap_or_default()), shown(&at)));
        }
        if let Some(hint) = blame.kind.hint() {
            self.sentence_line("  ", hint);
        }
        if let Some(doubt) = &blame.doubt {
            self.sentence_line("  ", describe_doubt(doubt));
        }
    }

    fn tail(&mut self, tail: &LogTail) {
        match (tail.lines.len(), tail.cut) {
            (0, _) if tail.is_missing => return self.line("  its log was removed while the job ran"),
            (0, _) => return self.line("  it wrote nothing"),
            (1, true) => self.line("  its last line:"),
            (lines, true) => self.line(&format!("  its last {lines} lines:")),
            (_, false) => self.line("  all it wrote:"),
        }
        for line in &tail.lines {
            let line = format!("  | {}", shown(line));
            self.line(line.trim_end());
        }
    }

    fn victims(&mut self, report: &FailureReport) {
        let because = if matches!(report.outcome, FailureCause::Stopped { .. }) { "" } else { " because of it" };
        let mut groups: Vec<(VictimOutcome, Vec<&Victim>)> = Vec::new();
        for victim in &report.victims {
            let fate = VictimOutcome::of(victim);
            match groups.iter_mut().find(|(f, _)| *f == fate) {
                Some((_, members)) => members.push(victim),
                None => groups.push((fate, vec![victim])),
            }
        }
        groups.sort_by_key(|(fate, members)| (fate.order(), std::cmp::Reverse(members.len())));
        let alike = |fate: &VictimOutcome| matches!(fate, VictimOutcome::Failed(..));
        let stopped: Vec<_> = groups.iter().filter(|(f, _)| !alike(f)).collect();
        let failed: Vec<_> = groups.iter().filter(|(f, _)| alike(f)).collect();
        let (named, rest) = failed.split_at(failed.len().min(MOST_ALIKE));
        for (fate, members) in stopped.iter().filter(|(f, _)| f.comes_first()).chain(named) {
            self.sentence_line("", &fate.sentence(members, because));
        }
        let rest: Vec<&Victim> = rest.iter().flat_map(|(_, members)| members.iter().copied()).collect();
        if !rest.is_empty() {
            self.sentence_line("", &format!("{} failed too, in other ways{}", numbers(&rest), lives(&rest)));
        }
        for (fate, members) in stopped.iter().filter(|(f, _)| !f.comes_first()) {
            self.sentence_line("", &fate.sentence(members, because));
        }
    }

    fn sweeps(&mut self, swept: &[SweptProcesses]) {
        let swept: Vec<&SweptProcesses> = swept.iter().filter(|s| s.count > 0).collect();
        if swept.len() <= MOST_ALIKE {
            for one in swept {
                self.sentence_line("", &sweep(one.count, one.owner.as_slice(), &one.names));
            }
        } else {
            let owners: Vec<ProcessLabel> = swept.iter().filter_map(|s| s.owner).collect();
            let names: Vec<String> = swept.iter().flat_map(|s| s.names.iter().cloned()).collect();
            let count = swept.iter().map(|s| s.count).sum();
            self.sentence_line("", &sweep(count, &owners, &names));
        }
    }
}

/// The line that names leftover processes: `swept 4 leftover processes of rank 3 (sleep, python3)`.
pub fn sweep(count: usize, owners: &[ProcessLabel], names: &[String]) -> String {
    let whose = if owners.is_empty() { "the job".to_owned() } else { named(owners) };
    let mut known: Vec<String> = Vec::new();
    for name in names {
        let name = plain(name.as_bytes());
        if known.len() <= MOST_ALIKE && !known.contains(&name) {
            known.push(name);
        }
    }
    if known.len() > MOST_ALIKE {
        known[MOST_ALIKE] = "…".to_owned();
    }
    let names = if known.is_empty() { String::new() } else { format!(" ({})", known.join(", ")) };
    let processes = counted(count, "leftover process", "leftover processes");
    format!("swept {processes} of {whose}{names}")
}

/// The line that names processes which still run: `left running by --no_sweep: uploader (pid 4242)`.
pub fn left_running(by: &str, processes: &[(i32, &str)]) -> String {
    let named = processes.iter().map(|(pid, name)| format!("{} (pid {pid})", plain(name.as_bytes())));
    format!("left running by {by}: {}", named.collect::<Vec<_>>().join(", "))
}

/// The line about a process that SIGKILL did not end: `rank 0 (pid 4242) cannot be killed, waiting in folio_wait_bit; it is
/// left behind`. `place` is the kernel function that it waits in, if that is known.
pub fn unkillable(process: &str, place: Option<&str>) -> String {
    let place = place.map_or(String::new(), |at| format!(", waiting in {at}"));
    format!("{process} cannot be killed{place}; it is left behind")
}

/// The line about a process that SIGKILL has ended, but that cannot be reaped: its tracer has to wait for it first (ptrace(2)).
pub fn held_by_tracer(process: &str, tracer: i32) -> String {
    format!("{process} has been killed, but a debugger (pid {tracer}) has not waited for it; it is left behind")
}

/// How a victim ended.
#[derive(Clone, PartialEq, Eq)]
enum VictimOutcome {
    Same,
    LostPeer,
    /// With this exit, unless it had been signalled, and this error, if one is known.
    Failed(Option<Exit>, Option<RankFault>),
    Stopped,
    Killed,
}

impl VictimOutcome {
    fn of(victim: &Victim) -> VictimOutcome {
        match victim {
            Victim { lost_peer: true, .. } => VictimOutcome::LostPeer,
            Victim { same_failure: true, killed_after_grace: false, .. } => VictimOutcome::Same,
            Victim { signalled: false, exit, own_error, .. } => VictimOutcome::Failed(Some(*exit), own_error.clone()),
            Victim { killed_after_grace: true, .. } => VictimOutcome::Killed,
            Victim { own_error: Some(error), .. } => VictimOutcome::Failed(None, Some(error.clone())),
            _ => VictimOutcome::Stopped,
        }
    }

    fn comes_first(&self) -> bool {
        matches!(self, VictimOutcome::Same | VictimOutcome::LostPeer)
    }

    fn order(&self) -> u8 {
        match self {
            VictimOutcome::Same | VictimOutcome::LostPeer => 0,
            VictimOutcome::Failed(..) => 1,
            VictimOutcome::Stopped => 2,
            VictimOutcome::Killed => 3,
        }
    }

    fn sentence(&self, members: &[&Victim], because: &str) -> String {
        let one = members.len() == 1;
        let too = if because.is_empty() { "" } else { " too" };
        let (were, their) = if one { ("was", "its") } else { ("were", "their") };
        let what = match self {
            VictimOutcome::Same => "failed in the same way".to_owned(),
            VictimOutcome::LostPeer => format!("lost {their} connection to a dead peer"),
            VictimOutcome::Failed(exit, error) => {
                let exit = exit.map_or(String::new(), |exit| format!(", with {exit}"));
                let error = error.as_ref().map_or(String::new(), |error| format!(": {}", placed(error)));
                return format!("{} failed{too}{exit}{}{error}", numbers(members), lives(members));
            }
            VictimOutcome::Stopped => format!("{were} stopped{because}"),
            VictimOutcome::Killed => format!("did not end when asked and {were} killed"),
        };
        format!("{} {what}{}", numbers(members), lives(members))
    }
}

/// An error in one line, with its place.
fn placed(error: &RankFault) -> String {
    let at = error.place.as_ref().map_or(String::new(), |place| format!(", at {place}"));
    shown(&format!("{}{at}", error.in_a_line()))
}

fn numbers(members: &[&Victim]) -> String {
    named(&members.iter().map(|v| v.label).collect::<Vec<_>>())
}

/// ` (lived 3.1 s to 3.4 s)`.
fn lives(members: &[&Victim]) -> String {
    let shortest = members.iter().map(|v| v.lived).min().map(lasted).unwrap_or_default();
    let longest = members.iter().map(|v| v.lived).max().map(lasted).unwrap_or_default();
    if shortest == longest { format!(" (lived {longest})") } else { format!(" (lived {shortest} to {longest})") }
}

/// A line of a rank's output, escaped and shortened.
fn shown(line: &str) -> String {
    let mut line = plain(line.as_bytes());
    shorten(&mut line, LONGEST_LINE);
    line
}
