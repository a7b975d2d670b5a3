//! Rendezvous and rounds of a job of Paddle's front end.

use crate::cli::common::error::CliError;
use crate::cli::elastic::advertise::AdvertisedAddress;
use crate::cli::elastic::backend;
use crate::cli::elastic::error::RendezvousError;
use crate::cli::elastic::round_frontend::{CancelCheck, JoinedBackend, NodePlan, Round, RoundFrontend};
use crate::cli::paddle::shown_logs;
use crate::model::Endpoint;
use crate::plan::cluster::{Cluster, ClusterNode};
use crate::plan::devices::assign::DeviceShare;
use crate::plan::env::frameworks::FrameworkServers;
use crate::plan::{LaunchContext, collective};
use crate::protocol::{JobRules, NodeInfo, OnFailure, OnNodeLoss, RoundMember};
use crate::rendezvous::lease::NodeLease;
use crate::rendezvous::torch_store::StoreSockets;
use crate::run::launch_result::LaunchResult;
use crate::spec::LaunchSpec;
use crate::spec::frameworks::Framework;
use crate::spec::options::EnvVars;
use crate::spec::rendezvous;
use crate::spec::rendezvous::ElasticLevel;
use crate::supervise::{NoRestart, NodeOutcome, RestartCounter, RestartPolicy, SupervisionPolicy};
use crate::sys::clock;
use std::cell::RefCell;
use std::sync::Arc;
use std::time::Duration;

/// The maximum of restarts after failures where no option sets it (Paddle's default).
const DEFAULT_RESTARTS: u32 = 3;

/// This node in a job whose nodes rendezvous.
pub struct PaddleRendezvous<'a> {
    spec: &'a LaunchSpec,
    rendezvous: &'a rendezvous::RendezvousSpec,
    vars: &'a EnvVars,
    context: &'a LaunchContext,
    shares: &'a [DeviceShare],
    own: &'a Cluster,
    advertised: AdvertisedAddress,
    host: String,
    peer_arguments: String,
    device: String,
    restarts: RefCell<RestartCounter>,
}

/// What the plans of rounds take from this node's own plan.
pub struct SingleNodePlan<'a> {
    /// The devices of its ranks.
    pub shares: &'a [DeviceShare],
    /// The ports of its ranks.
    pub cluster: &'a Cluster,
    /// The kind of its devices.
    pub kind: &'a str,
    /// The command line for the other nodes, quoted for a shell.
    pub peer_arguments: String,
}

impl<'a> PaddleRendezvous<'a> {
    /// For this node, whose host name is `host`.
    pub fn new(
        (spec, rendezvous): (&'a LaunchSpec, &'a rendezvous::RendezvousSpec),
        vars: &'a EnvVars,
        context: &'a LaunchContext,
        alone: &SingleNodePlan<'a>,
        (advertised, host): (AdvertisedAddress, &str),
        policy: &SupervisionPolicy,
    ) -> Self {
        let any = RestartPolicy { max_restart: u32::MAX, ..policy.restart.clone() };
        let has_devices = alone.shares.iter().any(|share| share.binding != crate::framework::Binding::Cpu);
        Self {
            spec,
            rendezvous,
            vars,
            context,
            shares: alone.shares,
            own: alone.cluster,
            advertised,
            host: host.to_owned(),
            peer_arguments: alone.peer_arguments.clone(),
            device: if has_devices { alone.kind.to_owned() } else { "cpu".into() },
            restarts: RefCell::new(RestartCounter::new(any)),
        }
    }

    /// The rules that have to be the same on all nodes.
    pub fn rules(&self) -> JobRules {
        let rendezvous::RendezvousSpec { nodes: (min, max), elastic_level: level, .. } = *self.rendezvous;
        let restarts = match (level, self.spec.restarts.max_restart) {
            (ElasticLevel::Restart, 0) if !self.spec.restarts.is_given => DEFAULT_RESTARTS,
            (_, asked) => asked,
        };
        JobRules {
            frontend: "paddle".into(),
            on_failure: match level {
                ElasticLevel::Restart => OnFailure::Restart,
                ElasticLevel::Off if restarts > 0 => OnFailure::Restart,
                ElasticLevel::Off => OnFailure::End,
                ElasticLevel::Hold => OnFailure::Hold,
            },
            // Where nodes may join, they may also leave.
            on_loss: if level == ElasticLevel::Off && min == max { OnNodeLoss::End } else { OnNodeLoss::Regroup },
            restarts,
            ..backend::rules(self.rendezvous)
        }
    }

    fn node_info(&self) -> NodeInfo {
        let FrameworkServers { torch, jax } = &self.own.servers;
        let named = [("torch", torch), ("jax", jax)];
        let more = named.into_iter().filter_map(|(name, at)| Some((name.to_owned(), at.as_ref()?.to_string())));
        NodeInfo {
            name: self.context.pod_name.clone(),
            rank: self.rendezvous.node_rank,
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
            ..NodeInfo::default()
        }
    }
}

impl RoundFrontend for PaddleRendezvous<'_> {
    fn join(&self, lease: &Arc<NodeLease>, may_continue: CancelCheck<'_>) -> Result<JoinedBackend, CliError> {
        backend::join(self.rendezvous, self.node_info(), &self.peer_arguments, lease, may_continue)
    }

    fn leave_for_supervisor(&self, lease: &NodeLease) {
        backend::leave_for(self.rendezvous, lease);
    }

    fn plan_round(&self, round: &Round<'_>) -> Result<NodePlan, CliError> {
        let nodes: Vec<ClusterNode> = round.members.iter().map(cluster_node).collect::<Result<_, _>>()?;
        let mut cluster = Cluster::new(nodes, round.own);
        let first = round.members.first().map(|member| &member.info);
        let at = |name: &str| first.and_then(|info| Endpoint::parse(info.more.get(name)?));
        cluster.master = first.and_then(|info| Endpoint::parse(&info.master));
        let asked = |framework| self.spec.frameworks.contains(&framework);
        cluster.servers.torch = at("torch").filter(|_| asked(Framework::Torch));
        cluster.servers.jax = at("jax").filter(|_| asked(Framework::Jax));
        cluster.interface = self.advertised.interface.clone().filter(|_| round.members.len() > 1);
        let plan =
            collective::plan(self.spec, self.vars, self.context, self.shares, &cluster).map_err(CliError::Preflight)?;
        let shown = shown_logs::shown(self.spec, &plan, &self.host);
        Ok(NodePlan { plan, shown, store: StoreSockets::default() })
    }

    fn join_timeout(&self) -> Duration {
        self.rendezvous.join_timeout
    }

    fn restart_delay(&self, launched: &LaunchResult, failures: u32) -> Result<Duration, NoRestart> {
        let NodeOutcome::Failed { culprit, exit } = launched.report.outcome else { return Ok(Duration::ZERO) };
        self.restarts.borrow_mut().decide(clock::now(), failures + 1, culprit, exit)
    }
}

fn cluster_node(member: &RoundMember) -> Result<ClusterNode, CliError> {
    let NodeInfo { host, address, endpoints, .. } = &member.info;
    let read: Option<Vec<Endpoint>> = endpoints.iter().map(|text| Endpoint::parse(text)).collect();
    match read {
        Some(list) if !list.is_empty() => {
            Ok(ClusterNode { host: list[0].host.clone(), ports: list.iter().map(|endpoint| endpoint.port).collect() })
        }
        _ => Err(RendezvousError::BadEndpoints { host: host.clone(), address: address.clone() }.into()),
    }
}
