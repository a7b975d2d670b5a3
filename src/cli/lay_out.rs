//! From what was asked to a plan: devices, addresses, ports.

use super::legacy;
use super::refusal::{Refusal, unmet, usage};
use crate::model::Endpoint;
use crate::plan::cluster::Cluster;
use crate::plan::devices::{self, Share, Visible};
use crate::plan::legacy::{Ground, Itself, Site};
use crate::plan::machine::Ask;
use crate::plan::ps::{self, Devices};
use crate::plan::visible::Device;
use crate::plan::{HostFacts, Plan, collective, dialects, tuner};
use crate::probe::accelerators;
use crate::run::preflight;
use crate::spec::job::Job;
use crate::spec::options::Vars;
use crate::spec::ps::{Form, Laid, PsSpec};
use crate::spec::{LaunchSpec, SpecError};
use crate::sys::ports::Lease;
use std::cell::LazyCell;
use std::ffi::OsString;
use std::path::Path;
use tracing::{info, warn};

/// A plan, and what belongs to it.
pub struct LaidOut {
    /// The plan.
    pub plan: Plan,
    /// This node's ports, held until these are dropped.
    pub leases: Vec<Lease>,
    /// The kind of its devices.
    pub kind: &'static str,
    /// The GPUs whose use is logged.
    pub gpus: Vec<Device>,
    /// The soft limit of open files that ranks get back, if ours was raised.
    pub nofile: Option<u64>,
    /// What `endpoints.log` is to hold; `None`: the endpoints are written as the newer launcher does.
    pub endpoints: Option<Vec<Endpoint>>,
    /// The devices of ranks that are all alike, and the nodes as far as they are known beforehand.
    pub alike: Option<(Vec<Share>, Cluster)>,
    /// This node's part of an elastic job in the older launcher's ways.
    pub older: Option<Older>,
}

/// What of a plan for this node alone goes into those with others.
pub struct Older {
    /// What the ranks run on.
    pub ground: Ground,
    /// Who runs here.
    pub site: Site,
    /// What the launcher tells of itself.
    pub itself: Itself,
}

impl LaidOut {
    /// Without a log of its GPUs.
    pub fn new(plan: Plan, leases: Vec<Lease>, kind: &'static str, nofile: Option<u64>) -> Self {
        Self { plan, leases, kind, gpus: Vec::new(), nofile, endpoints: None, alike: None, older: None }
    }
}

/// Lays a job out. `args`: the launcher's own.
pub(super) fn lay_out(
    spec: &LaunchSpec,
    vars: &Vars,
    facts: &HostFacts,
    args: &[OsString],
) -> Result<LaidOut, Refusal> {
    let machine = LazyCell::new(|| accelerators::machine(Path::new("/")));
    let ask = || &*machine;
    match &spec.job {
        Job::Collective | Job::Rpc => alike(spec, vars, facts, &ask),
        Job::Legacy(older) => legacy::lay_out((spec, older), vars, facts, &ask, args),
        Job::Ps(PsSpec::Laid(laid)) => with_servers(spec, laid, vars, facts, &ask),
        Job::Ps(PsSpec::AsTold { role, number }) => {
            preflight::check_script(&spec.script).map_err(unmet)?;
            let plan = ps::as_told(spec, *role, *number, vars, facts).map_err(unmet)?;
            Ok(LaidOut::new(plan, Vec::new(), "gpu", None))
        }
    }
}

/// Ranks that are all alike.
fn alike(spec: &LaunchSpec, vars: &Vars, facts: &HostFacts, ask: Ask<'_>) -> Result<LaidOut, Refusal> {
    let visible = devices::visible(vars, ask).map_err(usage)?;
    // Before anything is made for each rank: the number may be absurd.
    let ranks = devices::ranks(spec, &visible);
    let nofile = preflight::make_room("--nproc_per_node", ranks, preflight::FDS_OF_LAUNCH).map_err(unmet)?;
    let (shares, warnings) = devices::share(spec, &visible, ask).map_err(usage)?;
    for warning in warnings {
        warn!("{warning}");
    }
    if let Some(warning) = dialects::misses(&spec.dialects, &shares) {
        warn!("{warning}");
    }
    preflight::check_script(&spec.script).map_err(unmet)?;
    let (cluster, mut leases) = preflight::cluster(spec, shares.len()).map_err(unmet)?;
    let mut plan = collective::plan(spec, vars, facts, &shares, &cluster).map_err(unmet)?;
    if let Some(tuning) = spec.tuning.as_ref().filter(|tuning| tuning.has_tuner()) {
        info!("tuner_run_mode is: {}", tuning.run);
        let lease = preflight::any_port().map_err(unmet)?;
        plan.put_first(
            tuner::plan(tuning, spec, vars, facts, &cluster, lease.port()).map_err(unmet)?,
            tuning.has_job(),
        );
        leases.push(lease);
    }
    let gpus = if spec.gpu_log { devices::gpus(&shares, &visible) } else { Vec::new() };
    let alike = Some((shares, cluster));
    Ok(LaidOut { gpus, alike, ..LaidOut::new(plan, leases, visible.kind, nofile) })
}

/// Parameter servers and their workers.
fn with_servers(
    spec: &LaunchSpec,
    laid: &Laid,
    vars: &Vars,
    facts: &HostFacts,
    ask: Ask<'_>,
) -> Result<LaidOut, Refusal> {
    let (own, here) = preflight::own_of(laid).map_err(unmet)?;
    let asked = "the processes of --server_num and the like";
    let nofile = preflight::make_room(asked, here, preflight::FDS_OF_LAUNCH).map_err(unmet)?;
    let (kind, names) = match laid.form {
        // They are told of no devices.
        Form::Newer { .. } => ("gpu", Vec::new()),
        Form::Older { .. } => chosen(spec, vars, ask).map_err(usage)?,
    };
    preflight::check_script(&spec.script).map_err(unmet)?;
    let (layout, leases, warning) = preflight::layout(spec, laid, &own).map_err(unmet)?;
    if let Some(warning) = warning {
        warn!("{warning}");
    }
    let devices = Devices { kind: kind.to_owned(), names };
    let plan = ps::plan(spec, laid, vars, facts, &devices, &layout).map_err(unmet)?;
    Ok(LaidOut::new(plan, leases, kind, nofile))
}

/// The kind and the names of the devices that workers get in turn.
fn chosen(spec: &LaunchSpec, vars: &Vars, ask: Ask<'_>) -> Result<(&'static str, Vec<String>), SpecError> {
    // A worker's list is its device, whatever the word for all of them.
    let visible = Visible { all: false, ..devices::visible(vars, ask)? };
    let (names, warnings) = devices::names(spec, &visible, ask)?;
    for warning in warnings {
        warn!("{warning}");
    }
    Ok((visible.kind, names))
}
