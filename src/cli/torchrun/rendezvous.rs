//! torchrun's dynamic rendezvous (c10d, etcd), and this node's plan in each round.

use crate::cli::common::error::CliError;
use crate::cli::elastic::backend;
use crate::cli::elastic::backend::AdvertisedAddress;
use crate::cli::elastic::error::RendezvousError;
use crate::cli::elastic::round_frontend::{CancelCheck, JoinedBackend, NodePlan, Round, RoundFrontend};
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
use crate::spec::frameworks::Framework;
use crate::spec::options::EnvVars;
use crate::spec::rendezvous;
use crate::spec::torchrun::{StoreReach, TorchSpec};
use crate::supervise::NoRestart;
use crate::sys::random;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

/// The key of a node's further addresses in `NodeInfo::more`: the source address of a rank's connection depends on the network that leads to
/// the store.
const ADDRESSES: &str = "addresses";

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
    /// The address at which other nodes reach this one.
    pub advertised: AdvertisedAddress,
}

impl TorchrunRendezvous<'_> {
    fn rules(&self) -> JobRules {
        let (min, max) = self.rendezvous.nodes;
        let restarts = self.spec.max_restarts;
        JobRules {
            frontend: "torch".into(),
            on_failure: if restarts > 0 { OnFailure::Restart } else { OnFailure::End },
            on_loss: if min == max && restarts == 0 { OnNodeLoss::End } else { OnNodeLoss::Regroup },
            restarts,
            ..backend::rules(self.rendezvous)
        }
    }

    /// The addresses from which the store takes connections.
    fn store_peers(&self, members: &[RoundMember]) -> StorePeers {
        if self.spec.store_reach == StoreReach::Any {
            return StorePeers::Any;
        }
        let parsed = |text: &str| text.trim_matches(['[', ']']).parse::<IpAddr>().ok();
        let of = |RoundMember { info, .. }: &RoundMember| {
            let interfaces = info.more.get(ADDRESSES).map_or("", String::as_str).split(',').filter_map(parsed);
            parsed(&info.address).into_iter().chain(interfaces).collect::<Vec<_>>()
        };
        let nodes = members.iter().flat_map(of).map(|address| address.to_canonical()).collect();
        StorePeers::Nodes(nodes)
    }
}

impl RoundFrontend for TorchrunRendezvous<'_> {
    fn join(&self, lease: &Arc<NodeLease>, may_continue: CancelCheck<'_>) -> Result<JoinedBackend, CliError> {
        let (_, host) = self.names;
        let others =
            net::addresses().into_iter().filter(|address| !address.is_loopback()).map(|address| address.to_string());
        let others: Vec<String> = others.filter(|address| *address != self.advertised.address).collect();
        let more = (!others.is_empty()).then(|| (ADDRESSES.to_owned(), others.join(",")));
        let node = NodeInfo {
            // Several nodes may be on one machine, with one address.
            name: format!("{}-{}", std::process::id(), random::rng().u32(..)),
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
        backend::join(self.rendezvous, node, "", lease, may_continue)
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
            extra_frameworks: ExtraFrameworks::default(),
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
