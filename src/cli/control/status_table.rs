//! Jobs and their ranks as tables.

use crate::model::plain_text::escape;
use crate::report::job_status::{JobStatus, RankStatus};
use crate::report::wording::{lasted, sized};
use crate::run::control::message::NodeEntry;
use crate::run::control::node_answer::NodeAnswer;
use crate::run::control::rank_facts::{RankCondition, RankFacts};
use crate::sys::clock;
use std::time::Duration;

/// The last columns, where a rank uses a GPU.
const GPU_COLUMNS: usize = 2;
/// Characters of a cell that another node has filled.
const MOST_CELL: usize = 64;

pub(super) fn since(seconds: f64) -> String {
    ago(clock::wall().as_secs_f64() - seconds)
}

pub(super) fn ago(seconds: f64) -> String {
    lasted(Duration::try_from_secs_f64(seconds).unwrap_or_default())
}

/// Lines with columns of equal width, two blanks apart.
pub(super) fn columns(rows: &[Vec<String>]) -> String {
    let widths = widths(rows);
    let line = |row: &Vec<String>| {
        // A format's width has a limit.
        let pad = |(cell, width): (&String, &usize)| cell.clone() + &" ".repeat(width - cell.chars().count());
        format!("{}\n", row.iter().zip(&widths).map(pad).collect::<Vec<_>>().join("  ").trim_end())
    };
    rows.iter().map(line).collect()
}

/// How wide each column is.
pub(super) fn widths(rows: &[Vec<String>]) -> Vec<usize> {
    let count = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max();
    (0..count).map(|column| width(column).unwrap_or(0)).collect()
}

fn cut(cell: String) -> String {
    match cell.char_indices().nth(MOST_CELL) {
        Some((end, _)) => format!("{}...", &cell[..end]),
        None => cell,
    }
}

pub(super) fn heading(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

/// A node by its number and its machine, as far as they are known.
pub(super) fn named_node(entry: &NodeEntry) -> String {
    let host = escape(&entry.host);
    entry.node.map_or(host.clone(), |node| format!("node {node} ({host})"))
}

/// What a job does, in one line. `own`: the state of the node whose launcher was asked; `now`: seconds since 1970.
pub(super) fn summary(own: &JobStatus, nodes: &[NodeEntry], now: f64) -> String {
    let round = own.round.map(|round| format!(", round {round}")).unwrap_or_default();
    let attempt = if own.attempt > 0 { format!(", attempt {}", own.attempt) } else { String::new() };
    let shown = match own.nnodes {
        ..=1 => String::new(),
        nnodes if nodes.len() > 1 => format!(", {nnodes} nodes"),
        nnodes => format!(", {nnodes} nodes (these are the ranks of {})", escape(&own.host)),
    };
    format!(
        "job {} (pid {}): {} for {}{round}{attempt}{shown}",
        escape(&own.job_id),
        own.launcher,
        own.state(),
        ago(now - own.phase_since),
    )
}

/// A rank in a table of those of all nodes.
pub(super) struct RankRow<'a> {
    pub entry: &'a NodeEntry,
    pub rank: &'a RankStatus,
    /// One cell a heading.
    pub cells: Vec<String>,
}

/// Whether a rank uses a GPU: else there are no columns for that.
fn has_gpus(nodes: &[NodeEntry]) -> bool {
    nodes.iter().filter_map(|entry| entry.answer.as_ref()).flat_map(|answer| &answer.facts).any(RankFacts::uses_gpus)
}

/// The headings of these rows.
pub(super) fn headings(nodes: &[NodeEntry]) -> Vec<String> {
    let all = ["NODE", "RANK", "STATE", "FOR", "PID", "CPU", "MEMORY", "PROCESSES", "LAST OUTPUT", "GPU", "GPU MEMORY"];
    let last = all.len() - if has_gpus(nodes) { 0 } else { GPU_COLUMNS };
    heading(&all[usize::from(nodes.len() <= 1)..last])
}

/// One row a rank, in the order of the nodes.
pub(super) fn rows(nodes: &[NodeEntry]) -> Vec<RankRow<'_>> {
    let (mut rows, none, has_gpus) = (Vec::new(), RankFacts::default(), has_gpus(nodes));
    for entry in nodes {
        let Some(NodeAnswer { at, status, facts, .. }) = &entry.answer else { continue };
        for (number, rank) in status.ranks.iter().enumerate() {
            let node = entry.node.map_or(String::new(), |node| format!("{node} {}", escape(&entry.host)));
            let mut cells = row(*at, rank, facts.get(number).unwrap_or(&none));
            if !has_gpus {
                cells.truncate(cells.len() - GPU_COLUMNS);
            }
            let cells = (nodes.len() > 1).then_some(node).into_iter().chain(cells).map(cut).collect();
            rows.push(RankRow { entry, rank, cells });
        }
    }
    rows
}

/// What is said of the nodes that have not answered.
pub(super) fn errors(nodes: &[NodeEntry]) -> impl Iterator<Item = String> {
    nodes.iter().filter_map(|entry| Some(format!("{} {}", named_node(entry), entry.error.as_ref()?)))
}

/// A job and one line a rank. `own`: the state of the node whose launcher was asked.
pub(super) fn job(own: &JobStatus, nodes: &[NodeEntry]) -> String {
    let mut text = format!(
        "{}\nlogs: {}\n",
        summary(own, nodes, clock::wall().as_secs_f64()),
        escape(&own.log_dir.display().to_string()),
    );
    let mut table = vec![headings(nodes)];
    table.extend(rows(nodes).into_iter().map(|row| row.cells));
    if table.len() > 1 {
        text += &columns(&table);
    }
    for error in errors(nodes) {
        text += &format!("{error}\n");
    }
    text
}

/// `now`: the time on the rank's machine.
fn row(now: f64, rank: &RankStatus, facts: &RankFacts) -> Vec<String> {
    let state = match (&rank.exit, rank.pid) {
        (Some(exit), _) => exit.clone(),
        (None, Some(_)) => facts.state.word().to_owned(),
        (None, None) => RankCondition::Waiting.word().to_owned(),
    };
    let missing = || "-".to_owned();
    let shown = |text: Option<String>| text.unwrap_or_else(missing);
    vec![
        rank.label().to_string(),
        state,
        shown(rank.since.map(|since| ago(now - since))),
        shown(rank.pid.map(|pid| pid.to_string())),
        shown(facts.cpu_percent.map(|percent| format!("{percent:.0} %"))),
        shown(facts.memory_bytes.map(|bytes| sized(bytes) + if facts.memory_is_resident { " RSS" } else { "" })),
        if facts.processes > 0 { facts.processes.to_string() } else { missing() },
        shown(last_output(rank, facts)),
        shown(facts.gpu_percent.map(|percent| format!("{percent:.0} %"))),
        shown(facts.gpu_memory_bytes.map(sized)),
    ]
}

/// How long ago a rank has written something; on which stream, where the other one is not seen.
fn last_output(rank: &RankStatus, facts: &RankFacts) -> Option<String> {
    let stream = || rank.logs.first().and_then(|log| log.file_stem()).unwrap_or_default().to_string_lossy();
    let in_log = || facts.log_silent_seconds.map(|seconds| format!("{} {} ago", escape(&stream()), ago(seconds)));
    facts.silent_seconds.map(|seconds| format!("{} ago", ago(seconds))).or_else(in_log)
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
}
