//! The parts of a history: nodes, the lives of their ranks, happenings; and stories drawn at random.

use super::lease::{Sleeper, Way};
use fastrand::Rng;
use rlaunch::protocol::record::FORMAT;
use rlaunch::protocol::{JobRules, JobState, NodeInfo, OnFailure, OnNodeLoss, RoundMember};

/// The life of a node's ranks in one of its rounds; times in milliseconds.
#[derive(Clone, Copy, Debug)]
pub enum Life {
    Well(u64),
    Fails(u64),
    /// No rank can be started.
    CannotBegin,
    /// Ranks hang from their start on, and fail after that time.
    Hangs(u64),
}

impl Life {
    pub fn lasts(self) -> u64 {
        match self {
            Self::Well(lasts) | Self::Fails(lasts) | Self::Hangs(lasts) => lasts,
            Self::CannotBegin => 0,
        }
    }
}

/// A launcher.
#[derive(Clone, Debug)]
pub struct Plan {
    pub comes: u64,
    pub offer: NodeInfo,
    pub format: u32,
    /// In its first round, in its second and so on; the last one again and again.
    pub lives: Vec<Life>,
    /// Whether its ranks fail when a peer has gone.
    pub feels: bool,
    /// How long after its lease has run out without contact it stops its ranks.
    pub patience: u64,
}

#[derive(Clone, Copy, Debug)]
pub enum Happening {
    /// Its launcher and its ranks are killed. `seen`: its record goes with it, instead of when its lease runs out.
    Kill { node: usize, seen: bool },
    /// No contact for so long; `None`: never again.
    Cut { node: usize, lasts: Option<u64>, way: Way },
    /// It does nothing for so long.
    Sleep { node: usize, who: Sleeper, lasts: u64 },
    /// It is stopped from outside. `early`: it says so at once, not when its ranks have ended.
    Signal { node: usize, early: bool },
    /// Another coordinator takes the place of the one there is. `late`: which does not know, and goes on.
    NewLeader { after: u64, late: bool },
}

/// How what is said is carried.
#[derive(Clone, Copy, Debug)]
pub struct Net {
    pub delay: u64,
    /// Of 100, how many are lost (and sent again within `again`) and doubled.
    pub lost: u32,
    pub doubled: u32,
    pub again: u64,
    /// How long a renewal of a lease, or its confirmation, takes at most.
    pub renewal: u64,
}

pub const CALM: Net = Net { delay: 0, lost: 0, doubled: 0, again: 1, renewal: 0 };

#[derive(Clone, Debug)]
pub struct Story {
    pub seed: u64,
    pub rules: JobRules,
    pub net: Net,
    pub lease: u64,
    pub grace: u64,
    /// How long after the start of its ranks a node reports that they hang, or wait for others.
    pub hang_after: u64,
    pub plans: Vec<Plan>,
    pub happenings: Vec<(u64, Happening)>,
    /// The state that an earlier job of the name has left behind.
    pub left: Option<(JobState, Vec<RoundMember>)>,
}

pub fn plan(number: usize, rules: &JobRules, lives: &[Life]) -> Plan {
    let host = format!("host{number}");
    let offer = NodeInfo {
        name: format!("n{number}"),
        address: host.clone(),
        host,
        rules: rules.clone(),
        ..NodeInfo::default()
    };
    Plan { comes: 0, offer, format: FORMAT, lives: lives.to_vec(), feels: true, patience: 1_000 }
}

impl Story {
    /// Nothing is lost or late; all come at once.
    pub fn calm(rules: JobRules, lives: &[&[Life]]) -> Self {
        let plans = lives.iter().enumerate().map(|(number, lives)| plan(number, &rules, lives)).collect();
        Self {
            seed: 1,
            rules,
            net: CALM,
            lease: 5_000,
            grace: 2_000,
            hang_after: 600_000,
            plans,
            happenings: Vec::new(),
            left: None,
        }
    }

    pub fn with(mut self, at: u64, happening: Happening) -> Self {
        self.happenings.push((at, happening));
        self
    }

    pub fn comes(mut self, node: usize, at: u64) -> Self {
        self.plans[node].comes = at;
        self
    }

    /// When the net gets better, some time after the last that befalls them: from then on, renewals of leases arrive in time. Where
    /// it never does, a lease may end each round, which uses up nothing, so that the job never ends.
    pub fn heals(&self) -> u64 {
        let last = self.plans.iter().map(|plan| plan.comes).chain(self.happenings.iter().map(|(at, _)| *at)).max();
        last.unwrap_or_default() + 60_000
    }

    /// Whether a round may gather for a shorter time than a state takes to a node and its record to the coordinator. Then the sets of
    /// nodes that begin rounds may alternate for as long as ranks end while another node joins.
    pub fn may_alternate(&self) -> bool {
        let (JobRules { min, max, join_ms, .. }, Net { delay, lost, again, .. }) = (&self.rules, self.net);
        // The state is published and heard, the record written and fed; what is lost on the second half of either way is sent again.
        let again = if lost > 0 { again } else { 0 };
        min < max && *join_ms < 4 * delay + 2 * again
    }

    /// When all is over at the latest: once nothing befalls them any more there are only so many rounds left.
    pub fn bound(&self) -> u64 {
        let life = |plan: &Plan| plan.lives.iter().map(|life| life.lasts()).max();
        let lives = self.plans.iter().filter_map(life).max().unwrap_or_default();
        let JobRules { join_ms, restarts, loss_ms, min_round_ms, node_failure_limit, .. } = self.rules;
        let net = 10 * (self.net.delay + self.net.again + self.net.renewal);
        let round = join_ms + 2 * loss_ms + lives.max(min_round_ms) + self.grace + 2 * self.lease + net;
        let patience = 60_000 + 6 * self.lease + 30_000;
        // Failures of a node that is excluded then use up no restart.
        let (nodes, failures) = (self.plans.len() as u64, u64::from(node_failure_limit));
        self.heals() + patience + (u64::from(restarts) + nodes * (1 + failures) + 2) * round
    }

    pub fn random(seed: u64) -> Self {
        let mut rng = Rng::with_seed(seed);
        // In a third of them nothing leaves time between the loss of a node and the next round, and nodes are away for about a lease.
        let is_tight = rng.u8(0..3) == 0;
        let rules = if is_tight { tight_rules(&mut rng) } else { rules(&mut rng) };
        let lease = pick(&mut rng, &[2_000, 5_000, 10_000]);
        let grace = if is_tight { 0 } else { pick(&mut rng, &[0, 1_000, 8_000]) };
        let net = net(&mut rng, lease);
        let hang_after = pick(&mut rng, &[500, 3_000, 10_000]);
        let count = (rules.max + rng.usize(0..3)).saturating_sub(usize::from(rng.u8(0..8) == 0)).max(1);
        let numbering = rng.u8(0..5);
        let mut plans: Vec<Plan> = (0..count).map(|number| random_plan(&mut rng, number, &rules, numbering)).collect();
        let mut happenings = Vec::new();
        let most = if is_tight { &[2, 4, 8][..] } else { &[0, 1, 1, 2, 3, 5] };
        for _ in 0..pick(&mut rng, most) {
            let (at, node) = (rng.u64(0..40_000), rng.usize(0..count));
            let about_a_lease = lease / 2 + rng.u64(0..lease * 3 / 2);
            let what = match rng.u8(if is_tight { 3 } else { 0 }..13) {
                0..3 => {
                    if rng.bool() {
                        let mut again = random_plan(&mut rng, plans.len(), &rules, numbering);
                        again.comes = at + rng.u64(0..20_000);
                        again.offer.rank = plans[node].offer.rank;
                        plans.push(again);
                    }
                    Happening::Kill { node, seen: rng.bool() }
                }
                3..6 => {
                    let lasts = pick(&mut rng, &[Some(about_a_lease), Some(500), Some(20_000), None]);
                    let lasts = if is_tight { Some(about_a_lease) } else { lasts };
                    let way = pick(&mut rng, &[Way::Both, Way::Both, Way::ToBackend, Way::FromBackend]);
                    Happening::Cut { node, lasts, way }
                }
                10..13 => {
                    let who = pick(&mut rng, &[Sleeper::Supervisor, Sleeper::Node]);
                    let lasts = if is_tight { about_a_lease } else { rng.u64(0..4 * lease) };
                    Happening::Sleep { node, who, lasts }
                }
                6 if !is_tight => Happening::Signal { node, early: rng.bool() },
                _ => Happening::NewLeader { after: pick(&mut rng, &[0, 10, 2_000, 9_000]), late: rng.bool() },
            };
            happenings.push((at, what));
        }
        Self { seed, rules, net, lease, grace, hang_after, plans, happenings, left: None }
    }
}

fn net(rng: &mut Rng, lease: u64) -> Net {
    let delay = pick(rng, &[0, 20, 50, 400, 3_000, lease / 2]);
    let (lost, doubled) = (pick(rng, &[0, 0, 10, 40]), pick(rng, &[0, 20]));
    let renewal = pick(rng, &[0, lease / 20, lease / 4, lease / 2]);
    Net { delay, lost, doubled, again: rng.u64(1..4_000), renewal }
}

/// Of a job that goes on at once.
fn tight_rules(rng: &mut Rng) -> JobRules {
    let (on_failure, on_loss) = (OnFailure::Restart, OnNodeLoss::Regroup);
    let (min, max) = pick(rng, &[(1, 1), (1, 2), (1, 3), (2, 3)]);
    JobRules { min, max, last_call_ms: 0, loss_ms: 0, restarts: 9, on_failure, on_loss, ..rules(rng) }
}

fn pick<T: Copy>(rng: &mut Rng, from: &[T]) -> T {
    from[rng.usize(0..from.len())]
}

fn rules(rng: &mut Rng) -> JobRules {
    let min = rng.usize(1..4);
    let max = min + pick(rng, &[0, 0, 1, 2]);
    let levels = [
        (OnFailure::End, OnNodeLoss::End),
        (OnFailure::Hold, OnNodeLoss::Regroup),
        (OnFailure::Restart, OnNodeLoss::Regroup),
        (OnFailure::Restart, OnNodeLoss::End),
        (OnFailure::End, OnNodeLoss::Regroup),
    ];
    let (on_failure, on_loss) = pick(rng, &levels);
    JobRules {
        frontend: "paddle".into(),
        min,
        max,
        last_call_ms: pick(rng, &[0, 500, 3_000]),
        join_ms: pick(rng, &[4_000, 20_000, 60_000]),
        on_failure,
        on_loss,
        loss_ms: pick(rng, &[0, 1_000, 30_000]),
        restarts: rng.u32(0..4),
        min_round_ms: pick(rng, &[0, 0, 3_000, 20_000]),
        node_failure_limit: pick(rng, &[0, 1, 3]),
        spares: pick(rng, &[None, None, Some(0), Some(1)]),
        require_same: pick(rng, &["", "git"]).into(),
        ..JobRules::default()
    }
}

fn random_plan(rng: &mut Rng, number: usize, rules: &JobRules, numbering: u8) -> Plan {
    let lives: Vec<Life> = (0..rng.usize(1..4))
        .map(|_| match rng.u8(0..16) {
            0 => Life::CannotBegin,
            1..5 => Life::Fails(rng.u64(0..20_000)),
            5..7 => Life::Hangs(rng.u64(0..60_000)),
            _ => Life::Well(rng.u64(0..30_000)),
        })
        .collect();
    let mut plan = plan(number, rules, &lives);
    plan.offer.name = format!("{}{number}", rng.lowercase());
    plan.comes = pick(rng, &[0, 0, 1_000, 15_000]) + rng.u64(0..500);
    plan.offer.rank = match numbering {
        0 => Some(number),
        1 => rng.bool().then_some(number),
        _ => None,
    };
    let commit = |commit: &str| [("git".to_owned(), commit.to_owned())].into();
    plan.offer.fingerprint = commit("one");
    match rng.u8(0..40) {
        0 => plan.offer.rules.restarts += 1,
        1 => plan.offer.rank = Some(rules.max),
        2 => plan.offer.rank = Some(0),
        3 => plan.format += 1,
        4 | 5 => plan.offer.fingerprint = commit("another"),
        _ => {}
    }
    plan.feels = rng.bool();
    plan.patience = pick(rng, &[1_000, 30_000]);
    plan
}
