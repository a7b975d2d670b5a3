//! `--frameworks`: the frameworks whose variables the ranks receive.

use crate::spec::error::SpecError;
use crate::spec::options::OptValues;
use std::collections::BTreeSet;

/// A framework, by the variables from which it reads the rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Framework {
    /// PADDLE_TRAINER_ID, ...
    Paddle,
    /// RANK, MASTER_ADDR, ...
    Torch,
    /// JAX_PROCESS_ID, ...
    Jax,
}

/// The names of the frameworks.
pub const NAMES: [(&str, Framework); 3] =
    [("paddle", Framework::Paddle), ("torch", Framework::Torch), ("jax", Framework::Jax)];

/// The reason for refusing a list with another name.
pub const UNKNOWN: &str = "has an unknown framework";
/// What to do about it.
pub const HINT: &str = "give paddle, torch or jax, separated by commas";

/// Reads a comma-separated list; `None` if a name is unknown.
pub fn read(text: &str) -> Option<BTreeSet<Framework>> {
    let named = |word: &str| NAMES.iter().find(|(name, _)| name.eq_ignore_ascii_case(word.trim())).map(|(_, one)| *one);
    text.split(',').map(named).collect()
}

/// Reads and checks the option `frameworks`.
pub fn check(values: &OptValues) -> Result<BTreeSet<Framework>, SpecError> {
    read(values.text("frameworks").unwrap_or("")).ok_or_else(|| values.error("frameworks", UNKNOWN, HINT))
}

/// Refuses other frameworks than Paddle for a kind of job that only Paddle defines.
pub fn only_paddle(values: &OptValues, kind: &str) -> Result<(), SpecError> {
    if check(values)? == BTreeSet::from([Framework::Paddle]) {
        return Ok(());
    }
    Err(values.error("frameworks", &format!("{kind} support only Paddle's variables"), "leave it out, or give paddle"))
}
