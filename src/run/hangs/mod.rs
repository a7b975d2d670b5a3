//! Ranks that hang, and ranks that have failed and do not exit.

pub mod exit_detector;
pub mod hang_detector;
