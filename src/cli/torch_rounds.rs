//! How the nodes of a job in torchrun's words find each other (c10d, etcd), and what this one runs with the others.

use super::refusal::{Refusal, unmet, usage};
use super::rounds::{GoOn, Joined, Meeting, Part, Round};
use super::tie::{self, Advertised};
use super::torch_meeting::listen_on;
use crate::model::{CpuSet, Endpoint};
use crate::plan::HostFacts;
use crate::plan::dialects::Beside;
use crate::plan::torchrun::{self as plan, Place};
use crate::rendezvous::agree::{Member, Offer, OnFailure, OnLoss, Rules};
use crate::run::launch::Launched;
use crate::spec::dialects::Dialect;
use crate::spec::meeting;
use crate::spec::options::Vars;
use crate::spec::torchrun::TorchSpec;
use std::time::Duration;

/// A node that is to meet others.
pub struct TorchMeeting<'a> {
    /// What is asked for.
    pub spec: &'a TorchSpec,
    /// Where and how they meet.
    pub meeting: &'a meeting::Meeting,
    /// The environment.
    pub vars: &'a Vars,
    /// What the planner knows of this machine.
    pub facts: &'a HostFacts,
    /// The job's name, and this machine's.
    pub names: (&'a str, &'a str),
    /// How many workers are here, how many threads they have, and on which CPUs.
    pub workers: (usize, Option<usize>, &'a [CpuSet]),
    /// Where the store would be served, if this is the first node.
    pub store: Endpoint,
    /// The address that others reach it by.
    pub advertised: Advertised,
}

impl TorchMeeting<'_> {
    fn rules(&self) -> Rules {
        let (min, max) = self.meeting.nodes;
        let restarts = self.spec.max_restarts;
        Rules {
            door: "torch".into(),
            on_failure: if restarts > 0 { OnFailure::Restart } else { OnFailure::End },
            on_loss: if min == max && restarts == 0 { OnLoss::End } else { OnLoss::Regroup },
            restarts,
            ..tie::rules(self.meeting)
        }
    }
}

impl Meeting for TorchMeeting<'_> {
    fn join(&self, go_on: GoOn<'_>) -> Result<Joined, Refusal> {
        let (_, host) = self.names;
        let offer = Offer {
            // Nodes of one machine have one address.
            name: format!("{}-{}", std::process::id(), fastrand::u32(..)),
            host: host.to_owned(),
            address: self.advertised.address.clone(),
            address_from: self.advertised.from.clone(),
            ranks: self.workers.0,
            master: self.store.to_string(),
            rules: self.rules(),
            version: env!("CARGO_PKG_VERSION").into(),
            role: self.spec.role.clone(),
            ..Offer::default()
        };
        tie::join(self.meeting, offer, "", go_on)
    }

    fn part(&self, round: &Round<'_>) -> Result<Part, Refusal> {
        let before = &round.members[..round.own];
        let count =
            |members: &mut dyn Iterator<Item = &Member>| members.map(|member| member.offer.ranks).sum::<usize>();
        let own_role = |member: &&Member| member.offer.role == self.spec.role;
        let first = round.members.first().and_then(|member| Endpoint::parse(&member.offer.master));
        let master = first.ok_or_else(|| unmet("the first node does not say where its store is served"))?;
        let store = match round.own {
            0 => listen_on("--local-addr", &master.host, master.port)?,
            _ => Vec::new(),
        };
        let place = Place {
            node: round.own,
            nnodes: round.members.len(),
            first_rank: count(&mut before.iter()),
            world_size: count(&mut round.members.iter()),
            first_role_rank: count(&mut before.iter().filter(own_role)),
            role_size: count(&mut round.members.iter().filter(own_role)),
            master,
            beside: Beside::default(),
            interface: self.advertised.interface.clone().filter(|_| round.members.len() > 1),
        };
        let laid_out = plan::plan(self.spec, self.vars, self.facts, self.names, self.workers, &place);
        let (mut plan, shown) = laid_out.map_err(usage)?;
        for elastic in plan.ranks.iter_mut().filter_map(|rank| rank.elastic.as_mut()) {
            elastic.restarts = Some(round.failures);
        }
        // Who is not told of it needs none.
        let store = if self.spec.dialects.contains(&Dialect::Torch) { store } else { Vec::new() };
        Ok(Part { plan, shown, store })
    }

    fn patience(&self) -> Duration {
        self.meeting.join
    }

    fn restart(&self, _launched: &Launched, _failures: u32) -> Result<Duration, String> {
        Ok(Duration::ZERO)
    }
}
