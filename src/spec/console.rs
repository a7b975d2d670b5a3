//! `--console_ranks`, `--log_prefix`, `--pty` and `--console_drain_timeout`: which ranks' output the console shows, and how.

use crate::model::{ProcessLabel, Role};
use crate::spec::error::SpecError;
use crate::spec::options::OptValues;
use std::collections::BTreeSet;
use std::time::Duration;

/// The prefix of each line of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PrefixKind {
    /// Nothing.
    None,
    /// The rank.
    Rank,
    /// The node's name.
    Host,
    /// Both.
    RankAndHost,
}

/// What the console shows of the ranks' output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConsoleSpec {
    /// The processes that it shows.
    pub shown: ShownLogs,
    /// The prefix of each line; `None`: the rank if several are shown, else none.
    pub prefix: Option<PrefixKind>,
    /// Whether a single rank without a prefix gets a terminal, if the console is one.
    pub pty: bool,
    /// How long it may take to show the rest once all ranks have ended.
    pub drain_timeout: Duration,
}

/// The processes whose logs the console shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ShownLogs {
    /// This node's first rank, or its first process if it has no rank.
    First,
    /// All processes.
    All,
    /// The trainers with these global ranks.
    These(BTreeSet<usize>),
}

impl ConsoleSpec {
    /// The warning about requested ranks that a job of `world_size` ranks does not have.
    pub fn without_rank(&self, world_size: usize) -> Option<String> {
        let ShownLogs::These(ranks) = &self.shown else { return None };
        let absent: Vec<String> = ranks.range(world_size..).map(usize::to_string).collect();
        (!absent.is_empty()).then(|| {
            let (list, last) = (absent.join(","), world_size.saturating_sub(1));
            format!("--console_ranks {list}: the job has no such rank; its ranks are 0 to {last}")
        })
    }

    /// Returns the indices of the processes that the console shows.
    pub fn select(&self, all: &[ProcessLabel]) -> Vec<usize> {
        let is_rank = |process: &ProcessLabel| process.role == Role::Trainer;
        match &self.shown {
            ShownLogs::First => vec![all.iter().position(is_rank).unwrap_or(0)],
            ShownLogs::All => (0..all.len()).collect(),
            ShownLogs::These(ranks) => {
                (0..all.len()).filter(|&i| is_rank(&all[i]) && ranks.contains(&all[i].number)).collect()
            }
        }
    }
}

/// Reads the option that both front ends have, by their names.
pub fn drain_timeout(values: &OptValues, name: &str) -> Result<Duration, SpecError> {
    Ok(Duration::from_secs_f64(values.seconds(name)?.unwrap_or(30.0)))
}

/// Reads and checks these options.
pub fn check(values: &OptValues) -> Result<ConsoleSpec, SpecError> {
    let prefix = match values.text("log_prefix").unwrap_or("auto") {
        "" | "auto" => None,
        "none" => Some(PrefixKind::None),
        "rank" => Some(PrefixKind::Rank),
        "host" => Some(PrefixKind::Host),
        "rank,host" | "host,rank" => Some(PrefixKind::RankAndHost),
        _ => return Err(values.error("log_prefix", "is not a prefix", "give auto, none, rank, host or rank,host")),
    };
    let shown = match values.text("console_ranks").unwrap_or("first").trim() {
        "first" => ShownLogs::First,
        "all" => ShownLogs::All,
        "" | "none" => ShownLogs::These(BTreeSet::new()),
        list => ShownLogs::These(list.split(',').map(|word| word.trim().parse()).collect::<Result<_, _>>().map_err(
            |_| {
                values.error(
                    "console_ranks",
                    "is not a list of ranks",
                    "give numbers separated by commas, first, all, or none",
                )
            },
        )?),
    };
    let pty = match values.text("pty") {
        None | Some("" | "auto") => true,
        Some("never") => false,
        Some(_) => return Err(values.error("pty", "is not a choice", "give auto or never")),
    };
    Ok(ConsoleSpec { shown, prefix, pty, drain_timeout: drain_timeout(values, "console_drain_timeout")? })
}
