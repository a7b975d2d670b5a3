//! torchrun's dynamic rendezvous (c10d, etcd), and this node's plan in each round.

use crate::cli::common::error::CliError;
use crate::cli::elastic::advertise::AdvertisedAddress;
use crate::cli::elastic::backend;
use crate::cli::elastic::error::RendezvousError;
use crate::cli::elastic::fingerprint::{FingerprintSource, with_script};
use crate::cli::elastic::round_frontend::{CancelCheck, JoinedBackend, NodePlan, Round, RoundFrontend};
use crate::cli::torchrun::extra_frameworks;
use crate::cli::torchrun::static_rendezvous::listen_on;
use crate::model::{CpuSet, Endpoint};
use crate::plan::LaunchContext;
use crate::plan::env::frameworks::ExtraFrameworks;
use crate::plan::torchrun::{self as plan, NodePosition};
use crate::probe::net;
use crate::protocol::{JobRules, NodeInfo, OnFailure, OnNodeLoss, RoundMember};
use crate::rendezvous::lease::NodeLease;
use crate::rendezvous::torch_store::{StorePeers, StoreSockets};
use crate::run::launch_result::LaunchResult;
use crate::spec::frameworks::{self, Framework};
use crate::spec::options::EnvVars;
use crate::spec::rendezvous;
use crate::spec::torchrun::{StoreReach, TorchSpec};
use crate::supervise::NoRestart;
use crate::sys::random;
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

/// The key of a node's further addresses in `NodeInfo::more`: the source address of a rank's connection depends on the network that leads to
/// the store.
const ADDRESSES: &str = "addresses";
/// Maximum number of them.
const MAX_ADDRESSES: usize = 6;

/// This node in a job whose nodes rendezvous.
pub struct TorchrunRendezvous<'a> {
    /// The job's options.
    pub spec: &'a TorchSpec,
    /// The options of the rendezvous.
    pub rendezvous: &'a rendezvous::RendezvousSpec,
    /// The environment.
    pub vars: &'a EnvVars,
    /// What the planner knows of the launch.
    pub context: &'a LaunchContext,
    /// The job's name, and this machine's host name.
    pub names: (&'a str, &'a str),
    /// The number of workers here, their OpenMP threads, and their CPUs.
    pub workers: (usize, Option<usize>, &'a [CpuSet]),
    /// Where this node serves the store if it is node 0.
    pub store: Endpoint,
    /// The endpoints that this node offers ranks of frameworks other than PyTorch.
    pub extra_frameworks: ExtraFrameworks,
    /// The address at which other nodes reach this one.
    pub advertised: AdvertisedAddress,
    /// What its fingerprint is read from.
    pub fingerprint: FingerprintSource<'a>,
}

impl TorchrunRendezvous<'_> {
    fn rules(&self) -> JobRules {
        let (min, max) = self.rendezvous.nodes;
        let restarts = self.spec.max_restarts;
        let rules = JobRules {
            frontend: self.frontend(),
            on_failure: if restarts > 0 { OnFailure::Restart } else { OnFailure::End },
            on_loss: if min == max && restarts == 0 { OnNodeLoss::End } else { OnNodeLoss::Regroup },
            restarts,
            ..backend::rules(self.rendezvous)
        };
        with_script(rules, self.rendezvous, self.spec.script.path(), self.spec.script.module())
    }

    /// The front end, with its frameworks unless they are the default: all nodes need the same.
    fn frontend(&self) -> String {
        let is_asked = |(_, framework): &&(&str, Framework)| self.spec.frameworks.contains(framework);
        let names: Vec<&str> = frameworks::NAMES.iter().filter(is_asked).map(|(name, _)| *name).collect();
        match names[..] {
            ["torch"] => "torch".into(),
            _ => format!("torch (--frameworks {})", names.join(",")),
        }
    }

    /// The addresses from which the store takes connections.
    fn store_peers(&self, members: &[RoundMember]) -> StorePeers {
        match self.spec.store_reach {
            StoreReach::Any => StorePeers::Any,
            StoreReach::Nodes => StorePeers::Nodes(addresses_of(members)),
        }
    }
}

/// The addresses of interfaces beside the one that a node advertises, as text. Link-local ones lead to no other node's store.
fn further_addresses(interfaces: &[IpAddr], advertised: &str) -> String {
    let is_local = |address: &IpAddr| match address {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    };
    let others = interfaces.iter().filter(|address| !address.is_loopback() && !is_local(address));
    let others = others.map(ToString::to_string).filter(|address| address != advertised);
    others.take(MAX_ADDRESSES).collect::<Vec<_>>().join(",")
}

/// All addresses of these nodes, none of them mapped from IPv4 to IPv6.
fn addresses_of(members: &[RoundMember]) -> BTreeSet<IpAddr> {
    let parsed = |text: &str| text.trim_matches(['[', ']']).parse::<IpAddr>().ok();
    let of = |RoundMember { info, .. }: &RoundMember| {
        let interfaces = info.more.get(ADDRESSES).map_or("", String::as_str).split(',').filter_map(parsed);
        parsed(&info.address).into_iter().chain(interfaces).collect::<Vec<_>>()
    };
    members.iter().flat_map(of).map(|address| address.to_canonical()).collect()
}

impl RoundFrontend for TorchrunRendezvous<'_> {
    fn join(&self, lease: &Arc<NodeLease>, may_continue: CancelCheck<'_>) -> Result<JoinedBackend, CliError> {
        let (_, host) = self.names;
        let others = further_addresses(&net::addresses(), &self.advertised.address);
        let more = (!others.is_empty()).then(|| (ADDRESSES.to_owned(), others));
        let mut node = NodeInfo {
            // Several nodes may be on one machine, with one address.
            name: format!("{}-{}", std::process::id(), random::rng().u32(..)),
            rank: self.rendezvous.node_rank,
            host: host.to_owned(),
            address: self.advertised.address.clone(),
            address_from: self.advertised.from.clone(),
            ranks: self.workers.0,
            master: self.store.to_string(),
            rules: self.rules(),
            version: env!("CARGO_PKG_VERSION").into(),
            role: self.spec.role.clone(),
            more: more.into_iter().collect(),
            ..NodeInfo::default()
        };
        extra_frameworks::write(&self.extra_frameworks, &mut node);
        backend::join(self.rendezvous, node, &self.fingerprint, "", lease, may_continue)
    }

    fn leave_for_supervisor(&self, lease: &NodeLease) {
        backend::leave_for(self.rendezvous, lease);
    }

    fn plan_round(&self, round: &Round<'_>) -> Result<NodePlan, CliError> {
        let before = &round.members[..round.own];
        let count =
            |members: &mut dyn Iterator<Item = &RoundMember>| members.map(|member| member.info.ranks).sum::<usize>();
        let own_role = |member: &&RoundMember| member.info.role == self.spec.role;
        let first = round.members.first().and_then(|member| Endpoint::parse(&member.info.master));
        let master = first.ok_or(RendezvousError::NoStoreAddress)?;
        let store = match round.own {
            0 => listen_on("--local-addr", &master.host, master.port)?,
            _ => Vec::new(),
        };
        let place = NodePosition {
            node: round.own,
            nnodes: round.members.len(),
            first_rank: count(&mut before.iter()),
            world_size: count(&mut round.members.iter()),
            first_role_rank: count(&mut before.iter().filter(own_role)),
            role_size: count(&mut round.members.iter().filter(own_role)),
            master,
            extra_frameworks: extra_frameworks::combine(&self.extra_frameworks, round.members)?,
            interface: self.advertised.interface.clone().filter(|_| round.members.len() > 1),
        };
        let laid_out = plan::plan(self.spec, self.vars, self.context, self.names, self.workers, &place);
        let (mut plan, shown) = laid_out.map_err(CliError::Usage)?;
        for elastic in plan.ranks.iter_mut().filter_map(|rank| rank.per_attempt.as_mut()) {
            elastic.restarts = Some(round.failures);
        }
        // Only PyTorch's ranks receive its address.
        let listeners = if self.spec.frameworks.contains(&Framework::Torch) { store } else { Vec::new() };
        let peers = if listeners.is_empty() { StorePeers::Any } else { self.store_peers(round.members) };
        Ok(NodePlan { plan, shown, store: StoreSockets { listeners, peers } })
    }

    fn join_timeout(&self) -> Duration {
        self.rendezvous.join_timeout
    }

    fn restart_delay(&self, _launched: &LaunchResult, _failures: u32) -> Result<Duration, NoRestart> {
        Ok(Duration::ZERO)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // A test fails by panicking.
    use super::*;

    #[test]
    fn ranks_may_connect_from_each_address_of_a_node() {
        let all = ["127.0.0.1", "::1", "10.0.0.1", "169.254.1.1", "fe80::1", "192.168.7.1", "fd77::1"];
        let interfaces: Vec<IpAddr> = all.iter().map(|address| address.parse().unwrap()).collect();
        let others = further_addresses(&interfaces, "10.0.0.1");
        assert_eq!(others, "192.168.7.1,fd77::1");
        let member = |address: &str, others: &str| {
            let more = [(ADDRESSES.to_owned(), others.to_owned())].into();
            RoundMember { id: "a".into(), info: NodeInfo { address: address.into(), more, ..NodeInfo::default() } }
        };
        let members = [member("10.0.0.1", &others), member("host.example", "10.0.0.2"), member("[fd77::3]", "")];
        let mapped = [member("::ffff:10.0.0.4", "no address")];
        let found: Vec<String> =
            addresses_of(&[&members[..], &mapped].concat()).iter().map(ToString::to_string).collect();
        assert_eq!(found, ["10.0.0.1", "10.0.0.2", "10.0.0.4", "192.168.7.1", "fd77::1", "fd77::3"]);
        let many: Vec<IpAddr> = (0..100).map(|number| IpAddr::from([10, 0, 1, number])).collect();
        assert_eq!(further_addresses(&many, "").split(',').count(), MAX_ADDRESSES);
    }
}
