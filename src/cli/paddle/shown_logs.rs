//! Which ranks' logs the console shows, and the prefix of their lines.

use crate::model::ProcessLabel;
use crate::plan::{self, Plan, Stream};
use crate::report::LinePrefix;
use crate::run::launch::ShownRanks;
use crate::spec::console::PrefixKind;
use crate::spec::paddle::launch::LaunchSpec;

/// The logs that the console shows, by local rank, with the prefix of their lines.
pub fn shown(spec: &LaunchSpec, plan: &Plan, host: &str) -> ShownRanks {
    let all: Vec<ProcessLabel> = plan.ranks.iter().map(plan::RankPlan::label).collect();
    let wanted: Vec<_> = spec.console.select(&all).into_iter().map(|local| (local, all[local])).collect();
    let prefix = match spec.console.prefix {
        Some(PrefixKind::None) => LinePrefix::None,
        Some(PrefixKind::Rank) => LinePrefix::Rank,
        Some(PrefixKind::Host) => LinePrefix::Host,
        Some(PrefixKind::RankAndHost) => LinePrefix::RankAndHost,
        None if wanted.len() > 1 => LinePrefix::Rank,
        None => LinePrefix::None,
    };
    // A single rank without a prefix is shown byte for byte; of several, whole lines.
    let raw = prefix == LinePrefix::None && wanted.len() < 2;
    let lines = |label| (!raw).then(|| prefix.text(label, host));
    wanted.into_iter().map(|(local, label)| ((local, Stream::Stdout), lines(label))).collect()
}
