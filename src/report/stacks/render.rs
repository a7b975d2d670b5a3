//! The stacks of a job as text: equal ones once, the ranks that the others wait for last and named.

use super::dump::{ProcessStack, RankStacks, StackDump, StackFrame};
use super::odd_ranks::{OddRanks, StackGroup, find_odd_ranks, group};
use crate::model::ProcessLabel;
use crate::model::plain_text::escape;
use crate::plan::{SeenOutput, Stream};
use crate::report::wording::{lasted, named};
use std::time::Duration;

/// Frames of a stack that are shown: the innermost ones.
const MOST_FRAMES: usize = 16;

/// Groups of ranks that the last line names.
const MOST_CLAUSES: usize = 4;
/// The CPU use in percent from which on it is mentioned.
const BUSY: f64 = 20.0;

/// A rank, as the text names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RankLine {
    /// Its number on this node.
    pub local_rank: usize,
    /// Its role and number in the job.
    pub label: ProcessLabel,
    /// Whether it has exited successfully.
    pub has_ended: bool,
    /// Its node, where ranks of several nodes are shown.
    pub place: Option<String>,
}

/// The state of a rank whose program has failed and that does not exit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExitState {
    /// No Python stack moves, and it uses no CPU.
    Waits,
    /// No Python stack moves, and it uses a CPU.
    Spins {
        /// It is left alone for now.
        is_spared: bool,
    },
    /// Its Python runs.
    Works,
}

impl ExitState {
    /// Returns true if the rank is left alone, at least for now.
    pub fn is_spared(self) -> bool {
        matches!(self, Self::Works | Self::Spins { is_spared: true })
    }
}

/// A job that stands still.
#[derive(Clone, Copy, Debug)]
pub struct HangFacts {
    /// How long no rank has written anything.
    pub silence: Duration,
    /// For how long no stack has moved.
    pub watched: Duration,
    /// Which output of all ranks the launcher can see.
    pub seen: SeenOutput,
    /// Whether the job has ranks on other nodes.
    pub has_other_nodes: bool,
}

/// The report of a job that stands still.
pub fn render_hang(dump: &StackDump, ranks: &[RankLine], facts: HangFacts) -> String {
    let HangFacts { silence, watched, seen, has_other_nodes } = facts;
    let silent = match seen {
        SeenOutput::All => format!("no rank has written anything for {}, and", lasted(silence)),
        SeenOutput::Only(Stream::Stdout) => {
            format!("no rank has written anything to stdout for {}, and", lasted(silence))
        }
        SeenOutput::Only(Stream::Stderr) => {
            format!("no rank has written anything to stderr for {}, and", lasted(silence))
        }
        SeenOutput::None => String::new(),
    };
    let odd = find_odd_ranks(&group(dump), &[]);
    // Ranks of another node may be at work, and write.
    let seems = match has_other_nodes && odd.ranks().is_empty() {
        true => "the ranks of this node wait, perhaps for those of other nodes",
        false => "the job seems to hang",
    };
    let head = format!("{seems}: {silent} no Python stack has moved for {}", lasted(watched));
    format!("{}\n{}", head.replace(":  ", ": "), render(dump, ranks, None, Some(watched)))
}

/// The report of a rank whose program has failed and that does not exit. `what`: by what it failed; `late`: how long ago that was.
pub fn render_stuck_exit(
    label: ProcessLabel,
    what: &str,
    late: Duration,
    dump: &StackDump,
    state: ExitState,
) -> String {
    let what = escape(what);
    let state = match state {
        ExitState::Waits => "; it gets SIGABRT",
        ExitState::Spins { is_spared: false } => "; it uses a CPU; it gets SIGABRT",
        ExitState::Spins { is_spared: true } => "; it uses a CPU",
        ExitState::Works => "; its Python runs, so it is left alone",
    };
    let head = format!("{label} failed {} ago ({what}) and does not exit{state}", lasted(late));
    let stacks = dump.ranks.iter().flat_map(|rank| {
        let main = rank.main_process().map(ProcessStack::main_frames).unwrap_or_default();
        frames(main).into_iter().chain(others(rank))
    });
    std::iter::once(head).chain(stacks).collect::<Vec<_>>().join("\n")
}

/// The stacks of all ranks, and which rank the others wait for.
pub fn render_stacks(dump: &StackDump, ranks: &[RankLine]) -> String {
    render(dump, ranks, None, None)
}

/// The same where nodes have not answered, which have so many ranks: what stands out is so among those that have.
pub fn render_answered(dump: &StackDump, ranks: &[RankLine], missing: usize) -> String {
    render(dump, ranks, Some(missing), None)
}

/// Which rank the others wait for, in a sentence; `None`: none stands out.
pub fn conclude(dump: &StackDump, ranks: &[RankLine]) -> Option<String> {
    let groups = group(dump);
    let odd = find_odd_ranks(&groups, &[]);
    StackText { dump, ranks, missing: None, odd: &odd, watched: None }.conclusion(&groups)
}

/// Where the ranks of these groups are, in a few words: `rank 2 is in load (data.py:7)`.
pub fn describe_places(dump: &StackDump, ranks: &[RankLine], groups: &[&StackGroup<'_>]) -> String {
    let text = StackText { dump, ranks, missing: None, odd: &OddRanks::None, watched: None };
    groups.iter().take(MOST_CLAUSES).map(|group| text.clause(group)).collect::<Vec<_>>().join("; ")
}

/// `watched`: for how long the stacks were watched.
fn render(dump: &StackDump, ranks: &[RankLine], missing: Option<usize>, watched: Option<Duration>) -> String {
    let groups = group(dump);
    let ended: Vec<usize> = ranks.iter().filter(|rank| rank.has_ended).map(|rank| rank.local_rank).collect();
    let odd = find_odd_ranks(&groups, &ended);
    let text = StackText { dump, ranks, missing, odd: &odd, watched };
    let is_odd = |group: &StackGroup<'_>| group.ranks.iter().any(|rank| odd.ranks().contains(rank));
    let mut ordered: Vec<&StackGroup<'_>> = groups.iter().collect();
    ordered.sort_by_key(|group| is_odd(group));
    let mut lines: Vec<String> = ordered.into_iter().flat_map(|group| text.group(group, groups.len() == 1)).collect();
    let among = if missing.is_some() { "of those that have answered, " } else { "" };
    lines.extend(text.conclusion(&groups).map(|conclusion| format!("{among}{conclusion}")));
    lines.join("\n")
}

struct StackText<'a> {
    dump: &'a StackDump,
    ranks: &'a [RankLine],
    /// Ranks of nodes that have not answered; `None`: there are no such nodes.
    missing: Option<usize>,
    odd: &'a OddRanks,
    watched: Option<Duration>,
}

impl StackText<'_> {
    fn name(&self, locals: &[usize]) -> String {
        let labels: Vec<ProcessLabel> =
            self.ranks.iter().filter(|rank| locals.contains(&rank.local_rank)).map(|rank| rank.label).collect();
        named(&labels)
    }

    /// The node of these ranks, if ranks of several nodes are shown and these are on one of them; `Err`: they are on several.
    fn node(&self, locals: &[usize]) -> Result<Option<&str>, ()> {
        let mut places = self.ranks.iter().filter(|rank| locals.contains(&rank.local_rank)).map(|rank| &rank.place);
        let first = places.next().and_then(|place| place.as_deref());
        if places.all(|place| place.as_deref() == first) { Ok(first) } else { Err(()) }
    }

    /// The names of these ranks, with their node if they are on one.
    fn located_name(&self, locals: &[usize]) -> String {
        let on = self.node(locals).ok().flatten().map(|node| format!(" on {}", escape(node))).unwrap_or_default();
        format!("{}{on}", self.name(locals))
    }

    fn group(&self, group: &StackGroup<'_>, is_only: bool) -> Vec<String> {
        let place = place(group);
        let of = format!("{} of {}", group.ranks.len(), self.ranks.len() + self.missing.unwrap_or_default());
        let mut lines = vec![format!("{} ({of}): {place}{}", self.located_name(&group.ranks), self.cpu_use(group))];
        lines.extend(frames(group.frames()));
        let is_odd = group.ranks.iter().any(|rank| self.odd.ranks().contains(rank));
        if is_odd || is_only {
            let shown = self.dump.ranks.iter().filter(|rank| group.ranks.contains(&rank.local_rank)).take(1);
            lines.extend(shown.flat_map(others));
        }
        let quiet = self.dump.ranks.iter().filter(|rank| group.ranks.contains(&rank.local_rank));
        lines.extend(quiet.take(1).filter_map(last_line));
        lines
    }

    /// The CPU use of the first rank of a group, if it is not idle: it may work in C code that takes long.
    fn cpu_use(&self, group: &StackGroup<'_>) -> String {
        let used = group.process.and_then(|process| process.cpu_seconds_watched);
        let share = used.zip(self.watched).map(|(used, watched)| used / watched.as_secs_f64() * 100.0);
        share.filter(|share| *share >= BUSY).map(|share| format!("; uses {share:.0} % of a CPU")).unwrap_or_default()
    }

    fn clause(&self, group: &StackGroup<'_>) -> String {
        let verb = if group.ranks.len() == 1 { "is" } else { "are" };
        format!("{} {verb} {}", self.name(&group.ranks), place(group))
    }

    /// What the stacks say about who waits for whom.
    fn conclusion(&self, groups: &[StackGroup<'_>]) -> Option<String> {
        let odd = self.odd.ranks();
        let name = self.located_name(odd);
        let verb = if odd.len() == 1 { "is the odd one" } else { "are the odd ones" };
        let is_odd = |group: &&StackGroup<'_>| group.ranks.iter().any(|rank| odd.contains(rank));
        let rest = groups.iter().find(|group| !is_odd(group));
        let waiting = groups.iter().filter(|group| !is_odd(group)).find_map(|group| group.waits_in);
        let clauses = || {
            groups
                .iter()
                .filter(is_odd)
                .take(MOST_CLAUSES)
                .map(|group| self.clause(group))
                .collect::<Vec<_>>()
                .join("; ")
        };
        match self.odd {
            OddRanks::None => None,
            OddRanks::Ended(_) => {
                let has = if odd.len() == 1 { "has" } else { "have" };
                Some(match (waiting, rest) {
                    (Some(wait), _) => {
                        format!("{name} {has} ended, and the others wait for it in {}", escape(&wait.function))
                    }
                    (None, Some(rest)) => format!("{name} {has} ended; the others are {}", place(rest)),
                    (None, None) => format!("{name} {has} ended"),
                })
            }
            OddRanks::Stopped(_) => {
                let stopped = self.dump.ranks.iter().filter(|rank| odd.contains(&rank.local_rank));
                let pids: Vec<String> = stopped.filter_map(|rank| Some(rank.main_process()?.pid.to_string())).collect();
                let how = match self.node(odd) {
                    Ok(_) => format!("`kill -CONT {}` continues", pids.join(" ")),
                    Err(()) => "`rlaunch signal CONT` on their nodes continues".to_owned(),
                };
                Some(format!("{name} {verb}: stopped by a signal; {how}"))
            }
            OddRanks::NotWaiting(_) => {
                let wait = waiting.map(|frame| format!(" in {}", escape(&frame.function))).unwrap_or_default();
                let child = self.waits_for_child(odd).unwrap_or_default();
                Some(format!("{name} {verb}: the others wait{wait}, and {}{child}", clauses()))
            }
            OddRanks::Elsewhere(_) => {
                let most = groups.first().map(|group| format!("{} {}", named_are(group.ranks.len()), place(group)));
                Some(format!("{name} {verb}: {}, and {}", most.unwrap_or_default(), clauses()))
            }
            OddRanks::Mismatch => {
                let places: Vec<String> = groups.iter().take(MOST_CLAUSES).map(|group| self.clause(group)).collect();
                Some(format!("the ranks wait for each other at different places: {}", places.join("; ")))
            }
        }
    }

    /// Where a process is that the odd rank has started, if the rank itself is in library code: a data loader waits for its workers.
    fn waits_for_child(&self, odd: &[usize]) -> Option<String> {
        let rank = self.dump.ranks.iter().find(|rank| odd.contains(&rank.local_rank))?;
        let main =
            rank.main_process().filter(|main| main.main_frames().first().is_some_and(|one| is_library(&one.file)))?;
        let child = rank.processes.iter().find(|one| one.pid != main.pid && !one.main_frames().is_empty())?;
        let own = child.main_frames().iter().find(|frame| !is_library(&frame.file))?;
        Some(format!("; its process {} (pid {}) is in {}", escape(&child.name), child.pid, located(own)))
    }
}

fn named_are(count: usize) -> String {
    format!("{count} others {}", if count == 1 { "is" } else { "are" })
}

/// Where the main thread is, in a few words.
fn place(group: &StackGroup<'_>) -> String {
    let Some(process) = group.process else { return "ended meanwhile".to_owned() };
    if process.is_stopped() {
        return "stopped by a signal".to_owned();
    }
    let frames = process.main_frames();
    let (Some(inner), waits) = (frames.first(), group.waits_in) else {
        return without_python(process);
    };
    if let Some(exit) = frames.iter().find(|frame| is_exit(frame)) {
        return format!("at its exit, in {}", located(exit));
    }
    match waits {
        Some(wait) => {
            let caller = frames.iter().skip_while(|frame| *frame != wait).find(|frame| !is_library(&frame.file));
            let called = caller.map(|frame| format!(", called by {}", located(frame))).unwrap_or_default();
            format!("waiting for other ranks in {}{called}", escape(&wait.function))
        }
        None => {
            let own = frames.iter().find(|frame| !is_library(&frame.file)).filter(|own| *own != inner);
            let called = own.map(|frame| format!(", called by {}", located(frame))).unwrap_or_default();
            format!("in {}{called}", located(inner))
        }
    }
}

/// Whether Python ends the process in this frame: it waits for the process's threads and children.
fn is_exit(frame: &StackFrame) -> bool {
    let ends = [("/threading.py", "_shutdown"), ("/multiprocessing/util.py", "_exit_function")];
    ends.iter().any(|(file, function)| frame.file.ends_with(file) && frame.function == *function)
}

fn without_python(process: &ProcessStack) -> String {
    let state = match process.state {
        'R' => "running".to_owned(),
        'D' => "waiting in the kernel, uninterruptibly".to_owned(),
        'Z' => "ended".to_owned(),
        _ => "waiting".to_owned(),
    };
    let wait = process.wait_channel.as_ref().map(|wait| format!(" in {}", escape(wait))).unwrap_or_default();
    let why = process.unread.as_ref().map(|why| format!("; no Python stack: {}", escape(why))).unwrap_or_default();
    format!("{} (pid {}) {state}{wait}{why}", escape(&process.name), process.pid)
}

/// Whether a file belongs to an installed library or to Python itself, not to the user's program.
fn is_library(file: &str) -> bool {
    ["/site-packages/", "/dist-packages/", "/lib/python", "/lib64/python"].iter().any(|part| file.contains(part))
        || file.starts_with('<')
}

/// `step (train.py:12)`
fn located(frame: &StackFrame) -> String {
    format!("{} ({}:{})", escape(&frame.function), escape(&short(&frame.file)), frame.line)
}

/// The path of a library from its package on, of the standard library from its folder on; any other path as it is.
fn short(file: &str) -> String {
    let package = ["/site-packages/", "/dist-packages/"].iter().find_map(|part| file.rsplit_once(part));
    let standard = || Some(("", &file[file.rfind("/lib/python3").or_else(|| file.rfind("/lib64/python3"))?..]));
    let cut = package.or_else(standard).map_or(file, |(_, rest)| rest);
    cut.trim_start_matches("/lib64/").trim_start_matches("/lib/").to_owned()
}

fn frames(frames: &[StackFrame]) -> Vec<String> {
    // The import system has six frames an import.
    let shown: Vec<&StackFrame> = frames.iter().filter(|frame| !frame.file.starts_with("<frozen importlib.")).collect();
    let mut lines: Vec<String> =
        shown.iter().take(MOST_FRAMES).map(|frame| format!("    {}", located(frame))).collect();
    if shown.len() > MOST_FRAMES {
        lines.push(format!("    ... {} more", shown.len() - MOST_FRAMES));
    }
    lines
}

/// The other threads and processes of a rank.
fn others(rank: &RankStacks) -> Vec<String> {
    let Some(main) = rank.main_process() else { return Vec::new() };
    let mut lines = Vec::new();
    for thread in main.threads.iter().skip(1).filter(|thread| !thread.frames.is_empty()) {
        let name = thread.name.as_deref().unwrap_or("without a name");
        lines.push(format!("  thread {}:", escape(name)));
        lines.extend(frames(&thread.frames));
    }
    for process in rank.processes.iter().filter(|process| process.pid != main.pid && process.state != 'Z') {
        match process.main_frames() {
            [] => lines.push(format!("  process {}", without_python(process))),
            all => {
                lines.push(format!("  process {} (pid {}):", escape(&process.name), process.pid));
                lines.extend(frames(all));
            }
        }
    }
    lines
}

fn last_line(rank: &RankStacks) -> Option<String> {
    let ago = Duration::try_from_secs_f64(rank.silent_seconds?).unwrap_or_default();
    let line = rank.last_line.as_ref()?;
    Some(format!("  last output, {} ago: {}", lasted(ago), escape(line)))
}

#[cfg(test)]
mod tests {
    use super::super::dump::tests::{frame, rank};
    use super::*;
    use crate::model::Role;

    const FACTS: HangFacts = HangFacts {
        silence: Duration::from_secs(602),
        watched: Duration::from_secs(5),
        seen: SeenOutput::All,
        has_other_nodes: false,
    };

    fn lines(count: usize, ended: &[usize]) -> Vec<RankLine> {
        let label = |number| ProcessLabel { role: Role::Trainer, number };
        let line = |n| RankLine { local_rank: n, label: label(8 + n), has_ended: ended.contains(&n), place: None };
        (0..count).map(line).collect()
    }

    fn all_reduce() -> Vec<StackFrame> {
        let library = "/v/lib/python3.12/site-packages/torch/distributed/distributed_c10d.py";
        vec![frame("all_reduce", library, 2806), frame("<module>", "train.py", 9)]
    }

    #[test]
    fn the_odd_rank_is_last_with_all_its_threads_and_the_cpu_that_it_uses() {
        let mut odd = rank(1, 'R', &[frame("load", "data.py", 7), frame("<module>", "train.py", 3)]);
        odd.processes[0].cpu_seconds_watched = Some(4.9);
        let loader = super::super::dump::ThreadStack {
            thread: Some(9),
            name: Some("loader".into()),
            frames: vec![frame("wait", "data.py", 2)],
        };
        odd.processes[0].threads.push(loader);
        odd.last_line = Some("half\u{1b}".into());
        let dump = StackDump { ranks: vec![rank(0, 'S', &all_reduce()), odd, rank(2, 'S', &all_reduce())] };
        let text = render_hang(&dump, &lines(3, &[]), FACTS);
        assert_eq!(
            text,
            "the job seems to hang: no rank has written anything for 10 min 2 s, and no Python stack has moved for 5.0 s\n\
             ranks 8, 10 (2 of 3): waiting for other ranks in all_reduce, called by <module> (train.py:9)\n    \
             all_reduce (torch/distributed/distributed_c10d.py:2806)\n    \
             <module> (train.py:9)\n  \
             last output, 1 min 0 s ago: step 7\n\
             rank 9 (1 of 3): in load (data.py:7); uses 98 % of a CPU\n    \
             load (data.py:7)\n    \
             <module> (train.py:3)\n  \
             thread loader:\n    \
             wait (data.py:2)\n  \
             last output, 1 min 0 s ago: half\\u{1b}\n\
             rank 9 is the odd one: the others wait in all_reduce, and rank 9 is in load (data.py:7)"
        );
    }

    #[test]
    fn what_is_not_seen_is_not_claimed() {
        let dump = StackDump { ranks: vec![rank(0, 'S', &all_reduce())] };
        let head =
            |seen| render_hang(&dump, &lines(1, &[]), HangFacts { seen, ..FACTS }).lines().next().map(str::to_owned);
        let stderr = head(SeenOutput::Only(Stream::Stderr));
        assert!(
            stderr.is_some_and(|text| text.contains("no rank has written anything to stderr for 10 min 2 s, and no"))
        );
        let nothing = head(SeenOutput::None);
        assert_eq!(nothing.as_deref(), Some("the job seems to hang: no Python stack has moved for 5.0 s"));
    }

    #[test]
    fn other_nodes_and_ranks_that_have_ended_are_mentioned() {
        let dump = StackDump { ranks: vec![rank(0, 'S', &all_reduce())] };
        let text = render_hang(&dump, &lines(1, &[]), HangFacts { has_other_nodes: true, ..FACTS });
        assert!(
            text.starts_with("the ranks of this node wait, perhaps for those of other nodes: no rank has "),
            "{text}"
        );
        let text = render_stacks(&dump, &lines(2, &[1]));
        assert!(text.ends_with("\nrank 9 has ended, and the others wait for it in all_reduce"), "{text}");
        let text = render_answered(&dump, &lines(2, &[1]), 6);
        assert!(text.starts_with("rank 8 (1 of 8): "), "{text}");
        assert!(
            text.ends_with("\nof those that have answered, rank 9 has ended, and the others wait for it in all_reduce")
        );
    }

    #[test]
    fn a_rank_without_python_and_one_at_its_exit() {
        let mut shell = rank(0, 'D', &[]);
        shell.processes[0].wait_channel = Some("nfs_wait".into());
        let exit = [frame("_shutdown", "/usr/lib/python3.12/threading.py", 1590)];
        let text = render_stacks(&StackDump { ranks: vec![shell, rank(1, 'S', &exit)] }, &lines(2, &[]));
        assert!(text.contains("rank 8 (1 of 2): python (pid 100) waiting in the kernel, uninterruptibly in nfs_wait; no Python stack: no Python"), "{text}");
        assert!(text.contains("rank 9 (1 of 2): at its exit, in _shutdown (python3.12/threading.py:1590)"), "{text}");
    }
}
