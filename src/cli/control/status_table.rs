//! Jobs and their ranks as tables.

use crate::model::plain_text::escape;
use crate::report::job_status::{JobStatus, RankStatus};
use crate::report::wording::{lasted, sized};
use crate::run::control::message::NodeEntry;
use crate::run::control::node_answer::NodeAnswer;
use crate::run::control::rank_facts::RankFacts;
use crate::sys::clock;
use std::time::Duration;

/// Characters of a cell that another node has filled.
const MOST_CELL: usize = 64;

fn since(seconds: f64) -> String {
    ago(clock::wall().as_secs_f64() - seconds)
}

fn ago(seconds: f64) -> String {
    lasted(Duration::try_from_secs_f64(seconds).unwrap_or_default())
}

/// Lines with columns of equal width, two blanks apart.
fn columns(rows: &[Vec<String>]) -> String {
    let count = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max();
    let widths: Vec<usize> = (0..count).map(|column| width(column).unwrap_or(0)).collect();
    let line = |row: &Vec<String>| {
        // A format's width has a limit.
        let pad = |(cell, width): (&String, &usize)| cell.clone() + &" ".repeat(width - cell.chars().count());
        format!("{}\n", row.iter().zip(&widths).map(pad).collect::<Vec<_>>().join("  ").trim_end())
    };
    rows.iter().map(line).collect()
}

fn cut(cell: String) -> String {
    match cell.char_indices().nth(MOST_CELL) {
        Some((end, _)) => format!("{}...", &cell[..end]),
        None => cell,
    }
}

fn heading(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

/// One line a job.
pub(super) fn jobs(jobs: &[JobStatus]) -> String {
    let mut rows = vec![heading(&["PID", "JOB", "STATE", "SINCE", "RANKS", "COMMAND", "LOGS"])];
    rows.extend(jobs.iter().map(|job| {
        let alive = job.ranks.iter().filter(|rank| rank.is_alive()).count();
        vec![
            job.launcher.to_string(),
            escape(&job.job_id),
            job.phase.word().to_owned(),
            since(job.started),
            format!("{alive} of {}", job.ranks.len()),
            short_command(&job.command),
            escape(&job.log_dir.display().to_string()),
        ]
    }));
    columns(&rows)
}

/// The command without the path of the interpreter, at most 40 characters.
fn short_command(command: &[String]) -> String {
    let base = command.first().map(|first| first.rsplit('/').next().unwrap_or(first).to_owned());
    let words: Vec<String> = base.into_iter().chain(command.iter().skip(1).cloned()).collect();
    let text = escape(&words.join(" "));
    match text.char_indices().nth(40) {
        Some((at, _)) => format!("{}...", &text[..at]),
        None => text,
    }
}

/// A node by its number and its machine, as far as they are known.
pub(super) fn named_node(entry: &NodeEntry) -> String {
    let host = escape(&entry.host);
    entry.node.map_or(host.clone(), |node| format!("node {node} ({host})"))
}

/// A job and one line a rank. `own`: the state of the node whose launcher was asked.
pub(super) fn job(own: &JobStatus, nodes: &[NodeEntry]) -> String {
    let round = own.round.map(|round| format!(", round {round}")).unwrap_or_default();
    let attempt = if own.attempt > 0 { format!(", attempt {}", own.attempt) } else { String::new() };
    let shown = match own.nnodes {
        ..=1 => String::new(),
        nnodes if nodes.len() > 1 => format!(", {nnodes} nodes"),
        nnodes => format!(", {nnodes} nodes (these are the ranks of {})", escape(&own.host)),
    };
    let mut text = format!(
        "job {} (pid {}): {} for {}{round}{attempt}{shown}\nlogs: {}\n",
        escape(&own.job_id),
        own.launcher,
        own.phase.word(),
        since(own.phase_since),
        escape(&own.log_dir.display().to_string()),
    );
    let has_nodes = nodes.len() > 1;
    let headings = ["NODE", "RANK", "STATE", "FOR", "PID", "CPU", "MEMORY", "PROCESSES", "LAST OUTPUT"];
    let mut rows = vec![heading(&headings[usize::from(!has_nodes)..])];
    for entry in nodes {
        let Some(NodeAnswer { at, status, facts, .. }) = &entry.answer else { continue };
        let none = RankFacts::default();
        for (number, rank) in status.ranks.iter().enumerate() {
            let node = entry.node.map_or(String::new(), |node| format!("{node} {}", escape(&entry.host)));
            let cells = row(*at, rank, facts.get(number).unwrap_or(&none));
            rows.push(has_nodes.then_some(node).into_iter().chain(cells).map(cut).collect());
        }
    }
    if rows.len() > 1 {
        text += &columns(&rows);
    }
    for entry in nodes {
        if let Some(error) = &entry.error {
            text += &format!("{} {error}\n", named_node(entry));
        }
    }
    text
}

/// `now`: the time on the rank's machine.
fn row(now: f64, rank: &RankStatus, facts: &RankFacts) -> Vec<String> {
    let state = match (&rank.exit, rank.pid) {
        (Some(exit), _) => exit.clone(),
        (None, Some(_)) => "running".to_owned(),
        (None, None) => "waiting".to_owned(),
    };
    let missing = || "-".to_owned();
    let shown = |text: Option<String>| text.unwrap_or_else(missing);
    vec![
        rank.label().to_string(),
        state,
        shown(rank.since.map(|since| ago(now - since))),
        shown(rank.pid.map(|pid| pid.to_string())),
        shown(facts.cpu_percent.map(|percent| format!("{percent:.0} %"))),
        shown(facts.memory_bytes.map(sized)),
        if facts.processes > 0 { facts.processes.to_string() } else { missing() },
        shown(facts.silent_seconds.map(|seconds| format!("{} ago", ago(seconds)))),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_longest_cell() {
        let rows = [heading(&["A", "B"]), heading(&["long", ""]), heading(&["ü", "x"])];
        assert_eq!(columns(&rows), "A     B\nlong\nü     x\n");
        let wide = "x".repeat(70_000);
        assert_eq!(columns(&[heading(&[&wide, "y"]), heading(&["", "z"])]).lines().count(), 2);
        assert_eq!((cut(wide), cut("ü".into())), ("x".repeat(MOST_CELL) + "...", "ü".into()));
    }

    #[test]
    fn a_command_is_cut_between_characters() {
        let command = ["/usr/bin/python3".to_owned(), "ü".repeat(60)];
        assert_eq!(short_command(&command), format!("python3 {}...", "ü".repeat(32)));
    }
}
