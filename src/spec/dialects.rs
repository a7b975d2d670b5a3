//! Which frameworks' variables the ranks are given: a list, on any command line.

use super::SpecError;
use super::options::Values;
use std::collections::BTreeSet;

/// A framework, by how it tells a rank who it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Dialect {
    /// PADDLE_TRAINER_ID and so on.
    Paddle,
    /// RANK, MASTER_ADDR and so on.
    Torch,
    /// JAX_PROCESS_ID and so on.
    Jax,
}

/// Their names.
pub const NAMES: [(&str, Dialect); 3] = [("paddle", Dialect::Paddle), ("torch", Dialect::Torch), ("jax", Dialect::Jax)];

/// Reads and checks the option `dialect`: names joined by commas.
pub fn check(values: &Values) -> Result<BTreeSet<Dialect>, SpecError> {
    let named = |word: &str| NAMES.iter().find(|(name, _)| name.eq_ignore_ascii_case(word.trim())).map(|(_, one)| *one);
    let words = values.text("dialect").unwrap_or("").split(',');
    words.map(named).collect::<Option<_>>().ok_or_else(|| {
        values.error("dialect", "names no framework that rlaunch knows", "give paddle, torch or jax, joined by commas")
    })
}
