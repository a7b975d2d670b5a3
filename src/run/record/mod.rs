//! Records for programs: the journal `events.jsonl` and the result `result.json`.

pub mod journal;
pub mod result;
