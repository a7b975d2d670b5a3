//! Which ranks' logs the console shows, and how.

use crate::model::ProcessLabel;
use crate::plan::{self, Plan, ShownStream, Stream};
use crate::report::LinePrefix;
use crate::run::launch::ShownRanks;
use crate::spec::console::PrefixKind;
use crate::spec::paddle::launch::LaunchSpec;
use tracing::warn;

/// The logs that the console shows, by local rank.
pub fn shown(spec: &LaunchSpec, plan: &Plan, host: &str) -> ShownRanks {
    let all: Vec<ProcessLabel> = plan.ranks.iter().map(plan::RankPlan::label).collect();
    if let (Some(warning), true) = (spec.console.without_rank(plan.world_size), spec.rendezvous.is_none()) {
        warn!("{warning}");
    }
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
    let how = |label| ShownStream { prefix: (!raw).then(|| prefix.text(label, host)), pty: raw && spec.console.pty };
    wanted.into_iter().map(|(local, label)| ((local, Stream::Stdout), how(label))).collect()
}
