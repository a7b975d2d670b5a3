//! Rendezvous and rounds of an elastic job of the legacy launcher (`--legacy --np`), with its log lines.

use crate::cli::common::error::{CliError, system};
use crate::cli::elastic::advertise::AdvertisedAddress;
use crate::cli::elastic::backend;
use crate::cli::elastic::error::RendezvousError;
use crate::cli::elastic::fingerprint::FingerprintSource;
use crate::cli::elastic::round_frontend::{CancelCheck, JoinedBackend, NodePlan, Round, RoundFrontend};
use crate::cli::node::build_failure_report::ReportContext;
use crate::cli::node::frontend::{Frontend, NodeEnd};
use crate::cli::paddle::built_plan::LegacyNodePlan;
use crate::cli::paddle::shown_logs;
use crate::framework::{Binding, paddle_legacy};
use crate::model::{Endpoint, EnvDelta, Exit};
use crate::plan::devices::assign::DeviceShare;
use crate::plan::legacy::{self, LegacyRank as Rank, RankLayout};
use crate::plan::{LaunchContext, RankPlan};
use crate::protocol::{JobRules, NodeInfo, OnFailure, OnNodeLoss, Participants, RoundMember};
use crate::rendezvous::lease::NodeLease;
use crate::rendezvous::torch_store::StoreSockets;
use crate::report::cause::verdict::Verdict;
use crate::run;
use crate::run::launch::Launch;
use crate::run::launch_result::LaunchResult;
use crate::run::output::log_files;
use crate::run::prepare::pre_hook::{self, HookResult};
use crate::spec::LaunchSpec;
use crate::spec::legacy::collective::{LegacySpec, NodeSource};
use crate::spec::legacy::elastic::LegacyElasticSpec;
use crate::spec::options::EnvVars;
use crate::spec::paddle::job::JobKind;
use crate::supervise::{ChildId, FailedRank, NoRestart, NodeOutcome, ProgressNote};
use core::net::Ipv4Addr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tracing::{error, info, warn};

/// The exit status by which a rank requests a restart of all ranks.
const RESTART_REQUEST: i32 = 102;
/// The delay before that restart.
const RESTART_DELAY: Duration = Duration::from_secs(1);
/// The key of the ranks' devices in a node's entry.
const DEVICES: &str = "devices";

/// This node in an elastic legacy job.
pub struct LegacyRendezvous<'a> {
    /// The job's options.
    pub spec: &'a LaunchSpec,
    /// The legacy launcher's options.
    pub legacy: &'a LegacySpec,
    /// The options of the elastic job.
    pub elastic: &'a LegacyElasticSpec,
    /// The environment.
    pub vars: &'a EnvVars,
    /// What the planner knows of the launch.
    pub context: &'a LaunchContext,
    /// This node's ranks.
    pub own: &'a LegacyNodePlan,
    /// The address at which other nodes reach this one.
    pub advertised: AdvertisedAddress,
    /// This machine's host name.
    pub host: String,
    /// What its fingerprint is read from.
    pub fingerprint: FingerprintSource<'a>,
}

/// The job's options with this address for this node.
pub fn with_own_address(spec: &LaunchSpec, address: &str) -> LaunchSpec {
    let mut spec = spec.clone();
    if let JobKind::Legacy(legacy) = &mut spec.job
        && let NodeSource::Nodes(list, _) = &mut legacy.node_source
        && let Some(host) = list.hosts.first_mut()
    {
        host.name = address.to_owned();
        list.own = Some(address.to_owned());
    }
    spec
}

impl LegacyRendezvous<'_> {
    fn rules(&self) -> JobRules {
        let elastic = self.elastic;
        JobRules {
            frontend: "paddle, legacy".into(),
            no_last_call_at: Some(elastic.usual),
            again: Some(RESTART_REQUEST),
            on_failure: OnFailure::Hold,
            on_loss: OnNodeLoss::Regroup,
            ..backend::rules(&elastic.rendezvous)
        }
    }

    fn node_info(&self) -> NodeInfo {
        let (layout, elastic) = (&self.own.layout, self.elastic);
        let devices = paddle_legacy::world_devices(layout.own_ranks().iter().map(|rank| &rank.share.binding));
        NodeInfo {
            name: sort_name(elastic.place, &self.advertised.address, &self.context.pod_name),
            rank: elastic.rendezvous.node_rank,
            host: self.host.clone(),
            address: self.advertised.address.clone(),
            address_from: self.advertised.from.clone(),
            ranks: layout.own_ranks().len(),
            device: self.own.backend.visible.kind.to_owned(),
            endpoints: layout.own_ranks().iter().map(|rank| rank.endpoint.to_string()).collect(),
            rules: self.rules(),
            version: env!("CARGO_PKG_VERSION").into(),
            more: [(DEVICES.to_owned(), devices)].into(),
            ..NodeInfo::default()
        }
    }

    fn layout(&self, round: &Round<'_>) -> Result<RankLayout, CliError> {
        let mut nodes = Vec::new();
        let mut first = 0;
        for (place, member) in round.members.iter().enumerate() {
            let mut ranks = parse_ranks(member, first, self.own.backend.visible.kind)?;
            if place == round.own {
                // This node's plan has more than its entry.
                let own = self.own.layout.own_ranks().iter().zip(first..);
                ranks = own.map(|(rank, number)| Rank { rank: number, ..rank.clone() }).collect();
            }
            first += ranks.len();
            nodes.push(ranks);
        }
        let interface = self.advertised.interface.clone().filter(|_| nodes.len() > 1);
        Ok(RankLayout { nodes, own: round.own, ports_from: String::new(), warnings: Vec::new(), interface })
    }
}

/// The name that nodes are sorted by: those with a place first, the others by address.
fn sort_name(place: Option<usize>, address: &str, pod: &str) -> String {
    match (place, address.parse::<Ipv4Addr>()) {
        (Some(place), _) => format!("{place:08}-{pod}"),
        (None, Ok(address)) => format!("{:03?}-{pod}", address.octets()).replace(", ", "."),
        (None, Err(_)) => format!("~{address}-{pod}"),
    }
}

/// The ranks of a node, from its entry; the first has this number.
fn parse_ranks(member: &RoundMember, first: usize, kind: &str) -> Result<Vec<Rank>, CliError> {
    let NodeInfo { host, address, endpoints, more, .. } = &member.info;
    let read: Option<Vec<Endpoint>> = endpoints.iter().map(|text| Endpoint::parse(text)).collect();
    let Some(read) = read.filter(|read| !read.is_empty()) else {
        return Err(RendezvousError::BadEndpoints { host: host.clone(), address: address.clone() }.into());
    };
    let mut devices = more.get(DEVICES).map_or("", String::as_str).split(',');
    let share = |indices: &str| DeviceShare {
        binding: match indices {
            "" => Binding::Cpu,
            _ => Binding::Selected { kind: kind.to_owned(), indices: indices.replace(':', ",") },
        },
        lists: EnvDelta::new(),
    };
    let rank = |(endpoint, rank)| Rank { rank, endpoint, share: share(devices.next().unwrap_or("")) };
    Ok(read.into_iter().zip(first..).map(rank).collect())
}

fn requests_restart(launched: &LaunchResult) -> bool {
    matches!(launched.report.outcome, NodeOutcome::Failed(FailedRank { decisive: Exit::Code(RESTART_REQUEST), .. }))
}

/// `['10.0.0.1:6170', '10.0.0.2:6170']`
fn first_endpoints(members: &[RoundMember]) -> String {
    let first = |member: &RoundMember| format!("'{}'", member.info.endpoints.first().map_or("", String::as_str));
    format!("[{}]", members.iter().map(first).collect::<Vec<_>>().join(", "))
}

impl RoundFrontend for LegacyRendezvous<'_> {
    fn join(&self, lease: &Arc<NodeLease>, may_continue: CancelCheck<'_>) -> Result<JoinedBackend, CliError> {
        let (min, max) = self.elastic.rendezvous.nodes;
        info!("start job with ElasticLevel.{}", if min == max { "FAULT_TOLERANCE" } else { "ELASTIC" });
        backend::join(&self.elastic.rendezvous, self.node_info(), &self.fingerprint, "", lease, may_continue)
    }

    fn prepare(&self, round: &Round<'_>, may_continue: &mut dyn FnMut() -> bool) -> Result<(), CliError> {
        info!("ready with hosts {}", first_endpoints(round.members));
        let Some(command) = &self.elastic.pre_hook else { return Ok(()) };
        info!("execute pre_hook...");
        let layout = self.layout(round)?;
        let firsts: Vec<Endpoint> =
            layout.nodes.iter().filter_map(|ranks| Some(ranks.first()?.endpoint.clone())).collect();
        let vars = [
            ("PADDLE_TRAINER_ID", round.own.to_string()),
            ("PADDLE_TRAINERS", layout.hosts()),
            ("PADDLE_TRAINER_ENDPOINTS", Endpoint::join(&firsts)),
            ("DISTRIBUTED_TRAINER_ENDPOINTS", Endpoint::join(&layout.endpoints())),
        ];
        let limit = self.join_timeout();
        match pre_hook::run(command, &vars, limit, may_continue) {
            Ok(HookResult::Succeeded(said)) => info!("pre_hook exec result: {said}"),
            Ok(HookResult::Failed(said)) => warn!("pre_hook exec failed: {said}"),
            Ok(HookResult::TimedOut) => warn!("pre_hook exec failed: killed after {} s", limit.as_secs()),
            Ok(HookResult::Stopped) => {}
            Err(error) => warn!("pre_hook exec failed: {}", log_files::plain(&error)),
        }
        Ok(())
    }

    fn leave_for_supervisor(&self, lease: &NodeLease) {
        backend::leave_for(&self.elastic.rendezvous, lease);
    }

    fn plan_round(&self, round: &Round<'_>) -> Result<NodePlan, CliError> {
        let layout = self.layout(round)?;
        let about = (&layout, &self.own.backend, &self.own.launcher);
        let plan = legacy::plan(self.spec, self.legacy, self.vars, self.context, about).map_err(CliError::Preflight)?;
        run::prepare::legacy_files::write_endpoints(Path::new(&self.context.log_dir), &layout.endpoints())
            .map_err(system(format!("--log_dir {}", self.context.log_dir)))?;
        let shown = shown_logs::shown(self.spec, &plan, &self.host);
        Ok(NodePlan { plan, shown, store: StoreSockets::default() })
    }

    fn join_timeout(&self) -> Duration {
        self.elastic.rendezvous.join_timeout
    }

    fn restart_delay(&self, launched: &LaunchResult, _failures: u32) -> Result<Duration, NoRestart> {
        Ok(if requests_restart(launched) { RESTART_DELAY } else { Duration::ZERO })
    }

    fn leaves_others_running(&self) -> bool {
        true
    }

    fn waiting_notice(&self, participants: Option<&Participants>) -> Option<String> {
        let (min, max) = self.elastic.rendezvous.nodes;
        let np = if min == max { max.to_string() } else { format!("{min}:{max}") };
        let hosts = participants.map_or(String::new(), |nodes| format!(" with hosts [{}]", nodes.here.join(", ")));
        let waits = "wait for timeout, you can set value by PADDLE_ELASTIC_TIMEOUT";
        let enough = participants.is_some_and(|nodes| nodes.ready >= min);
        Some(format!("not ready for np {np}{hosts}{}", if enough { format!("; {waits}") } else { String::new() }))
    }
}

/// The front end of an elastic legacy job: another front end, with the legacy launcher's exit statuses and messages.
pub struct LegacyElasticFrontend<'a> {
    /// The front end of a job that is not elastic.
    pub inner: &'a dyn Frontend,
    /// The options of the elastic job.
    pub elastic: &'a LegacyElasticSpec,
}

impl Frontend for LegacyElasticFrontend<'_> {
    fn report_context(&self) -> &ReportContext {
        self.inner.report_context()
    }

    fn before_ranks(&self, launch: &Launch<'_>) {
        self.inner.before_ranks(launch);
    }

    fn before_first_rank(&self, launch: &Launch<'_>) {
        self.inner.before_first_rank(launch);
    }

    fn rank_started(&self, id: ChildId, pid: i32, launch: &Launch<'_>) {
        self.inner.rank_started(id, pid, launch);
    }

    fn report_progress(&self, note: &ProgressNote, failure: Option<&Verdict>, launch: &Launch<'_>) {
        self.inner.report_progress(note, failure, launch);
    }

    fn exit_status(&self, launched: &LaunchResult) -> i32 {
        match launched.report.outcome {
            NodeOutcome::Failed { .. } => self.elastic.after_failure.status(),
            _ => self.inner.exit_status(launched),
        }
    }

    fn report_end(&self, end: &NodeEnd<'_>) {
        let (launch, launched) = (end.launch, end.launched);
        if matches!(launched.report.outcome, NodeOutcome::Failed { .. }) {
            for (RankPlan { rank, .. }, end) in launch.plan.ranks.iter().zip(&launched.report.ranks) {
                if let Some(exit) = end.exit.filter(|exit| !end.signalled && !exit.is_success()) {
                    error!("ABORT!!! ABORT!!! ABORT!!!");
                    error!("ERROR rank {rank} error with exit code {}, check log for detail.", exit.returncode());
                }
            }
        }
        self.inner.report_end(end);
    }
}
