//! Records for programs: the journal `events.jsonl` and the result `result.json`.

pub mod history;
pub mod job_culprit;
pub mod journal;
pub mod journal_event;
pub mod result;
