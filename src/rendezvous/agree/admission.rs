//! Who cannot take part, and why.

use super::record::{FORMAT, Offer, Record, Rules};
use super::state::Member;
use std::collections::BTreeMap;

/// Whether a node could take part if all others were like it.
pub fn could_be_fit(Record { format, offer, .. }: &Record) -> bool {
    *format == FORMAT && offer.rank.is_none_or(|rank| rank < offer.rules.max)
}

/// The ids of those that cannot take part, each with the reason; of two with one number the later one in `nodes`.
pub fn unfit<'a>(nodes: impl Iterator<Item = (&'a str, &'a Record)>, first: &Offer) -> BTreeMap<String, String> {
    let rules = &first.rules;
    let mut numbered: BTreeMap<usize, &str> = BTreeMap::new();
    let mut unfit = BTreeMap::new();
    for (id, record) in nodes {
        let offer = &record.offer;
        let why = if record.format != FORMAT {
            Some(format!("its launcher is version {}, which speaks another language", offer.version))
        } else if offer.foreign {
            // Where some have numbers and others have none, Paddle's launcher computes another order than we do.
            (offer.rank.is_some() != first.rank.is_some()).then(|| "--rank: give it to all nodes or to none".to_owned())
        } else {
            offer.rules.differ(rules)
        };
        let why = why.or_else(|| match offer.rank {
            Some(rank) if rank >= rules.max => {
                Some(format!("--rank {rank}: there are {} nodes, numbered from 0", rules.max))
            }
            Some(rank) => match numbered.get(&rank) {
                Some(host) => Some(format!("--rank {rank}: {host} has that number already")),
                None => {
                    numbered.insert(rank, &offer.host);
                    None
                }
            },
            None => None,
        });
        unfit.extend(why.map(|why| (id.to_owned(), why)));
    }
    unfit
}

/// A line for people where not all launchers are of one version, though they understand each other.
pub fn versions(members: &[Member]) -> Option<String> {
    let mut found: BTreeMap<&str, &str> = BTreeMap::new();
    for Member { offer, .. } in members.iter().filter(|member| !member.offer.foreign) {
        found.entry(&offer.version).or_insert(&offer.host);
    }
    let all: Vec<String> = found.iter().map(|(version, host)| format!("{version} (on {host})")).collect();
    (all.len() > 1).then(|| format!("not all launchers are of one version: {}", all.join(", ")))
}

impl Rules {
    /// In what these differ from the job's, for people; `None`: in nothing.
    pub fn differ(&self, job: &Rules) -> Option<String> {
        let nodes = |rules: &Rules| match (rules.min, rules.max) {
            (min, max) if min == max => max.to_string(),
            (min, max) => format!("{min}:{max}"),
        };
        let restarts = |rules: &Rules| rules.restarts.to_string();
        let seconds = |ms: u64| format!("{} s", ms as f64 / 1000.0);
        let pairs = [
            ("the launcher's words", self.door.clone(), job.door.clone()),
            ("--nnodes", nodes(self), nodes(job)),
            ("restarts", restarts(self), restarts(job)),
            ("what follows a failure", format!("{:?}", self.on_failure), format!("{:?}", job.on_failure)),
            ("what follows a loss", format!("{:?}", self.on_loss), format!("{:?}", job.on_loss)),
            ("the order of nodes", format!("{:?}", self.order), format!("{:?}", job.order)),
            ("--lease", seconds(self.lease_ms), seconds(job.lease_ms)),
            ("the last call", seconds(self.last_call_ms), seconds(job.last_call_ms)),
            ("the time to join", seconds(self.join_ms), seconds(job.join_ms)),
        ];
        let (name, own, others) = pairs.into_iter().find(|(_, own, others)| own != others)?;
        Some(format!("{name}: it was started with {own}, the job with {others}; start all nodes alike"))
    }
}
