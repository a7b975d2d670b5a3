//! The last block on stderr of a job that did not end well: who failed first and of what, then the others.
//!
//! The launcher's own sentences keep to 80 columns; paths and what a rank wrote stand whole. However many
//! ranks there are, it stays about a screen: ranks are named in ranges, and what is alike is said once.

use super::blame::Blame;
use super::escape::plain;
use super::fault::Kind;
use super::peer::LostPeer;
use super::tail::{Tail, shorten};
use super::wording::{counted, ended, lasted, named, wrapped};
use crate::model::exit::signal_label;
use crate::model::{Exit, Who};
use std::time::Duration;

/// Lines of an exception's text, and kinds of failure or sweeps that are told one by one.
const LONGEST_TEXT: usize = 10;
const MOST_ALIKE: usize = 4;
const LONGEST_LINE: usize = 2000;

/// All that is known when a job has not ended well.
#[derive(Clone, Debug, PartialEq)]
pub struct Verdict {
    /// Why it ended.
    pub outcome: Outcome,
    /// The other ranks that did not end well.
    pub victims: Vec<Victim>,
    /// What ranks left behind and was ended.
    pub swept: Vec<Swept>,
    /// How many restarts were used.
    pub restarts: u32,
    /// The launcher's exit status.
    pub status: i32,
}

/// Why a job ended.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// A rank failed of itself; the first to do so.
    Failed(Box<Culprit>),
    /// A rank could not be started.
    NotStarted {
        /// Which.
        who: Who,
        /// Program, step and errno.
        why: String,
    },
    /// A signal from outside stopped it before anything had failed.
    Stopped {
        /// The signal.
        signal: i32,
    },
}

/// The rank that failed first.
#[derive(Clone, Debug, PartialEq)]
pub struct Culprit {
    /// Which it is.
    pub who: Who,
    /// Its number on its node, where all are ranks.
    pub local_rank: Option<usize>,
    /// Its node's name.
    pub host: String,
    /// Its process, while it lived.
    pub pid: u32,
    /// How it ended.
    pub exit: Exit,
    /// From its start to its end.
    pub lived: Duration,
    /// 0 for the first run; told only from 1 on.
    pub attempt: u32,
    /// Its log file, if it has one.
    pub log: Option<String>,
    /// What it died of by its own words.
    pub blame: Option<Blame>,
    /// The end of its log.
    pub tail: Tail,
    /// It says that its peer was gone: whoever died first is on another node.
    pub lost_peer: Option<LostPeer>,
    /// What else is known of its end, as who killed it for memory; a paragraph a line.
    pub explanation: Option<String>,
}

/// Another rank that did not end well.
#[derive(Clone, Debug, PartialEq)]
pub struct Victim {
    /// Which it is.
    pub who: Who,
    /// Its process, while it lived.
    pub pid: u32,
    /// How it ended.
    pub exit: Exit,
    /// From its start to its end.
    pub lived: Duration,
    /// The launcher had signalled it before it ended.
    pub told: bool,
    /// It says that its peer was gone.
    pub lost_peer: bool,
    /// It outlived the grace and was killed.
    pub killed_after_grace: bool,
}

/// Processes that a rank left behind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Swept {
    /// Whose they were; `None` if that is not known.
    pub owner: Option<Who>,
    /// How many.
    pub count: usize,
    /// Their programs' names.
    pub names: Vec<String>,
}

/// How the block looks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Style {
    /// For a terminal, unless NO_COLOR is set.
    pub colour: bool,
}

/// The block, with a line end at its end.
pub fn render(verdict: &Verdict, style: Style) -> String {
    let mut block = Block { text: String::new(), style };
    block.paint("1;31", &wrapped("", &headline(verdict)));
    if let Outcome::Failed(culprit) = &verdict.outcome {
        block.culprit(culprit);
    }
    block.aftermath(verdict);
    block.text
}

/// What became of the others, what was swept, and the exit status: a sentence or more a line.
pub fn aftermath(verdict: &Verdict) -> String {
    let mut block = Block { text: String::new(), style: Style::default() };
    block.aftermath(verdict);
    block.text
}

/// What happened, in one sentence.
pub(super) fn headline(verdict: &Verdict) -> String {
    match &verdict.outcome {
        Outcome::Failed(culprit) => format!("{} failed: {}", culprit.who, ended(culprit.exit)),
        Outcome::NotStarted { who, why } => format!("cannot start {who}: {}", plain(why.as_bytes())),
        Outcome::Stopped { signal } => format!("stopped by signal {}", signal_label(*signal)),
    }
}

struct Block {
    text: String,
    style: Style,
}

impl Block {
    fn line(&mut self, line: &str) {
        self.text.push_str(line);
        self.text.push('\n');
    }

    fn say(&mut self, indent: &str, sentence: &str) {
        for line in wrapped(indent, sentence) {
            self.line(&line);
        }
    }

    fn paint(&mut self, sgr: &str, lines: &[String]) {
        for line in lines {
            if self.style.colour {
                self.line(&format!("\x1b[{sgr}m{line}\x1b[0m"));
            } else {
                self.line(line);
            }
        }
    }

    fn culprit(&mut self, culprit: &Culprit) {
        let Culprit { host, pid, lived, .. } = culprit;
        let local_rank = culprit.local_rank.map_or(String::new(), |local| format!("local rank {local}, "));
        let attempt = if culprit.attempt > 0 { format!(", attempt {}", culprit.attempt) } else { String::new() };
        let host = plain(host.as_bytes());
        self.say("  ", &format!("on {host}, {local_rank}pid {pid}{attempt}, lived {}", lasted(*lived)));
        if let Some(blame) = &culprit.blame {
            self.blame(blame);
        }
        if let Some(who) = culprit.lost_peer {
            let who = who.name();
            self.say(
                "  ",
                &format!("it lost its connection to a dead peer ({who}): look for the cause on another node"),
            );
        }
        for paragraph in culprit.explanation.iter().flat_map(|e| e.lines()) {
            self.say("  ", &plain(paragraph.as_bytes()));
        }
        self.tail(&culprit.tail);
        if let Some(log) = &culprit.log {
            self.line(&format!("  log: {}", plain(log.as_bytes())));
        }
    }

    fn aftermath(&mut self, verdict: &Verdict) {
        self.victims(verdict);
        self.sweeps(&verdict.swept);
        let restarts = match verdict.restarts {
            0 => String::new(),
            n => format!(" after {}", counted(n as usize, "restart", "restarts")),
        };
        self.say("", &format!("exit status {}{restarts}", verdict.status));
    }

    fn blame(&mut self, blame: &Blame) {
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
        if let Some(root) = &blame.root {
            let text = root.to_string();
            let at = root.place.as_ref().map_or(String::new(), |place| format!(", at {place}"));
            self.line(&format!("  first {}{}", shown(text.lines().next().unwrap_or_default()), shown(&at)));
        }
        match blame.kind {
            Kind::DeviceMemory => self.say("  ", "the memory of the GPU was full"),
            Kind::DeviceAssert => {
                self.say("  ", "GPUs report late: only with CUDA_LAUNCH_BLOCKING=1 does the traceback show the line");
            }
            _ => {}
        }
    }

    fn tail(&mut self, tail: &Tail) {
        match (tail.lines.len(), tail.cut) {
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

    fn victims(&mut self, verdict: &Verdict) {
        let because = if matches!(verdict.outcome, Outcome::Stopped { .. }) { "" } else { " because of it" };
        let mut groups: Vec<(Fate, Vec<&Victim>)> = Vec::new();
        for victim in &verdict.victims {
            let fate = Fate::of(victim);
            match groups.iter_mut().find(|(f, _)| *f == fate) {
                Some((_, members)) => members.push(victim),
                None => groups.push((fate, vec![victim])),
            }
        }
        groups.sort_by_key(|(fate, members)| (fate.order(), std::cmp::Reverse(members.len())));
        let alike = |fate: &Fate| matches!(fate, Fate::Failed(_));
        let told: Vec<_> = groups.iter().filter(|(f, _)| !alike(f)).collect();
        let failed: Vec<_> = groups.iter().filter(|(f, _)| alike(f)).collect();
        let (named, rest) = failed.split_at(failed.len().min(MOST_ALIKE));
        for (fate, members) in told.iter().filter(|(f, _)| *f == Fate::LostPeer).chain(named) {
            self.say("", &fate.sentence(members, because));
        }
        let rest: Vec<&Victim> = rest.iter().flat_map(|(_, members)| members.iter().copied()).collect();
        if !rest.is_empty() {
            self.say("", &format!("{} failed too, in other ways{}", numbers(&rest), lives(&rest)));
        }
        for (fate, members) in told.iter().filter(|(f, _)| *f != Fate::LostPeer) {
            self.say("", &fate.sentence(members, because));
        }
    }

    fn sweeps(&mut self, swept: &[Swept]) {
        let swept: Vec<&Swept> = swept.iter().filter(|s| s.count > 0).collect();
        if swept.len() <= MOST_ALIKE {
            for one in swept {
                self.say("", &sweep(one.count, one.owner.as_slice(), &one.names));
            }
        } else {
            let owners: Vec<Who> = swept.iter().filter_map(|s| s.owner).collect();
            let names: Vec<String> = swept.iter().flat_map(|s| s.names.iter().cloned()).collect();
            let count = swept.iter().map(|s| s.count).sum();
            self.say("", &sweep(count, &owners, &names));
        }
    }
}

/// The line that names what was left: `swept 4 leftover processes of rank 3 (sleep, python3)`.
pub fn sweep(count: usize, owners: &[Who], names: &[String]) -> String {
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

/// What became of a victim.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fate {
    LostPeer,
    Failed(Exit),
    Stopped,
    Killed,
}

impl Fate {
    fn of(victim: &Victim) -> Fate {
        match victim {
            Victim { lost_peer: true, .. } => Fate::LostPeer,
            Victim { told: false, exit, .. } => Fate::Failed(*exit),
            Victim { killed_after_grace: true, .. } => Fate::Killed,
            _ => Fate::Stopped,
        }
    }

    fn order(self) -> u8 {
        match self {
            Fate::LostPeer => 0,
            Fate::Failed(_) => 1,
            Fate::Stopped => 2,
            Fate::Killed => 3,
        }
    }

    fn sentence(self, members: &[&Victim], because: &str) -> String {
        let one = members.len() == 1;
        let too = if because.is_empty() { "" } else { " too" };
        let (were, their) = if one { ("was", "its") } else { ("were", "their") };
        let what = match self {
            Fate::LostPeer => format!("lost {their} connection to a dead peer"),
            Fate::Failed(exit) => format!("failed{too}, with {exit}"),
            Fate::Stopped => format!("{were} stopped{because}"),
            Fate::Killed => format!("did not end when asked and {were} killed"),
        };
        format!("{} {what}{}", numbers(members), lives(members))
    }
}

fn numbers(members: &[&Victim]) -> String {
    named(&members.iter().map(|v| v.who).collect::<Vec<_>>())
}

/// ` (lived 3.1 s to 3.4 s)`.
fn lives(members: &[&Victim]) -> String {
    let shortest = members.iter().map(|v| v.lived).min().map(lasted).unwrap_or_default();
    let longest = members.iter().map(|v| v.lived).max().map(lasted).unwrap_or_default();
    if shortest == longest { format!(" (lived {longest})") } else { format!(" (lived {shortest} to {longest})") }
}

/// What a rank wrote, safe and not endless.
fn shown(line: &str) -> String {
    let mut line = plain(line.as_bytes());
    shorten(&mut line, LONGEST_LINE);
    line
}
