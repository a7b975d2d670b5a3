//! What the records of a run say: its events in order, and its result.

use super::event_text::{EventText, Weight};
use super::fields;
use super::phases::{JobPhases, RankLane};
use super::usage::curves::Curves;
use crate::model::{Exit, ProcessLabel};
use serde_json::Value;
use std::collections::BTreeMap;

/// Failed attempts that are kept: the last ones.
const MAX_FAILED: usize = 20;
/// Reports of hangs that are kept: the last ones.
const MOST_REPORTS: usize = 5;

/// An event of the whole job.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct JobEvent {
    /// Seconds since the first event.
    pub at: f64,
    /// Wall time as the journal has it.
    pub time: String,
    /// For people.
    pub text: String,
    pub weight: Weight,
}

/// The stacks that an event has.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct StackReport {
    pub at: f64,
    pub title: String,
    pub text: String,
}

/// An attempt that another one followed.
#[derive(Debug)]
pub(super) struct FailedAttempt {
    pub attempt: usize,
    pub at: f64,
    pub culprit: ProcessLabel,
    pub exit: Option<Exit>,
    /// The error that it printed, in a line.
    pub message: Option<String>,
}

/// A rank that seems to have failed first in an attempt. Ranks that end at one time may be recorded in any order, and a rank
/// that other nodes had stopped ends like one that failed.
#[derive(Debug)]
struct PresumedCulprit {
    label: ProcessLabel,
    attempt: usize,
    /// The index of its event.
    event: usize,
}

/// The records of a run.
#[derive(Debug, Default)]
pub struct RunRecord {
    /// The content of result.json; `None`: there is none.
    pub(super) result: Option<Value>,
    /// The first `job_started` event.
    pub(super) start: Option<Value>,
    /// The last `job_ended` event.
    pub(super) end: Option<Value>,
    pub(super) lanes: BTreeMap<ProcessLabel, RankLane>,
    pub(super) job: JobPhases,
    pub(super) events: Vec<JobEvent>,
    pub(super) reports: Vec<StackReport>,
    /// Reports that were dropped because newer ones came.
    pub(super) dropped_reports: usize,
    pub(super) failed_attempts: Vec<FailedAttempt>,
    /// Failed attempts that were dropped because newer ones came.
    pub(super) dropped_attempts: usize,
    /// What the ranks used.
    pub(super) curves: Curves,
    /// The monotonic time of the first event.
    began: Option<f64>,
    /// Seconds from the first event to the last.
    pub(super) seconds: f64,
    /// The number of the signal that stopped the job.
    pub(super) stop_signal: Option<i32>,
    /// The number of nodes of the last round.
    pub(super) nnodes: Option<usize>,
    /// A stop has begun in this attempt: ranks that end from now on are victims.
    is_stopping: bool,
    presumed: Option<PresumedCulprit>,
    skipped: usize,
}

impl RunRecord {
    /// Adds a line of events.jsonl. One that is no event is counted and skipped.
    pub fn add_line(&mut self, line: &[u8]) {
        if line.trim_ascii().is_empty() {
            return;
        }
        match fields::document(line) {
            Ok(event) if fields::text(&event, "event").is_some() && fields::number(&event, "monotonic").is_some() => {
                self.add_event(event);
            }
            _ => self.skipped += 1,
        }
    }

    /// Adds the content of result.json, after all lines.
    pub fn set_result(&mut self, result: Value) {
        let culprit = fields::label(&result, "culprit_role", "culprit").filter(|label| self.lanes.contains_key(label));
        let has_failed =
            |rank: &Value, label| fields::label(rank, "role", "rank") == Some(label) && rank["status"] == "failed";
        let ranks = result["ranks"].as_array();
        let is_right = self.presumed.as_ref().is_some_and(|presumed| {
            ranks.is_none_or(|ranks| ranks.is_empty() || ranks.iter().any(|rank| has_failed(rank, presumed.label)))
        });
        if culprit.is_some() || !is_right {
            self.settle_culprit(culprit);
        }
        self.result = Some(result);
    }

    /// The content of result.json.
    pub fn result(&self) -> Option<&Value> {
        self.result.as_ref()
    }

    /// The ranks that failed first in the attempts that others followed.
    pub fn failures(&self) -> impl Iterator<Item = (usize, ProcessLabel)> {
        self.failed_attempts.iter().map(|failed| (failed.attempt, failed.culprit))
    }

    /// The attempts that others followed, a line each: the rank that failed first, and its reason.
    pub fn describe_failures(&self) -> impl Iterator<Item = String> {
        self.failed_attempts.iter().map(|failed| {
            let exit = failed.exit.map_or(String::new(), |exit| format!(", {exit}"));
            let why = failed.message.as_deref().filter(|text| !text.is_empty());
            let why = why.map_or(String::new(), |text| format!(": {text}"));
            format!("attempt {} failed: {}{exit}{why}", failed.attempt, failed.culprit)
        })
    }

    /// Lines that were no events.
    pub fn skipped_lines(&self) -> usize {
        self.skipped
    }

    /// Whether there is neither an event nor a result.
    pub fn is_empty(&self) -> bool {
        self.began.is_none() && self.result.is_none()
    }

    /// The name of the job.
    pub(super) fn job_id(&self) -> &str {
        self.fact("job_id").unwrap_or("unknown")
    }

    /// A text that the result has, or the first event.
    pub(super) fn fact(&self, name: &str) -> Option<&str> {
        let documents = [&self.result, &self.start];
        documents.into_iter().flatten().find_map(|document| fields::text(document, name))
    }

    fn add_event(&mut self, event: Value) {
        let monotonic = fields::number(&event, "monotonic").unwrap_or_default();
        let began = *self.began.get_or_insert(monotonic);
        // Two launchers that share a file may write out of order.
        let at = (monotonic - began).max(0.0);
        self.seconds = self.seconds.max(at);
        self.update_phases(&event, at);
        if let Some(EventText { text, weight }) = EventText::of(&event) {
            let time = fields::text(&event, "time").unwrap_or_default().to_owned();
            self.events.push(JobEvent { at, time, text, weight });
        }
        if let Some(report) = fields::text(&event, "report") {
            let title = EventText::of(&event).map(|event| event.text).unwrap_or_default();
            self.reports.push(StackReport { at, title, text: report.to_owned() });
            if self.reports.len() > MOST_REPORTS {
                self.reports.remove(0);
                self.dropped_reports += 1;
            }
        }
        match event["event"].as_str() {
            Some("job_started") if self.start.is_none() => self.start = Some(event),
            Some("job_ended") => self.end = Some(event),
            Some("stopping") => self.stop_signal = event["signal"].as_i64().and_then(|number| number.try_into().ok()),
            Some("sample") => self.curves.add(&event, at),
            Some("round_started") => self.nnodes = fields::count(&event, "nnodes"),
            _ => {}
        }
    }

    fn update_phases(&mut self, event: &Value, at: f64) {
        let attempt = fields::count(event, "attempt").unwrap_or_default();
        match event["event"].as_str().unwrap_or_default() {
            "job_started" => self.job.begin("starting", at),
            "round_started" => {
                self.job.begin_round(fields::count(event, "round").unwrap_or_default(), at);
                self.is_stopping = false;
            }
            "rank_started" | "rank_not_started" => {
                let Some(label) = fields::label(event, "role", "rank") else { return };
                self.is_stopping &= self.job.attempt() == Some(attempt);
                let since = self.job.begin_attempt(attempt, at);
                let lane = self.lanes.entry(label).or_default();
                lane.start(event, since, at);
                if event["event"] == "rank_not_started" {
                    self.stop_all(at);
                }
            }
            "rank_ended" => {
                let Some(label) = fields::label(event, "role", "rank") else { return };
                let failed = self.lanes.entry(label).or_default().end(event, self.is_stopping, at);
                if failed {
                    self.stop_all(at);
                    self.presumed = Some(PresumedCulprit { label, attempt, event: self.events.len() });
                    let time = fields::text(event, "time").unwrap_or_default().to_owned();
                    let text = failure(label, attempt, fields::exit(&event["exit"]));
                    self.events.push(JobEvent { at, time, text, weight: Weight::Bad });
                }
            }
            "stopping" | "restart_requested" => self.stop_all(at),
            "forced" | "killing" | "finishing" | "unkillable" => {
                for label in fields::labels(event, "living_roles", "living") {
                    self.lanes.entry(label).or_default().stop(at);
                }
            }
            "restarting" => {
                if let Some(culprit) = fields::label(event, "culprit_role", "culprit") {
                    let (exit, message) = (fields::exit(&event["exit"]), fields::text(event, "message"));
                    let (attempt, message) = (attempt.saturating_sub(1), message.map(str::to_owned));
                    self.failed_attempts.push(FailedAttempt { attempt, at, culprit, exit, message });
                    if self.failed_attempts.len() > MAX_FAILED {
                        self.failed_attempts.remove(0);
                        self.dropped_attempts += 1;
                    }
                }
                self.settle_culprit(fields::label(event, "culprit_role", "culprit"));
                self.job.begin("restart delay", at);
                self.is_stopping = false;
            }
            "round_ended" => {
                if !matches!(event["outcome"].as_str(), Some("failed" | "not_started")) {
                    self.settle_culprit(None);
                }
                self.presumed = None;
                self.job.begin("rendezvous", at);
                self.is_stopping = false;
            }
            "job_ended" => self.job.end(at),
            _ => {}
        }
    }

    /// Says which rank failed first in the attempt that has ended; `None`: none of this node.
    fn settle_culprit(&mut self, culprit: Option<ProcessLabel>) {
        let Some(presumed) = self.presumed.take().filter(|presumed| culprit != Some(presumed.label)) else { return };
        if let Some(lane) = self.lanes.get_mut(&presumed.label) {
            lane.revoke_failure();
        }
        let lane = culprit.and_then(|label| Some((label, self.lanes.get_mut(&label)?)));
        match lane.and_then(|(label, lane)| Some((label, lane.declare_failure()?))) {
            Some((label, exit)) => self.events[presumed.event].text = failure(label, presumed.attempt, Some(exit)),
            None => drop(self.events.remove(presumed.event)),
        }
    }

    /// All ranks that run are being stopped from now on.
    fn stop_all(&mut self, at: f64) {
        self.is_stopping = true;
        self.lanes.values_mut().for_each(|lane| lane.stop(at));
    }
}

fn failure(label: ProcessLabel, attempt: usize, exit: Option<Exit>) -> String {
    let exit = exit.map_or_else(|| "unknown exit".to_owned(), |exit| exit.to_string());
    format!("{label} failed in attempt {attempt}: {exit}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::run_page::phases::PhaseKind::{Failed, Running, Starting, Stopped, Stopping};

    /// A record of these events, each a second after the one before.
    pub(crate) fn record(events: &[&str]) -> RunRecord {
        let mut record = RunRecord::default();
        for (at, event) in events.iter().enumerate() {
            record.add_line(
                format!("{{\"monotonic\": {}.0, \"time\": \"2026-01-02T03:04:05.0Z\", {event}}}", 100 + at).as_bytes(),
            );
        }
        record
    }

    const STARTED: &str = r#""event": "job_started", "job_id": "a", "host": "b", "ranks": 2, "argv": []"#;

    fn started(rank: usize, attempt: usize) -> String {
        format!(r#""event": "rank_started", "role": "rank", "rank": {rank}, "attempt": {attempt}, "pid": 7"#)
    }

    fn ended(rank: usize, attempt: usize, code: i32) -> String {
        format!(
            r#""event": "rank_ended", "role": "rank", "rank": {rank}, "attempt": {attempt}, "exit": {{"code": {code}}}"#
        )
    }

    #[test]
    fn a_failure_begins_the_stop_of_the_other_ranks() {
        let restarting = r#""event": "restarting", "attempt": 1, "of": 1, "culprit": 1, "culprit_role": "rank""#;
        let events =
            [STARTED, &started(0, 0), &started(1, 0), &ended(1, 0, 3), &ended(0, 0, 1), restarting, &started(0, 1)];
        let record = record(&events);
        let phases = |rank| -> Vec<_> {
            let lane = &record.lanes[&ProcessLabel::rank(rank)];
            lane.phases.iter().map(|phase| (phase.kind, phase.begin, phase.end)).collect()
        };
        assert_eq!(
            phases(0),
            [
                (Starting, 0.0, Some(1.0)),
                (Stopped, 1.0, Some(3.0)),
                (Stopping, 3.0, Some(4.0)),
                (Starting, 5.0, Some(6.0)),
                (Running, 6.0, None)
            ]
        );
        assert_eq!(phases(1), [(Starting, 0.0, Some(2.0)), (Failed, 2.0, Some(3.0))]);
        let job: Vec<_> = record.job.phases.iter().map(|phase| (phase.name.as_str(), phase.begin)).collect();
        assert_eq!(job, [("starting", 0.0), ("attempt 0", 1.0), ("restart delay", 5.0), ("attempt 1", 6.0)]);
    }

    #[test]
    fn the_culprit_is_the_one_that_the_launcher_names() {
        let kinds = |record: &RunRecord, rank| -> Vec<_> {
            record.lanes[&ProcessLabel::rank(rank)].phases.iter().map(|phase| phase.kind).collect()
        };
        let restarting = r#""event": "restarting", "attempt": 1, "of": 1, "culprit": 0, "culprit_role": "rank""#;
        let events = [STARTED, &started(0, 0), &started(1, 0), &ended(1, 0, 3), &ended(0, 0, 1)];
        let restarted = record(&[&events[..], &[restarting]].concat());
        assert_eq!((kinds(&restarted, 0), kinds(&restarted, 1)), (vec![Starting, Failed], vec![Starting, Stopped]));
        assert_eq!(restarted.events[1].text, "rank 0 failed in attempt 0: exit code 1");
        let regrouped =
            record(&[&events[..], &[r#""event": "round_ended", "round": 1, "outcome": "regrouped""#]].concat());
        assert_eq!(kinds(&regrouped, 1), [Starting, Stopped]);
        assert!(regrouped.events.iter().all(|event| event.weight != Weight::Bad));
        let mut failed = record(&events);
        failed.set_result(serde_json::json!({ "culprit": 0, "culprit_role": "rank" }));
        assert_eq!((kinds(&failed, 0), kinds(&failed, 1)), (vec![Starting, Failed], vec![Starting, Stopped]));
        let mut elsewhere = record(&events);
        let rank = serde_json::json!({ "role": "rank", "rank": 1, "status": "stopped" });
        elsewhere.set_result(serde_json::json!({ "culprit": null, "ranks": [rank] }));
        assert_eq!(kinds(&elsewhere, 1), [Starting, Stopped]);
    }

    #[test]
    fn lines_that_are_no_events_are_skipped() {
        let mut record = record(&[STARTED]);
        for line in ["", "{", "[]", "{}", r#"{"event": "x"}"#, r#"{"event": 1, "monotonic": 1}"#, "\u{0}"] {
            record.add_line(line.as_bytes());
        }
        assert_eq!(record.skipped_lines(), 6);
        record.add_line(br#"{"event": "rank_ended", "monotonic": 1, "role": "chief", "rank": -1}"#);
        assert!(record.lanes.is_empty());
    }
}
