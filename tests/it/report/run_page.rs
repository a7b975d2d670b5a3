//! The page and the trace of a small run: two ranks, a restart, a hang, hostile text.

use rlaunch::model::ProcessLabel;
use rlaunch::report::run_page::{RankLog, RunPage, RunRecord, RunState, document, page, trace};
use std::collections::BTreeMap;

const EVENTS: &str = r#"
{"sequence":0,"time":"2026-01-02T03:04:05.5Z","monotonic":10.0,"event":"job_started","job_id":"a&b","host":"n1","ranks":2,"supervisor":7,"argv":["train","<x>"]}
{"sequence":1,"time":"2026-01-02T03:04:06.0Z","monotonic":10.5,"event":"rank_started","role":"rank","rank":0,"local_rank":0,"attempt":0,"pid":20}
{"sequence":2,"time":"2026-01-02T03:04:06.5Z","monotonic":11.0,"event":"rank_started","role":"rank","rank":1,"local_rank":1,"attempt":0,"pid":21}
not an event
{"sequence":3,"time":"2026-01-02T03:04:35.5Z","monotonic":40.0,"event":"hang","silent_seconds":20.0,"odd":[1],"odd_roles":["rank"],"report":"rank 1 is the odd one\n\tin <lambda>"}
{"sequence":4,"time":"2026-01-02T03:04:45.5Z","monotonic":50.0,"event":"rank_ended","role":"rank","rank":1,"local_rank":1,"attempt":0,"pid":21,"exit":{"signal":{"number":9,"name":"SIGKILL"}},"swept":1,"peak_memory_bytes":1048576}
{"sequence":5,"time":"2026-01-02T03:04:47.5Z","monotonic":52.0,"event":"rank_ended","role":"rank","rank":0,"local_rank":0,"attempt":0,"pid":20,"exit":{"signal":{"number":15,"name":"SIGTERM"}},"swept":0,"peak_memory_bytes":2097152}
{"sequence":6,"time":"2026-01-02T03:04:47.5Z","monotonic":52.0,"event":"restarting","attempt":1,"of":1,"culprit":1,"culprit_role":"rank","exit":{"signal":{"number":9,"name":"SIGKILL"}},"message":"","delay_seconds":2.0}
{"sequence":7,"time":"2026-01-02T03:04:49.5Z","monotonic":54.0,"event":"rank_started","role":"rank","rank":0,"local_rank":0,"attempt":1,"pid":22}
{"sequence":8,"time":"2026-01-02T03:04:49.5Z","monotonic":54.0,"event":"rank_started","role":"rank","rank":1,"local_rank":1,"attempt":1,"pid":23}
{"sequence":9,"time":"2026-01-02T03:05:05.5Z","monotonic":70.0,"event":"rank_ended","role":"rank","rank":0,"local_rank":0,"attempt":1,"pid":22,"exit":{"code":0},"swept":0,"peak_memory_bytes":2097152}
"#;

fn record() -> RunRecord {
    let mut record = RunRecord::default();
    EVENTS.lines().for_each(|line| record.add_line(line.as_bytes()));
    record
}

/// The page between its head, which has the style, and its script.
fn body(run: &RunPage<'_>) -> String {
    let page = page(run);
    let (begin, end) = (page.find("<main>").unwrap(), page.find("</main>").unwrap());
    page[begin..end].to_owned()
}

#[test]
fn a_run_without_a_result() {
    let lines = vec!["<b>step</b>".to_owned(), "\ttab".to_owned()];
    let log =
        RankLog { label: ProcessLabel::rank(1), path: "/log/workerlog.1".to_owned(), lines, cut: true, note: None };
    let notes = ["a note".to_owned()];
    let lines = vec!["KeyError: '<label>'".to_owned()];
    let path = "/log/rlaunch/attempt-0/workerlog.1".to_owned();
    let failed = BTreeMap::from([(0, RankLog { label: ProcessLabel::rank(1), path, lines, cut: false, note: None })]);
    let (record, logs) = (record(), [log]);
    let run = RunPage {
        record: &record,
        folder: "/log",
        state: RunState::Unknown,
        logs: &logs,
        failed: &failed,
        notes: &notes,
    };
    insta::assert_snapshot!(body(&run));
}

#[test]
fn a_run_with_a_result() {
    let mut record = record();
    let last = r#"{"monotonic":70.5,"event":"job_ended","outcome":"failed","exit_status":1}"#;
    record.add_line(last.as_bytes());
    let result = document(
        br#"{"job_id":"a&b","outcome":"failed","culprit":1,"culprit_role":"rank","exit_status":1,"log_dir":"/log","restarts":1,
        "verdict":"rank 1 failed","reason":"ValueError: <nan>","last_lines":"one\ntwo","environment":{"A":"<1>"},"swept":2,
        "left_running":[{"pid":9,"name":"sshd"}],"ranks":[{"role":"rank","rank":0,"status":"succeeded","exit":{"code":0},
        "attempt":1,"pid":22,"seconds":16.0,"peak_memory_bytes":2097152,"swept":0,"log":"/log/workerlog.0"},{"role":"rank","rank":1,
        "status":"failed","exit":{"code":1},"attempt":1,"pid":23,"seconds":16.5,"peak_memory_bytes":null,"swept":1,"log":""}]}"#,
    );
    record.set_result(result.unwrap());
    let run = RunPage {
        record: &record,
        folder: "/log",
        state: RunState::Unknown,
        logs: &[],
        failed: &BTreeMap::new(),
        notes: &[],
    };
    insta::assert_snapshot!(body(&run));
}

#[test]
fn a_job_that_runs() {
    let record = record();
    let run = RunPage {
        record: &record,
        folder: "/log",
        state: RunState::Running,
        logs: &[],
        failed: &BTreeMap::new(),
        notes: &[],
    };
    assert!(body(&run).contains("<h1>The job runs; its last event is 1 min 0 s after its start.</h1>"));
}

#[test]
fn the_page_has_a_box_for_each_of_the_last_attempts_that_failed() {
    let mut record = RunRecord::default();
    for attempt in 1..=25 {
        let event = format!(
            r#"{{"monotonic":{attempt}.0,"event":"restarting","attempt":{attempt},"culprit":0,"culprit_role":"rank"}}"#
        );
        record.add_line(event.as_bytes());
    }
    let run = RunPage {
        record: &record,
        folder: "/log",
        state: RunState::Unknown,
        logs: &[],
        failed: &BTreeMap::new(),
        notes: &[],
    };
    let body = body(&run);
    let boxes: Vec<usize> = (0..25).filter(|attempt| body.contains(&format!("Attempt {attempt}: rank 0"))).collect();
    assert_eq!(boxes, (5..25).collect::<Vec<_>>());
    assert!(body.contains("5 earlier attempts that failed are not shown"));
}

#[test]
fn the_trace_of_a_run() {
    insta::assert_snapshot!(trace(&record()));
}
