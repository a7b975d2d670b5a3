//! Builds the plan of a job from its options: devices, addresses, ports.

use crate::cli::common::error::CliError;
use crate::cli::legacy::prepare;
use crate::cli::paddle::built_plan::{BuiltPlan, RoundPart};
use crate::plan::devices::assign;
use crate::plan::devices::assign::VisibleDevices;
use crate::plan::devices::machine::DeviceQuery;
use crate::plan::env::frameworks;
use crate::plan::ps::{self, WorkerDevices};
use crate::plan::{LaunchContext, collective, tuner};
use crate::probe::accelerators;
use crate::run::prepare::{ports, preflight};
use crate::spec::options::EnvVars;
use crate::spec::paddle::job::JobKind;
use crate::spec::paddle::ps::{PsLauncher, PsProcesses, PsSpec};
use crate::spec::{LaunchSpec, SpecError};
use std::cell::LazyCell;
use std::ffi::OsString;
use std::path::Path;
use tracing::{info, warn};

/// Builds the plan of a job. `args`: the launcher's own.
pub(crate) fn build_plan(
    spec: &LaunchSpec,
    vars: &EnvVars,
    context: &LaunchContext,
    args: &[OsString],
) -> Result<BuiltPlan, CliError> {
    let machine = LazyCell::new(|| accelerators::machine(Path::new("/")));
    let ask = || &*machine;
    match &spec.job {
        JobKind::Collective | JobKind::Rpc => collective_plan(spec, vars, context, &ask),
        JobKind::Legacy(legacy) => prepare::build_legacy_plan((spec, legacy), vars, context, &ask, args),
        JobKind::Ps(PsSpec::Processes(laid)) => ps_plan(spec, laid, vars, context, &ask),
        JobKind::Ps(PsSpec::Platform { role, number }) => {
            preflight::check_script(&spec.script).map_err(CliError::Preflight)?;
            let plan = ps::platform_process(spec, *role, *number, vars, context).map_err(CliError::Preflight)?;
            Ok(BuiltPlan::new(plan, Vec::new(), "gpu", None))
        }
    }
}

/// A collective or RPC job.
fn collective_plan(
    spec: &LaunchSpec,
    vars: &EnvVars,
    context: &LaunchContext,
    ask: DeviceQuery<'_>,
) -> Result<BuiltPlan, CliError> {
    let visible = assign::visible(vars, ask).map_err(CliError::Usage)?.or_kind_of_option(spec);
    // Before anything is allocated for each rank: the number may be absurd.
    let ranks = assign::ranks(spec, &visible);
    let nofile = preflight::raise_file_limit("--nproc_per_node", ranks, preflight::FDS_OF_LAUNCH)
        .map_err(CliError::Preflight)?;
    let (shares, warnings) = assign::share(spec, &visible, ask).map_err(CliError::Usage)?;
    for warning in warnings {
        warn!("{warning}");
    }
    if let Some(warning) = frameworks::gpu_mismatch(&spec.frameworks, &shares) {
        warn!("{warning}");
    }
    preflight::check_script(&spec.script).map_err(CliError::Preflight)?;
    let (cluster, mut leases) = ports::lease_cluster(spec, shares.len()).map_err(CliError::Preflight)?;
    let mut plan = collective::plan(spec, vars, context, &shares, &cluster).map_err(CliError::Preflight)?;
    if let Some(tuning) = spec.tuning.as_ref().filter(|tuning| tuning.has_tuner()) {
        info!("tuner_run_mode is: {}", tuning.run);
        let lease = ports::lease_any().map_err(CliError::Preflight)?;
        plan.put_first(
            tuner::plan(tuning, spec, vars, context, &cluster, lease.port()).map_err(CliError::Preflight)?,
            tuning.has_job(),
        );
        leases.push(lease);
    }
    let gpus = if spec.gpu_log { assign::gpus(&shares, &visible) } else { Vec::new() };
    let part = Some(RoundPart::Ranks(shares, cluster));
    Ok(BuiltPlan { gpus, part, ..BuiltPlan::new(plan, leases, visible.kind, nofile) })
}

/// A job with parameter servers.
fn ps_plan(
    spec: &LaunchSpec,
    laid: &PsProcesses,
    vars: &EnvVars,
    context: &LaunchContext,
    ask: DeviceQuery<'_>,
) -> Result<BuiltPlan, CliError> {
    let (own, here) = ports::find_own_processes(laid).map_err(CliError::Preflight)?;
    let asked = "the processes of --server_num and the like";
    let nofile = preflight::raise_file_limit(asked, here, preflight::FDS_OF_LAUNCH).map_err(CliError::Preflight)?;
    let (kind, names) = match laid.launcher {
        // The current launcher passes them no devices.
        PsLauncher::Launch { .. } => ("gpu", Vec::new()),
        PsLauncher::Legacy { .. } => worker_devices(spec, vars, ask).map_err(CliError::Usage)?,
    };
    preflight::check_script(&spec.script).map_err(CliError::Preflight)?;
    let (layout, leases, warning) = ports::lease_layout(spec, laid, &own).map_err(CliError::Preflight)?;
    if let Some(warning) = warning {
        warn!("{warning}");
    }
    let devices = WorkerDevices { kind: kind.to_owned(), names };
    let plan = ps::plan(spec, laid, vars, context, &devices, &layout).map_err(CliError::Preflight)?;
    let part = Some(RoundPart::Servers(laid.clone(), layout));
    Ok(BuiltPlan { part, ..BuiltPlan::new(plan, leases, kind, nofile) })
}

/// The kind and the names of the devices that workers get in turn.
fn worker_devices(
    spec: &LaunchSpec,
    vars: &EnvVars,
    ask: DeviceQuery<'_>,
) -> Result<(&'static str, Vec<String>), SpecError> {
    // A worker's visible list is its one device, even where the option says all.
    let visible = VisibleDevices { all: false, ..assign::visible(vars, ask)? };
    let (names, warnings) = assign::names(spec, &visible, ask)?;
    for warning in warnings {
        warn!("{warning}");
    }
    Ok((visible.kind, names))
}
