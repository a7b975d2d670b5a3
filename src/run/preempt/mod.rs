//! Preemption: notices that the ranks are to stop soon, and the step at which all of them do (`protocol/stop_step`). `event_loop/preempt.rs`
//! acts on both.

pub mod link;
mod message;
pub mod notice_watch;
pub mod stop_words;

pub use message::{NoStopMessage, StopMessage};
