//! `--redirects` and `--tee`: the destinations of a rank's stdout and stderr.

use crate::spec::error::{SpecError, shown};
use crate::spec::options::OptValues;
use crate::spec::torchrun::values;
use std::collections::{BTreeMap, BTreeSet};

/// The destination of one stream of one rank. With neither it is the launcher's own stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StreamRoute {
    /// The stream is written to a log; also with `tee`.
    pub redirect: bool,
    /// The log is shown on the console.
    pub tee: bool,
}

/// The destinations of both streams of one rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RankRoutes {
    /// stdout.
    pub stdout: StreamRoute,
    /// stderr.
    pub stderr: StreamRoute,
}

impl RankRoutes {
    /// Whether a stream is written to a log.
    pub fn has_log(self) -> bool {
        self.stdout.redirect || self.stderr.redirect
    }
}

/// The value of `--redirects` or `--tee`: bits, 1 for stdout and 2 for stderr.
#[derive(Clone, Debug, PartialEq, Eq)]
enum StreamBits {
    All(u8),
    ByLocalRank(BTreeMap<usize, u8>),
}

impl StreamBits {
    fn of(&self, local_rank: usize) -> u8 {
        match self {
            StreamBits::All(bits) => *bits,
            StreamBits::ByLocalRank(map) => map.get(&local_rank).copied().unwrap_or(0),
        }
    }
}

/// The destinations of the streams of each rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamRoutes {
    redirects: StreamBits,
    tee: StreamBits,
}

impl StreamRoutes {
    /// Whether `--redirects` asks for a log of any rank.
    pub fn has_redirects(&self) -> bool {
        match &self.redirects {
            StreamBits::All(bits) => *bits != 0,
            StreamBits::ByLocalRank(map) => map.values().any(|bits| *bits != 0),
        }
    }

    /// The destinations for a local rank.
    pub fn of(&self, local_rank: usize) -> RankRoutes {
        let (redirects, tee) = (self.redirects.of(local_rank), self.tee.of(local_rank));
        let route = |bit| StreamRoute { redirect: (redirects | tee) & bit != 0, tee: tee & bit != 0 };
        RankRoutes { stdout: route(1), stderr: route(2) }
    }
}

/// Reads and checks both options.
pub fn check(values: &OptValues) -> Result<StreamRoutes, SpecError> {
    Ok(StreamRoutes { redirects: choice(values, "redirects")?, tee: choice(values, "tee")? })
}

fn choice(values: &OptValues, name: &str) -> Result<StreamBits, SpecError> {
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
    let map = || text.split(',').map(pair).collect::<Option<_>>().map(StreamBits::ByLocalRank);
    bits(text).map(StreamBits::All).or_else(map).ok_or_else(|| {
        let why = format!(r"{} does not match: <^[0123]$> or <^(\d+:[0123],)*(\d+:[0123])$>", shown(text));
        values.error(name, &why, "give 0, 1 (stdout), 2 (stderr) or 3 (both), or that by local rank, such as 0:3,1:2")
    })
}

/// Reads `--local-ranks-filter`; `None`: all ranks.
pub fn local_ranks(values: &OptValues) -> Result<Option<BTreeSet<usize>>, SpecError> {
    let Some(text) = values.text("local-ranks-filter").filter(|text| !text.is_empty()) else { return Ok(None) };
    let ranks: Option<Vec<i64>> = text.split(',').map(values::int).collect();
    let ranks = ranks.ok_or_else(|| {
        let why = "--local_ranks_filter must be a comma-separated list of integers";
        values.error("local-ranks-filter", why, "e.g. --local_ranks_filter=0,1,2")
    })?;
    // Negative numbers match no rank.
    Ok(Some(ranks.into_iter().filter_map(|rank| rank.try_into().ok()).collect()))
}
