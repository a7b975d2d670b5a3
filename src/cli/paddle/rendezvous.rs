//! Rendezvous and rounds of a job of Paddle's front end.

use crate::cli::common::error::CliError;
use crate::cli::elastic::advertise::AdvertisedAddress;
use crate::cli::elastic::backend;
use crate::cli::elastic::endpoints;
use crate::cli::elastic::error::RendezvousError;
use crate::cli::elastic::fingerprint::{FingerprintSource, with_script};
use crate::cli::elastic::round_frontend::{CancelCheck, JoinedBackend, NodePlan, Round, RoundFrontend};
use crate::cli::paddle::built_plan::RoundPart;
use crate::cli::paddle::shown_logs;
use crate::model::Endpoint;
use crate::plan::cluster::{Cluster, ClusterNode};
use crate::plan::devices::assign::DeviceShare;
use crate::plan::env::frameworks::FrameworkServers;
use crate::plan::ps::{self, PsLayout, PsNode, WorkerDevices};
use crate::plan::{LaunchContext, Plan, collective};
use crate::protocol::{JobRules, NodeInfo, OnFailure, OnNodeLoss, RoundMember};
use crate::rendezvous::lease::NodeLease;
use crate::rendezvous::torch_store::StoreSockets;
use crate::run::launch_result::LaunchResult;
use crate::spec::LaunchSpec;
use crate::spec::frameworks::Framework;
use crate::spec::options::EnvVars;
use crate::spec::paddle::ps::{PsLauncher, PsProcesses};
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
    part: &'a RoundPart,
    advertised: AdvertisedAddress,
    host: String,
    peer_arguments: String,
    fingerprint: FingerprintSource<'a>,
    device: String,
    restarts: RefCell<RestartCounter>,
}

/// What the plans of rounds take from this node's own plan.
pub struct SingleNodePlan<'a> {
    /// Its processes with their ports.
    pub part: &'a RoundPart,
    /// The kind of its devices.
    pub kind: &'a str,
    /// The command line for the other nodes, quoted for a shell.
    pub peer_arguments: String,
    /// What its fingerprint is read from.
    pub fingerprint: FingerprintSource<'a>,
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
        let has_devices = match alone.part {
            RoundPart::Ranks(shares, _) => shares.iter().any(|share| share.binding != crate::framework::Binding::Cpu),
            RoundPart::Servers(..) => false,
        };
        Self {
            spec,
            rendezvous,
            vars,
            context,
            part: alone.part,
            advertised,
            host: host.to_owned(),
            peer_arguments: alone.peer_arguments.clone(),
            fingerprint: alone.fingerprint,
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
        let rules = JobRules {
            frontend: backend::PADDLE_FRONTENDS[usize::from(self.has_servers())].into(),
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
        };
        with_script(rules, self.rendezvous, self.spec.script.path(), self.spec.script.module())
    }

    fn node_info(&self) -> NodeInfo {
        let of_part = match self.part {
            RoundPart::Ranks(shares, cluster) => offer_of_ranks(shares, cluster),
            RoundPart::Servers(_, layout) => offer_of_servers(layout),
        };
        NodeInfo {
            name: self.context.pod_name.clone(),
            rank: self.rendezvous.node_rank,
            host: self.host.clone(),
            address: self.advertised.address.clone(),
            address_from: self.advertised.from.clone(),
            device: self.device.clone(),
            rules: self.rules(),
            version: env!("CARGO_PKG_VERSION").into(),
            ..of_part
        }
    }

    fn has_servers(&self) -> bool {
        matches!(self.part, RoundPart::Servers(..))
    }

    /// The plan of a round of ranks.
    fn plan_ranks(&self, round: &Round<'_>, shares: &[DeviceShare]) -> Result<Plan, CliError> {
        let nodes: Vec<ClusterNode> = round.members.iter().map(cluster_node).collect::<Result<_, _>>()?;
        let mut cluster = Cluster::new(nodes, round.own);
        let first = round.members.first().map(|member| &member.info);
        let at = |name: &str| first.and_then(|info| Endpoint::parse(info.more.get(name)?));
        cluster.master = first.and_then(|info| Endpoint::parse(&info.master));
        let asked = |framework| self.spec.frameworks.contains(&framework);
        cluster.servers.torch = at("torch").filter(|_| asked(Framework::Torch));
        cluster.servers.jax = at("jax").filter(|_| asked(Framework::Jax));
        cluster.interface = self.advertised.interface.clone().filter(|_| round.members.len() > 1);
        collective::plan(self.spec, self.vars, self.context, shares, &cluster).map_err(CliError::Preflight)
    }

    /// The plan of a round with parameter servers.
    fn plan_servers(&self, round: &Round<'_>, own: &PsProcesses) -> Result<Plan, CliError> {
        let nodes: Vec<PsNode> = round.members.iter().map(ps_node).collect::<Result<_, _>>()?;
        let http = round.members.first().and_then(|first| Endpoint::parse(&first.info.master));
        let layout = ps::layout_of_nodes(&nodes, round.own, http.ok_or(RendezvousError::NoStoreAddress)?);
        let all = PsProcesses { launcher: PsLauncher::Launch { nnodes: Some(nodes.len()) }, ..own.clone() };
        let devices = WorkerDevices::default();
        ps::plan(self.spec, &all, self.vars, self.context, &devices, &layout).map_err(CliError::Preflight)
    }
}

impl RoundFrontend for PaddleRendezvous<'_> {
    fn join(&self, lease: &Arc<NodeLease>, may_continue: CancelCheck<'_>) -> Result<JoinedBackend, CliError> {
        backend::join(self.rendezvous, self.node_info(), &self.fingerprint, &self.peer_arguments, lease, may_continue)
    }

    fn leave_for_supervisor(&self, lease: &NodeLease) {
        backend::leave_for(self.rendezvous, lease);
    }

    fn plan_round(&self, round: &Round<'_>) -> Result<NodePlan, CliError> {
        let has_servers = self.has_servers();
        // The coordinator refuses such nodes; Paddle's own master does not.
        if let Some(other) = round.members.iter().find(|member| (member.info.servers > 0) != has_servers) {
            let NodeInfo { host, address, .. } = other.info.clone();
            let (own, with) = if has_servers { ("with", "without") } else { ("without", "with") };
            return Err(RendezvousError::OtherMode { host, address, with, own }.into());
        }
        let plan = match self.part {
            RoundPart::Ranks(shares, _) => self.plan_ranks(round, shares)?,
            RoundPart::Servers(own, _) => self.plan_servers(round, own)?,
        };
        let shown = shown_logs::shown(self.spec, &plan, &self.host);
        Ok(NodePlan { plan, shown, store: StoreSockets::default() })
    }

    fn join_timeout(&self) -> Duration {
        self.rendezvous.join_timeout
    }

    fn restart_delay(&self, launched: &LaunchResult, failures: u32) -> Result<Duration, NoRestart> {
        let NodeOutcome::Failed(failed) = launched.report.outcome else { return Ok(Duration::ZERO) };
        self.restarts.borrow_mut().decide(clock::now(), failures + 1, failed.local_rank, failed.decisive)
    }
}

/// What other nodes learn of this node's ranks.
fn offer_of_ranks(shares: &[DeviceShare], own: &Cluster) -> NodeInfo {
    let FrameworkServers { torch, jax } = &own.servers;
    let named = [("torch", torch), ("jax", jax)];
    let more = named.into_iter().filter_map(|(name, at)| Some((name.to_owned(), at.as_ref()?.to_string())));
    NodeInfo {
        ranks: shares.len(),
        master: own.master.as_ref().map_or(String::new(), Endpoint::to_string),
        endpoints: own.endpoints.iter().map(Endpoint::to_string).collect(),
        more: more.collect(),
        ..NodeInfo::default()
    }
}

/// What other nodes learn of this node's parameter servers and trainers.
fn offer_of_servers(own: &PsLayout) -> NodeInfo {
    let all = own.servers.iter().chain(&*own.workers);
    NodeInfo {
        ranks: own.servers.len() + own.workers.len(),
        // The rendezvous over gloo, if this is the first node.
        master: own.http.to_string(),
        endpoints: all.map(Endpoint::to_string).collect(),
        servers: own.servers.len(),
        ..NodeInfo::default()
    }
}

fn ps_node(member: &RoundMember) -> Result<PsNode, CliError> {
    let mut servers = endpoints::read(member)?;
    if member.info.servers >= servers.len() {
        return Err(endpoints::unusable(&member.info));
    }
    let workers = servers.split_off(member.info.servers);
    Ok(PsNode { servers, workers })
}

fn cluster_node(member: &RoundMember) -> Result<ClusterNode, CliError> {
    let list = endpoints::read(member)?;
    let host = list.first().map(|first| first.host.clone()).ok_or_else(|| endpoints::unusable(&member.info))?;
    Ok(ClusterNode { host, ports: list.iter().map(|endpoint| endpoint.port).collect() })
}
