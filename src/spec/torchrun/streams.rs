//! Which of a rank's streams go where.

use super::read;
use crate::spec::options::Values;
use crate::spec::{SpecError, shown};
use std::collections::{BTreeMap, BTreeSet};

/// What happens to one stream of one rank. With neither it is the launcher's own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Way {
    /// It goes to a log; that is so of what is tee'd too.
    pub redirect: bool,
    /// It is shown on the console from there.
    pub tee: bool,
}

/// What happens to both streams of one rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ways {
    /// Its stdout.
    pub stdout: Way,
    /// Its stderr.
    pub stderr: Way,
}

/// `--redirects` or `--tee`: bits, 1 for stdout and 2 for stderr.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Choice {
    All(u8),
    ByLocalRank(BTreeMap<usize, u8>),
}

impl Choice {
    fn of(&self, local_rank: usize) -> u8 {
        match self {
            Choice::All(bits) => *bits,
            Choice::ByLocalRank(map) => map.get(&local_rank).copied().unwrap_or(0),
        }
    }
}

/// What happens to the streams of each rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Streams {
    redirects: Choice,
    tee: Choice,
}

impl Streams {
    /// What happens to those of this rank, by its number on this node.
    pub fn of(&self, local_rank: usize) -> Ways {
        let (redirects, tee) = (self.redirects.of(local_rank), self.tee.of(local_rank));
        let way = |bit| Way { redirect: (redirects | tee) & bit != 0, tee: tee & bit != 0 };
        Ways { stdout: way(1), stderr: way(2) }
    }
}

/// Reads and checks both.
pub fn check(values: &Values) -> Result<Streams, SpecError> {
    Ok(Streams { redirects: choice(values, "redirects")?, tee: choice(values, "tee")? })
}

fn choice(values: &Values, name: &str) -> Result<Choice, SpecError> {
    let text = values.text(name).unwrap_or("0");
    let bits = |text: &str| match text {
        "0" | "1" | "2" | "3" => text.parse().ok(),
        _ => None,
    };
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    let pair = |pair: &str| {
        let (rank, value) = pair.split_once(':')?;
        Some((rank.parse().ok().filter(|_| digits(rank))?, bits(value)?))
    };
    let map = || text.split(',').map(pair).collect::<Option<_>>().map(Choice::ByLocalRank);
    bits(text).map(Choice::All).or_else(map).ok_or_else(|| {
        let why = format!(r"{} does not match: <^[0123]$> or <^(\d+:[0123],)*(\d+:[0123])$>", shown(text));
        values.error(name, &why, "give 0, 1 (stdout), 2 (stderr) or 3 (both), or that by local rank, such as 0:3,1:2")
    })
}

/// `--local-ranks-filter`; `None`: all.
pub fn local_ranks(values: &Values) -> Result<Option<BTreeSet<usize>>, SpecError> {
    let Some(text) = values.text("local-ranks-filter").filter(|text| !text.is_empty()) else { return Ok(None) };
    let ranks: Option<Vec<i64>> = text.split(',').map(read::int).collect();
    let ranks = ranks.ok_or_else(|| {
        let why = "--local_ranks_filter must be a comma-separated list of integers";
        values.error("local-ranks-filter", why, "e.g. --local_ranks_filter=0,1,2")
    })?;
    // A negative number is no rank's.
    Ok(Some(ranks.into_iter().filter_map(|rank| rank.try_into().ok()).collect()))
}
