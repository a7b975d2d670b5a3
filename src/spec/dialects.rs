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

/// What is wrong with a list of which a name is none of them.
pub const UNKNOWN: &str = "names no framework that rlaunch knows";
/// The way out.
pub const HINT: &str = "give paddle, torch or jax, joined by commas";

/// Reads names joined by commas.
pub fn read(text: &str) -> Option<BTreeSet<Dialect>> {
    let named = |word: &str| NAMES.iter().find(|(name, _)| name.eq_ignore_ascii_case(word.trim())).map(|(_, one)| *one);
    text.split(',').map(named).collect()
}

/// Reads and checks the option `dialect`.
pub fn check(values: &Values) -> Result<BTreeSet<Dialect>, SpecError> {
    read(values.text("dialect").unwrap_or("")).ok_or_else(|| values.error("dialect", UNKNOWN, HINT))
}

/// The same for a kind of job that only Paddle has words for.
pub fn only_paddle(values: &Values, kind: &str) -> Result<(), SpecError> {
    if check(values)? == BTreeSet::from([Dialect::Paddle]) {
        return Ok(());
    }
    Err(values.error("dialect", &format!("{kind} have Paddle's variables alone"), "leave it out, or give paddle"))
}
