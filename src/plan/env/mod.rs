//! Environment of processes: what all of them get, other frameworks, nested launchers.

pub mod base_env;
pub mod frameworks;
pub mod nested;
