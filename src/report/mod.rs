//! Log lines, failure reports and records as text. Pure: bytes and facts go in, bytes and text come out.
//! Nothing here opens a file or a terminal. The output of a rank is never trusted.

pub mod cause;
pub mod console;
pub mod failure_report;
pub mod github_annotation;
pub mod gpu_log;
pub mod job_status;
pub mod run_page;
pub mod secrets;
pub mod stacks;
pub mod torchrun_report;
pub(crate) mod wording;

pub use crate::report::cause::blame::{Blame, blame};
pub use crate::report::cause::fault::{CodeLocation, FaultKind, RankFault};
pub use crate::report::cause::lost_peer::{LostPeer, lost_peer};
pub use crate::report::console::interrupts::InterruptFilter;
pub use crate::report::console::lines::LineSplitter;
pub use crate::report::console::prefix::LinePrefix;
pub use crate::report::console::tail::{LogTail, tail};
pub use crate::report::failure_report::{FailureReport, render};
pub use crate::report::github_annotation::github_annotation;
