//! Jobs and their ranks as tables, and as JSON.

use super::rank_facts::RankFacts;
use crate::model::plain_text::escape;
use crate::report::job_status::{JobStatus, RankStatus};
use crate::report::wording::{lasted, sized};
use crate::sys::clock;
use serde_json::{Value, json};
use std::time::Duration;

fn since(seconds: f64) -> String {
    lasted(Duration::try_from_secs_f64(clock::wall().as_secs_f64() - seconds).unwrap_or_default())
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
        let cells: Vec<String> = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
        format!("{}\n", cells.join("  ").trim_end())
    };
    rows.iter().map(line).collect()
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

/// A job and one line a rank.
pub(super) fn job(status: &JobStatus, facts: &[RankFacts]) -> String {
    let round = status.round.map(|round| format!(", round {round}")).unwrap_or_default();
    let attempt = if status.attempt > 0 { format!(", attempt {}", status.attempt) } else { String::new() };
    let nodes = if status.nnodes > 1 {
        format!(", {} nodes (these are the ranks of {})", status.nnodes, escape(&status.host))
    } else {
        String::new()
    };
    let mut text = format!(
        "job {} (pid {}): {} for {}{round}{attempt}{nodes}\nlogs: {}\n",
        escape(&status.job_id),
        status.launcher,
        status.phase.word(),
        since(status.phase_since),
        escape(&status.log_dir.display().to_string()),
    );
    if status.ranks.is_empty() {
        return text;
    }
    let mut rows = vec![heading(&["RANK", "STATE", "FOR", "PID", "CPU", "MEMORY", "PROCESSES", "LAST OUTPUT"])];
    rows.extend(status.ranks.iter().zip(facts).map(|(rank, facts)| row(rank, facts)));
    text += &columns(&rows);
    text
}

fn row(rank: &RankStatus, facts: &RankFacts) -> Vec<String> {
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
        shown(rank.since.map(since)),
        shown(rank.pid.map(|pid| pid.to_string())),
        shown(facts.cpu_percent.map(|percent| format!("{percent:.0} %"))),
        shown(facts.memory_bytes.map(sized)),
        if facts.processes > 0 { facts.processes.to_string() } else { missing() },
        shown(facts.silent_seconds.map(|seconds| format!("{} ago", ago(seconds)))),
    ]
}

/// The state with the facts of each rank among its fields.
pub(super) fn as_json(status: &JobStatus, facts: &[RankFacts]) -> Value {
    let mut value = json!(status);
    if let Some(ranks) = value["ranks"].as_array_mut() {
        for (rank, facts) in ranks.iter_mut().zip(facts) {
            if let (Some(rank), Value::Object(facts)) = (rank.as_object_mut(), json!(facts)) {
                rank.extend(facts);
            }
        }
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_longest_cell() {
        let rows = [heading(&["A", "B"]), heading(&["long", ""]), heading(&["ü", "x"])];
        assert_eq!(columns(&rows), "A     B\nlong\nü     x\n");
    }

    #[test]
    fn a_command_is_cut_between_characters() {
        let command = ["/usr/bin/python3".to_owned(), "ü".repeat(60)];
        assert_eq!(short_command(&command), format!("python3 {}...", "ü".repeat(32)));
    }
}
