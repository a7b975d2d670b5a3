//! How the nodes of a job in Paddle's words find each other, and what this one runs with the others.

use super::notes;
use super::refusal::{Refusal, unmet};
use super::rounds::{GoOn, Joined, Meeting, Part, Round};
use super::tie::{self, Advertised};
use crate::model::Endpoint;
use crate::plan::cluster::{Cluster, Node};
use crate::plan::devices::Share;
use crate::plan::dialects::Servers;
use crate::plan::{HostFacts, collective};
use crate::rendezvous::agree::{Member, Offer, OnFailure, OnLoss, Rules};
use crate::run::launch::Launched;
use crate::spec::LaunchSpec;
use crate::spec::dialects::Dialect;
use crate::spec::meeting::{self, Level};
use crate::spec::options::Vars;
use crate::supervise::{Outcome, Policy, RestartPolicy, Restarts};
use crate::sys::clock;
use std::cell::RefCell;
use std::time::Duration;

/// How often all are started again after failures where nobody says how often (Paddle's default).
const RESTARTS: u32 = 3;

/// A node that is to meet others.
pub struct PaddleMeeting<'a> {
    spec: &'a LaunchSpec,
    meeting: &'a meeting::Meeting,
    vars: &'a Vars,
    facts: &'a HostFacts,
    shares: &'a [Share],
    own: &'a Cluster,
    advertised: Advertised,
    host: String,
    words: String,
    device: String,
    restarts: RefCell<Restarts>,
}

/// What of a plan for this node alone goes into those with others.
pub struct Alone<'a> {
    /// The devices of its ranks.
    pub shares: &'a [Share],
    /// Its ports.
    pub cluster: &'a Cluster,
    /// What kind of devices there are.
    pub kind: &'a str,
    /// What it was started with, for a shell.
    pub words: String,
}

impl<'a> PaddleMeeting<'a> {
    /// For this node, which calls itself `host`.
    pub fn new(
        (spec, meeting): (&'a LaunchSpec, &'a meeting::Meeting),
        vars: &'a Vars,
        facts: &'a HostFacts,
        alone: &Alone<'a>,
        (advertised, host): (Advertised, &str),
        policy: &Policy,
    ) -> Self {
        let any = RestartPolicy { max_restart: u32::MAX, ..policy.restart.clone() };
        let has_devices = alone.shares.iter().any(|share| share.binding != crate::dialect::Binding::Cpu);
        Self {
            spec,
            meeting,
            vars,
            facts,
            shares: alone.shares,
            own: alone.cluster,
            advertised,
            host: host.to_owned(),
            words: alone.words.clone(),
            device: if has_devices { alone.kind.to_owned() } else { "cpu".into() },
            restarts: RefCell::new(Restarts::new(any)),
        }
    }

    /// What has to be the same on all nodes.
    pub fn rules(&self) -> Rules {
        let meeting::Meeting { nodes: (min, max), level, .. } = *self.meeting;
        let restarts = match (level, self.spec.restarts.max_restart) {
            (Level::Restart, 0) if !self.spec.restarts.is_given => RESTARTS,
            (_, asked) => asked,
        };
        Rules {
            door: "paddle".into(),
            on_failure: match level {
                Level::Restart => OnFailure::Restart,
                Level::Off if restarts > 0 => OnFailure::Restart,
                Level::Off => OnFailure::End,
                Level::Hold => OnFailure::Hold,
            },
            // Who lets nodes come lets them go.
            on_loss: if level == Level::Off && min == max { OnLoss::End } else { OnLoss::Regroup },
            restarts,
            ..tie::rules(self.meeting)
        }
    }

    fn offer(&self) -> Offer {
        let Servers { torch, jax } = &self.own.servers;
        let named = [("torch", torch), ("jax", jax)];
        let more = named.into_iter().filter_map(|(name, at)| Some((name.to_owned(), at.as_ref()?.to_string())));
        Offer {
            name: self.facts.pod_name.clone(),
            rank: self.meeting.rank,
            host: self.host.clone(),
            address: self.advertised.address.clone(),
            address_from: self.advertised.from.clone(),
            ranks: self.shares.len(),
            device: self.device.clone(),
            master: self.own.master.as_ref().map_or(String::new(), Endpoint::to_string),
            endpoints: self.own.endpoints.iter().map(Endpoint::to_string).collect(),
            rules: self.rules(),
            version: env!("CARGO_PKG_VERSION").into(),
            more: more.collect(),
            ..Offer::default()
        }
    }
}

impl Meeting for PaddleMeeting<'_> {
    fn join(&self, go_on: GoOn<'_>) -> Result<Joined, Refusal> {
        tie::join(self.meeting, self.offer(), &self.words, go_on)
    }

    fn part(&self, round: &Round<'_>) -> Result<Part, Refusal> {
        let nodes: Vec<Node> = round.members.iter().map(node).collect::<Result<_, _>>()?;
        let mut cluster = Cluster::new(nodes, round.own);
        let first = round.members.first().map(|member| &member.offer);
        let at = |name: &str| first.and_then(|offer| Endpoint::parse(offer.more.get(name)?));
        cluster.master = first.and_then(|offer| Endpoint::parse(&offer.master));
        let asked = |dialect| self.spec.dialects.contains(&dialect);
        cluster.servers.torch = at("torch").filter(|_| asked(Dialect::Torch));
        cluster.servers.jax = at("jax").filter(|_| asked(Dialect::Jax));
        cluster.interface = self.advertised.interface.clone().filter(|_| round.members.len() > 1);
        let plan = collective::plan(self.spec, self.vars, self.facts, self.shares, &cluster).map_err(unmet)?;
        let shown = super::paddle::shown(self.spec, &plan, &self.host);
        Ok(Part { plan, shown, store: Vec::new() })
    }

    fn patience(&self) -> Duration {
        self.meeting.join
    }

    fn restart(&self, launched: &Launched, failures: u32) -> Result<Duration, String> {
        let Outcome::Failed { culprit, exit } = launched.report.outcome else { return Ok(Duration::ZERO) };
        let decided = self.restarts.borrow_mut().decide(clock::now(), failures + 1, culprit, exit);
        decided.map_err(notes::why_not)
    }
}

fn node(member: &Member) -> Result<Node, Refusal> {
    let Offer { host, address, endpoints, .. } = &member.offer;
    let read: Option<Vec<Endpoint>> = endpoints.iter().map(|text| Endpoint::parse(text)).collect();
    match read {
        Some(list) if !list.is_empty() => {
            Ok(Node { host: list[0].host.clone(), ports: list.iter().map(|endpoint| endpoint.port).collect() })
        }
        _ => {
            Err(unmet(format!("node {host} ({address}) says where its ranks listen in words that nobody understands")))
        }
    }
}
