//! The run as a Chrome trace: JSON that Perfetto and chrome://tracing open. One lane (`tid`) for the job and for each rank,
//! a complete event for each phase, an instant event for each event of the job. Times are in microseconds since the first
//! event. Format: "Trace Event Format" of the Chromium project.

use super::record::RunRecord;
use crate::model::plain_text;
use serde_json::{Value, json};

/// The one process of the trace.
const PROCESS: u32 = 1;
/// The lane of the job; those of ranks follow. Viewers reserve 0.
const JOB_LANE: usize = 1;

/// The trace of a run, as JSON.
pub fn trace(record: &RunRecord) -> String {
    let name = plain_text::escape(record.job_id());
    let mut events =
        vec![json!({ "ph": "M", "pid": PROCESS, "name": "process_name", "args": { "name": format!("job {name}") } })];
    let mut lane = |tid: usize, name: String| {
        events.push(json!({ "ph": "M", "pid": PROCESS, "tid": tid, "name": "thread_name", "args": { "name": name } }));
        let sort = json!({ "sort_index": tid });
        events.push(json!({ "ph": "M", "pid": PROCESS, "tid": tid, "name": "thread_sort_index", "args": sort }));
    };
    lane(JOB_LANE, "job".to_owned());
    let ranks = || record.lanes.iter().zip(JOB_LANE + 1..);
    for ((label, _), tid) in ranks() {
        lane(tid, label.to_string());
    }
    let complete = |tid: usize, name: &str, category: &str, (begin, end): (f64, Option<f64>), args: Value| {
        let duration = (end.unwrap_or(record.seconds) - begin).max(0.0);
        json!({
            "ph": "X", "pid": PROCESS, "tid": tid, "name": name, "cat": category, "ts": micros(begin),
            "dur": micros(duration), "args": args
        })
    };
    for phase in &record.job.phases {
        events.push(complete(JOB_LANE, &phase.name, "job", (phase.begin, phase.end), json!({})));
    }
    for ((_, lane), tid) in ranks() {
        for phase in &lane.phases {
            let exit = phase.exit.map(|exit| exit.to_string());
            let mut args = json!({ "attempt": phase.attempt, "pid": phase.pid, "exit": exit });
            if let Some(args) = args.as_object_mut() {
                args.retain(|_, value| !value.is_null());
            }
            events.push(complete(tid, phase.kind.name(), "rank", (phase.begin, phase.end), args));
        }
    }
    for event in &record.events {
        events.push(json!({
            "ph": "i", "s": "p", "pid": PROCESS, "tid": JOB_LANE, "name": plain_text::escape(&event.text), "cat": "event",
            "ts": micros(event.at), "args": { "time": plain_text::escape(&event.time) }
        }));
    }
    let lines: Vec<String> = events.iter().map(Value::to_string).collect();
    format!("{{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n{}\n]}}\n", lines.join(",\n"))
}

fn micros(seconds: f64) -> u64 {
    // A cast saturates.
    (seconds * 1e6).round() as u64
}
