//! The options about what people see of the ranks' logs.

use super::SpecError;
use super::options::Values;
use crate::model::{Role, Who};
use std::collections::BTreeSet;

/// What stands before each line of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PrefixKind {
    /// Nothing.
    None,
    /// Its number.
    Rank,
    /// Its node.
    Host,
    /// Both.
    RankAndHost,
}

/// What the console shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConsoleSpec {
    /// Whose logs.
    pub shown: Shown,
    /// What stands before each line; `None`: the rank, if there are several.
    pub prefix: Option<PrefixKind>,
}

/// Whose logs the console shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Shown {
    /// That of this node's first rank, or of its first process if no rank is here.
    First,
    /// All processes'.
    All,
    /// Those of these ranks, by number in the job. They name no server.
    These(BTreeSet<usize>),
}

impl ConsoleSpec {
    /// Which of these processes it shows, by their places.
    pub fn chosen(&self, all: &[Who]) -> Vec<usize> {
        let is_rank = |who: &Who| who.role == Role::Trainer;
        match &self.shown {
            Shown::First => vec![all.iter().position(is_rank).unwrap_or(0)],
            Shown::All => (0..all.len()).collect(),
            Shown::These(ranks) => {
                (0..all.len()).filter(|&i| is_rank(&all[i]) && ranks.contains(&all[i].number)).collect()
            }
        }
    }
}

/// Reads and checks them.
pub fn check(values: &Values) -> Result<ConsoleSpec, SpecError> {
    let prefix = match values.text("prefix").unwrap_or("auto") {
        "" | "auto" => None,
        "none" => Some(PrefixKind::None),
        "rank" => Some(PrefixKind::Rank),
        "host" => Some(PrefixKind::Host),
        "rank,host" | "host,rank" => Some(PrefixKind::RankAndHost),
        _ => return Err(values.error("prefix", "is no prefix", "give auto, none, rank, host or rank,host")),
    };
    let shown = match values.text("console_ranks").unwrap_or("first").trim() {
        "first" => Shown::First,
        "all" => Shown::All,
        "" | "none" => Shown::These(BTreeSet::new()),
        list => {
            Shown::These(list.split(',').map(|word| word.trim().parse()).collect::<Result<_, _>>().map_err(|_| {
                values.error(
                    "console_ranks",
                    "is no list of ranks",
                    "give numbers joined by commas, first, all, or none",
                )
            })?)
        }
    };
    Ok(ConsoleSpec { shown, prefix })
}
