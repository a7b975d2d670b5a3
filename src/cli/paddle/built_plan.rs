//! A plan of this node's processes, with the ports it holds and what later steps need of it.

use crate::model::Endpoint;
use crate::plan::Plan;
use crate::plan::cluster::Cluster;
use crate::plan::devices::assign::DeviceShare;
use crate::plan::devices::visible_devices::Device;
use crate::plan::legacy::{DeviceBackend, LauncherInfo, RankLayout};
use crate::plan::ps::PsLayout;
use crate::spec::paddle::ps::PsProcesses;
use crate::sys::io::ports::PortLease;

/// A plan, and what later steps need of it.
pub struct BuiltPlan {
    /// The plan.
    pub plan: Plan,
    /// This node's ports, held until they are dropped.
    pub leases: Vec<PortLease>,
    /// The kind of its devices: `gpu`, `xpu`, a custom type.
    pub kind: &'static str,
    /// The GPUs whose usage is logged.
    pub gpus: Vec<Device>,
    /// The soft limit of open files that ranks get back, if ours was raised.
    pub nofile: Option<u64>,
    /// The content of `endpoints.log`; `None`: that of the current launcher.
    pub endpoints: Option<Vec<Endpoint>>,
    /// What the plans of rounds take from this node's own plan, if nodes may rendezvous.
    pub part: Option<RoundPart>,
    /// This node's part of an elastic legacy job.
    pub legacy: Option<LegacyNodePlan>,
}

/// This node's part of a job whose nodes rendezvous.
pub enum RoundPart {
    /// The devices of its ranks, and the nodes as far as they are known before.
    Ranks(Vec<DeviceShare>, Cluster),
    /// Its parameter servers and trainers, and their endpoints.
    Servers(PsProcesses, PsLayout),
}

/// What the plans of a legacy job's rounds take from this node's own plan.
pub struct LegacyNodePlan {
    /// The backend and the devices of the ranks.
    pub backend: DeviceBackend,
    /// This node's ranks.
    pub layout: RankLayout,
    /// The launcher's own folder, arguments and mapping file, which ranks receive.
    pub launcher: LauncherInfo,
}

impl BuiltPlan {
    /// A plan without what only some jobs have.
    pub fn new(plan: Plan, leases: Vec<PortLease>, kind: &'static str, nofile: Option<u64>) -> Self {
        Self { plan, leases, kind, gpus: Vec::new(), nofile, endpoints: None, part: None, legacy: None }
    }
}
