//! The outcome of a run in one sentence.

use super::event_text::seconds;
use super::fields;
use super::record::RunRecord;
use crate::model::exit::signal_label;
use crate::report::wording::{counted, ended};
use serde_json::Value;

/// What is known of a job without its result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunState {
    /// Its launcher runs on this machine.
    Running,
    /// Its launcher has ended, or is on another machine.
    Unknown,
}

/// How a run ended.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Outcome {
    /// One word, for the label beside the sentence.
    pub word: &'static str,
    /// The class in the style sheet: `good`, `bad`, `stopped`, `running` or `unknown`.
    pub class: &'static str,
    pub sentence: String,
}

/// The outcome of this run.
pub(super) fn outcome(record: &RunRecord, state: RunState) -> Outcome {
    let time = seconds(record.seconds);
    if record.result.is_none() && state == RunState::Running {
        let sentence = format!("The job runs; its last event is {time} after its start.");
        return Outcome { word: "running", class: "running", sentence };
    }
    // A launcher writes the event first; it may be killed before the result is there.
    let Some(end) = record.result.as_ref().or(record.end.as_ref()) else {
        let sentence = format!(
            "The end of the job is not recorded: its last event is {time} after its start. It still runs elsewhere, or its \
            launcher was killed."
        );
        return Outcome { word: "no result", class: "unknown", sentence };
    };
    let word = fields::text(end, "outcome").unwrap_or_default();
    let (word, class) = match word {
        "completed" => ("completed", "good"),
        "failed" => ("failed", "bad"),
        "stopped" => ("stopped", "stopped"),
        "preempted" => ("preempted", "stopped"),
        "not_started" => ("not started", "bad"),
        "front_lost" | "supervisor_lost" => ("launcher killed", "bad"),
        "store_lost" => ("store lost", "bad"),
        "node_lost" => ("node lost", "bad"),
        "too_few_nodes" => ("too few nodes", "bad"),
        "refused" => ("refused", "bad"),
        _ => ("unknown", "unknown"),
    };
    let restarts = match fields::count(end, "restarts") {
        Some(restarts) if restarts > 0 => format!(" and {}", counted(restarts, "restart", "restarts")),
        _ => String::new(),
    };
    let what = match word {
        "completed" => format!("{} exited successfully", all_ranks(end, record)),
        "failed" => failed(end),
        "stopped" => match record.stop_signal {
            Some(signal) => format!("The job was stopped by {}", signal_label(signal)),
            None => "The job was stopped".to_owned(),
        },
        "preempted" => "The job was preempted".to_owned(),
        "not started" => match fields::label(end, "culprit_role", "culprit") {
            Some(culprit) => format!("{} could not be started", capital(&culprit.to_string())),
            None => "A rank could not be started".to_owned(),
        },
        "launcher killed" => "The launcher was killed, and the job with it".to_owned(),
        "store lost" => "The job's store was lost, so the ranks of this node were stopped".to_owned(),
        "node lost" => "Another node was lost, and the job with it".to_owned(),
        "too few nodes" => "Too few nodes joined in time".to_owned(),
        "refused" => "The job did not admit this node".to_owned(),
        _ => "The job ended in a way that this version of rlaunch does not know".to_owned(),
    };
    let time = if record.seconds > 0.0 { format!(" after {time}{restarts}") } else { String::new() };
    Outcome { word, class, sentence: format!("{what}{time}.") }
}

fn failed(end: &Value) -> String {
    let Some(culprit) = fields::label(end, "culprit_role", "culprit") else {
        return "The job failed on another node".to_owned();
    };
    let is_it = |rank: &&Value| fields::label(rank, "role", "rank") == Some(culprit);
    let rank = end["ranks"].as_array().and_then(|ranks| ranks.iter().find(is_it));
    let how =
        rank.and_then(|rank| fields::exit(&rank["exit"])).map_or(String::new(), |e| format!(" with {}", ended(e)));
    format!("{} failed{how}", capital(&culprit.to_string()))
}

fn all_ranks(end: &Value, record: &RunRecord) -> String {
    let count = end["ranks"].as_array().map(Vec::len).filter(|count| *count > 0).unwrap_or(record.lanes.len());
    match count {
        0 => "All ranks".to_owned(),
        1 => "The only rank".to_owned(),
        _ => format!("All {count} ranks"),
    }
}

pub(super) fn capital(text: &str) -> String {
    let mut rest = text.chars();
    rest.next().map_or_else(String::new, |first| first.to_uppercase().chain(rest).collect())
}
