//! Floor 2: what was asked. Options with where each value came from, and errors that name the field,
//! the value, the reason and the way out.

pub mod console;
pub mod dialects;
pub mod hostlist;
pub mod job;
pub mod launch;
pub mod legacy;
pub mod meeting;
pub mod nodes;
pub mod notify;
pub mod older_elastic;
pub mod options;
pub mod paddlecloud;
pub mod places;
pub mod ps;
pub mod restarts;
pub mod rotation;
pub mod scheduler;
pub mod spawn;
pub mod spawn_nodes;
pub mod torchrun;
pub mod tuner;
pub mod zygote;

use std::fmt;

pub use launch::{LaunchSpec, Script};

/// A request that cannot be met. One line when shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpecError {
    /// The option or variable, as the user wrote it: `--nproc_per_node`, `PADDLE_NNODES`.
    pub field: String,
    /// The value it had.
    pub value: String,
    /// What is wrong with it.
    pub why: String,
    /// What to do instead; may be empty.
    pub hint: String,
}

impl SpecError {
    /// An error about `field`, which had `value`.
    pub fn new(
        field: impl Into<String>,
        value: impl Into<String>,
        why: impl Into<String>,
        hint: impl Into<String>,
    ) -> Self {
        Self { field: field.into(), value: value.into(), why: why.into(), hint: hint.into() }
    }
}

/// Long values are shown by their beginning, and what would break the line is escaped.
pub fn shown(value: &str) -> String {
    const MOST: usize = 80;
    let mut text: String = value.chars().take(MOST).flat_map(char::escape_debug).collect();
    if value.chars().count() > MOST {
        text.push_str("...");
    }
    text
}

impl fmt::Display for SpecError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.field)?;
        if !self.value.is_empty() {
            write!(f, " {}", shown(&self.value))?;
        }
        write!(f, ": {}", self.why)?;
        if !self.hint.is_empty() {
            write!(f, "; {}", self.hint)?;
        }
        Ok(())
    }
}

impl std::error::Error for SpecError {}
