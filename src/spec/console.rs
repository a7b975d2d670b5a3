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
    /// Whose logs, by global rank; `None`: all processes'.
    pub ranks: Option<BTreeSet<usize>>,
    /// What stands before each line; `None`: the rank, if there are several.
    pub prefix: Option<PrefixKind>,
}

impl ConsoleSpec {
    /// Whether it shows this process. Numbers are those of ranks: they name no server.
    pub fn shows(&self, who: Who) -> bool {
        self.ranks.as_ref().is_none_or(|ranks| who.role == Role::Trainer && ranks.contains(&who.number))
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
    let ranks = match values.text("console_ranks").unwrap_or("0").trim() {
        "all" => None,
        "" | "none" => Some(BTreeSet::new()),
        list => Some(list.split(',').map(|word| word.trim().parse()).collect::<Result<_, _>>().map_err(|_| {
            values.error("console_ranks", "is no list of ranks", "give numbers joined by commas, all, or none")
        })?),
    };
    Ok(ConsoleSpec { ranks, prefix })
}
