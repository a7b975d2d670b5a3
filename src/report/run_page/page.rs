//! The page as a whole: its head, the outcome, and the sections in order.

use super::event_text::seconds;
use super::fields;
use super::html;
use super::outcome::{Outcome, RunState, capital, outcome};
use super::rank_rows::{RankRow, rank_rows};
use super::record::RunRecord;
use super::sections::{self, RankLog};
use super::timeline::timeline;
use crate::report::wording::counted;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::fmt::Write;

/// Bytes of the reason in the title.
const MAX_TITLE: usize = 200;

const HEAD: &str = include_str!("page_head.html");
const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");

/// The input of the page.
#[derive(Clone, Copy, Debug)]
pub struct RunPage<'a> {
    /// What the records say.
    pub record: &'a RunRecord,
    /// The log folder, as the user named it.
    pub folder: &'a str,
    /// Whether the job runs, if it has no result.
    pub state: RunState,
    /// The ends of the ranks' logs.
    pub logs: &'a [RankLog],
    /// The ends of the logs of those that failed first in attempts that others followed.
    pub failed: &'a BTreeMap<usize, RankLog>,
    /// What is wrong with the records, for people.
    pub notes: &'a [String],
}

/// The page as HTML.
pub fn page(run: &RunPage<'_>) -> String {
    let rows = rank_rows(run.record);
    let outcome = outcome(run.record, run.state);
    let mut page = head(run.record, &outcome);
    page += &summary(run, &rows, &outcome);
    page += &sections::culprit(run.record, &rows);
    page += &sections::failed_attempts(run.record, run.failed);
    page += &sections::stack_reports(run.record);
    page += &timeline(run.record, &rows);
    page += &sections::ranks(&rows, run.logs);
    page += &sections::logs(run.record, &rows, run.logs);
    page += &sections::events(run.record);
    page += &sections::environment(run.record);
    let version = env!("CARGO_PKG_VERSION");
    let _ = write!(page, "</main>\n<footer>Written by rlaunch {version}. This file needs no network.</footer>\n");
    let _ = write!(page, "<script>{SCRIPT}</script>\n</body>\n</html>\n");
    page
}

fn head(record: &RunRecord, outcome: &Outcome) -> String {
    // The one script that may run is this page's own.
    let hash = STANDARD.encode(Sha256::digest(SCRIPT));
    let colour = match outcome.class {
        "good" => "2b8a3e",
        "bad" => "d13438",
        "running" => "2f6fd0",
        _ => "b7791f",
    };
    let title = html::text(&title(record, outcome));
    // The title is last, as a user's text may look like a placeholder.
    HEAD.replace("@HASH@", &hash).replace("@COLOUR@", colour).replace("@STYLE@", STYLE).replace("@TITLE@", &title)
}

/// `Rank 1: KeyError: 'label' (train.py:96)`, so that the tabs of a browser differ; else the job and how it ended.
fn title(record: &RunRecord, outcome: &Outcome) -> String {
    let result = record.result.as_ref();
    let culprit = result.and_then(|result| fields::label(result, "culprit_role", "culprit"));
    let reason = result.and_then(|result| fields::text(result, "reason"));
    match (culprit, reason) {
        (Some(culprit), Some(reason)) => {
            let name = capital(&culprit.to_string());
            let reason = html::cut(reason.lines().next().unwrap_or(reason), MAX_TITLE).0.to_owned();
            if reason.to_lowercase().starts_with(&name.to_lowercase()) { reason } else { format!("{name}: {reason}") }
        }
        _ => format!("{}: {}", record.job_id(), outcome.word),
    }
}

fn summary(run: &RunPage<'_>, rows: &[RankRow], outcome: &Outcome) -> String {
    let record = run.record;
    let mut page = format!(
        "<header class=\"{}\"><p class=\"job\"><b class=\"state\">{}</b> job <strong>{}</strong></p>\n<h1>{}</h1>\n",
        outcome.class,
        outcome.word,
        html::text(record.job_id()),
        html::text(&outcome.sentence),
    );
    if let Some(end) = record.result.as_ref().and_then(|result| fields::text(result, "job_end")) {
        let _ = writeln!(page, "<p>{}</p>", html::text(end));
    }
    let notes = run.notes.iter().cloned().chain(leftovers(record));
    for note in notes {
        let _ = writeln!(page, "<p class=\"note\">{}</p>", html::text(&note));
    }
    page += "<dl class=\"facts\">\n";
    for (name, value) in facts(run, rows) {
        let class = if matches!(name, "Command" | "Log folder") { " class=\"long\"" } else { "" };
        let _ = writeln!(page, "<div{class}><dt>{name}</dt><dd>{}</dd></div>", html::text(&value));
    }
    page + "</dl></header>\n"
}

fn facts(run: &RunPage<'_>, rows: &[RankRow]) -> Vec<(&'static str, String)> {
    let record = run.record;
    let number = |name| record.result.as_ref().or(record.end.as_ref()).and_then(|result| fields::count(result, name));
    let started = record.start.as_ref().and_then(|start| fields::text(start, "time")).map(short_time);
    let words = record.start.as_ref().and_then(|start| start["argv"].as_array());
    let command = words.map(|words| words.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(" "));
    let folder = record.fact("log_dir").unwrap_or(run.folder);
    let facts = [
        ("Started", started),
        ("Duration", (record.seconds > 0.0).then(|| seconds(record.seconds))),
        ("Host", record.fact("host").map(str::to_owned)),
        ("Nodes", record.nnodes.filter(|nodes| *nodes > 1).map(|nodes| nodes.to_string())),
        (if record.nnodes.is_some_and(|nodes| nodes > 1) { "Ranks here" } else { "Ranks" }, {
            (!rows.is_empty()).then(|| rows.len().to_string())
        }),
        ("Restarts", number("restarts").map(|restarts| restarts.to_string())),
        ("Exit status", number("exit_status").map(|status| status.to_string())),
        ("Command", command),
        ("Log folder", Some(folder.to_owned())),
    ];
    facts.into_iter().filter_map(|(name, value)| Some((name, value?))).collect()
}

/// `2026-11-26 01:58:34 UTC` of the journal's form.
fn short_time(time: &str) -> String {
    match (time.split_once('T'), time.ends_with('Z')) {
        (Some((day, rest)), true) => {
            let clock = rest.split(['.', 'Z']).next().unwrap_or(rest);
            format!("{day} {clock} UTC")
        }
        _ => time.to_owned(),
    }
}

/// Processes that outlived their ranks.
fn leftovers(record: &RunRecord) -> Vec<String> {
    let Some(result) = &record.result else { return Vec::new() };
    let mut notes = Vec::new();
    if let Some(swept) = fields::count(result, "swept").filter(|swept| *swept > 0) {
        let processes = counted(swept, "process was", "processes were");
        notes.push(format!("{processes} left behind by no rank in particular and killed."));
    }
    let process = |left: &Value| Some(format!("{} (pid {})", fields::text(left, "name")?, fields::count(left, "pid")?));
    let left: Vec<String> =
        result["left_running"].as_array().into_iter().flatten().filter_map(process).take(20).collect();
    if !left.is_empty() {
        notes.push(format!("Left running on request: {}.", left.join(", ")));
    }
    notes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_whole_seconds() {
        assert_eq!(short_time("2026-11-26T01:58:34.096016Z"), "2026-11-26 01:58:34 UTC");
        assert_eq!(short_time("now"), "now");
    }
}
