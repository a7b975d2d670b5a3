//! The ranks of a run with what is known of each: from result.json, else from the events.

use super::fields;
use super::record::RunRecord;
use crate::model::{Exit, ProcessLabel};
use crate::report::wording::ended;
use serde_json::Value;
use std::collections::BTreeMap;

/// A rank in its last attempt.
#[derive(Clone, Debug, PartialEq)]
pub struct RankRow {
    /// Its role and number in the job.
    pub label: ProcessLabel,
    /// Its number on its node.
    pub local_rank: Option<usize>,
    /// The path of its log as result.json has it.
    pub log: Option<String>,
    /// How it ended, in a word or two.
    pub status: String,
    pub(super) exit: Option<Exit>,
    pub(super) why: Option<String>,
    pub(super) attempt: Option<usize>,
    pub(super) pid: Option<usize>,
    /// All other fields that are numbers, by name.
    pub(super) numbers: BTreeMap<String, f64>,
}

impl RankRow {
    /// Whether it failed by itself or could not be started.
    pub(super) fn has_failed(&self) -> bool {
        matches!(self.status.as_str(), "failed" | "not started" | "abandoned")
    }

    /// A number that its record has.
    pub fn number(&self, name: &str) -> Option<f64> {
        self.numbers.get(name).copied()
    }

    /// How it ended, with what a signal usually means if the launcher did not send it.
    pub fn exit_text(&self) -> Option<String> {
        self.exit.map(|exit| if self.has_failed() { ended(exit) } else { exit.to_string() })
    }
}

/// Ranks that fit in a view. Of more, those that failed come first.
pub(super) const FEW: usize = 24;

/// The ranks of the run, by role and number; of many, those that failed first.
pub fn rank_rows(record: &RunRecord) -> Vec<RankRow> {
    let result = record.result.as_ref().and_then(|result| result["ranks"].as_array());
    let mut rows: Vec<RankRow> = match result.filter(|ranks| !ranks.is_empty()) {
        Some(ranks) => ranks.iter().filter_map(of_result).collect(),
        None => of_events(record),
    };
    let has_many = rows.len() > FEW;
    rows.sort_by_key(|row| (has_many && !row.has_failed(), row.label));
    rows
}

fn of_result(rank: &Value) -> Option<RankRow> {
    Some(RankRow {
        label: fields::label(rank, "role", "rank")?,
        local_rank: fields::count(rank, "local_rank"),
        log: fields::text(rank, "log").map(str::to_owned),
        status: fields::text(rank, "status").unwrap_or("unknown").replace('_', " "),
        exit: fields::exit(&rank["exit"]),
        why: fields::text(rank, "why").map(str::to_owned),
        attempt: fields::count(rank, "attempt"),
        pid: fields::count(rank, "pid"),
        numbers: fields::numbers(rank).into_iter().collect(),
    })
}

fn of_events(record: &RunRecord) -> Vec<RankRow> {
    let row = |(label, lane): (&ProcessLabel, &super::phases::RankLane)| {
        let last = lane.phases.last();
        let end = lane.last_end.as_ref();
        let mut numbers: BTreeMap<String, f64> = end.map(fields::numbers).into_iter().flatten().collect();
        numbers.insert("swept".to_owned(), lane.swept as f64);
        let attempt = last.map(|phase| phase.attempt);
        let own = lane.phases.iter().filter(|phase| Some(phase.attempt) == attempt && phase.pid.is_some());
        // `Starting` is the time before its process was there.
        let began = own.clone().find(|phase| phase.kind != super::phases::PhaseKind::Starting).map(|phase| phase.begin);
        if let (Some(began), Some(ended)) = (began, last.and_then(|phase| phase.end)) {
            numbers.insert("seconds".to_owned(), (ended - began).max(0.0));
        }
        let exit = end.and_then(|end| fields::exit(&end["exit"]));
        let status = match (last.map(|phase| phase.kind), exit) {
            _ if end.is_some_and(|end| end["event"] == "rank_not_started") => "not started",
            (_, Some(exit)) if exit.is_success() => "succeeded",
            (Some(kind), _) => kind.name(),
            (None, _) => "unknown",
        };
        RankRow {
            label: *label,
            local_rank: lane.local_rank,
            log: None,
            status: status.to_owned(),
            exit,
            why: end.and_then(|end| fields::text(end, "why")).map(str::to_owned),
            attempt,
            pid: last.and_then(|phase| phase.pid).and_then(|pid| usize::try_from(pid).ok()),
            numbers,
        }
    };
    record.lanes.iter().map(row).collect()
}
