//! The page of a run (`rlaunch report`): one HTML file without anything from a network, and the same run as a Chrome trace.
//! Input: the lines of events.jsonl, result.json and the ends of logs, none of which is trusted.

mod columns;
mod event_text;
mod fields;
mod html;
mod outcome;
mod page;
mod phases;
mod rank_rows;
mod record;
mod sections;
mod timeline;
mod trace;
mod usage;

pub use fields::document;
pub use outcome::RunState;
pub use page::{RunPage, page};
pub use rank_rows::{RankRow, rank_rows};
pub use record::RunRecord;
pub use sections::RankLog;
pub use trace::trace;
