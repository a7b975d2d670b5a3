//! Builds the plan of a job of the legacy launcher (`--legacy`, or one of its own options), and of its rank mapping.

use crate::cli::common::error::{CliError, system};
use crate::cli::common::message;
use crate::cli::paddle::built_plan::{BuiltPlan, LegacyNodePlan};
use crate::model::Role;
use crate::plan::cluster::LocalAddresses;
use crate::plan::devices::machine::DeviceQuery;
use crate::plan::legacy::{self, LauncherInfo, MachineQueries};
use crate::plan::{LaunchContext, Plan};
use crate::probe::net;
use crate::run;
use crate::run::prepare::preflight;
use crate::spec::legacy::collective::{LegacySpec, NodeSource};
use crate::spec::options::EnvVars;
use crate::spec::paddle::job::JobKind;
use crate::spec::{LaunchSpec, SpecError};
use std::ffi::OsString;
use std::path::Path;
use tracing::{error, info, warn};

/// The exit status of a mapper that has written the mapping.
const MAPPED: i32 = 102;

/// Whether a plan only makes the rank mapping.
pub fn is_mapping_pass(plan: &Plan) -> bool {
    plan.ranks.first().is_some_and(|rank| rank.role == Role::Mapper)
}

/// Whether a run of this plan has made the rank mapping for the job. A mapper that exits with `MAPPED` but wrote no file
/// has failed.
pub fn has_mapped(plan: &Plan, status: i32) -> bool {
    is_mapping_pass(plan) && status == MAPPED && mapping_path().is_ok_and(|path| Path::new(&path).exists())
}

/// The options of the second pass, after a first one that made the rank mapping. Logs an error where the file is missing.
pub fn second_pass(spec: &LaunchSpec, status: i32) -> Option<LaunchSpec> {
    let mut next = spec.clone();
    let JobKind::Legacy(legacy) = &mut next.job else { return None };
    let NodeSource::Mapped(mapped) = &mut legacy.node_source else { return None };
    if mapped.mapping.is_some() || status != MAPPED {
        return None;
    }
    let path = mapping_path().ok()?;
    if !Path::new(&path).exists() {
        error!("PADDLE_RANK_MAPPING_PATH {path}: no mapper has written it, though one exited with {MAPPED}");
        return None;
    }
    mapped.mapping = Some(("PADDLE_RANK_MAPPING_PATH".into(), path));
    Some(next)
}

/// The file that a mapper writes.
fn mapping_path() -> Result<String, CliError> {
    let folder = std::env::current_dir().map_err(system("the current folder"))?;
    let path = folder.join("auto_parallel_rank_mapping.json").into_os_string();
    path.into_string().map_err(|path| {
        let (why, hint) = ("the path is not UTF-8", "start the launcher in another folder");
        CliError::Preflight(SpecError::new("the current folder", path.to_string_lossy(), why, hint))
    })
}

/// Builds the plan of a legacy job. Creates nothing but port leases, and renames only an earlier job's mapping.
pub(crate) fn build_legacy_plan(
    (spec, options): (&LaunchSpec, &LegacySpec),
    vars: &EnvVars,
    context: &LaunchContext,
    machine: DeviceQuery<'_>,
    args: &[OsString],
) -> Result<BuiltPlan, CliError> {
    preflight::check_script(&spec.script).map_err(CliError::Preflight)?;
    let backend = legacy::select_backend(spec, options, vars, machine).map_err(CliError::Usage)?;
    let room = |ranks| {
        preflight::raise_file_limit("--nproc_per_node", ranks, preflight::FDS_OF_LAUNCH).map_err(CliError::Preflight)
    };
    // Before anything is allocated for each rank: the number may be absurd.
    let early = legacy::ranks(spec, options, &backend).map(room).transpose()?;
    let addresses = LocalAddresses { own: &net::addresses, resolve: &net::resolve, interface: &net::interface_of };
    let asks = MachineQueries { machine, addresses, file: &run::prepare::legacy_files::read };
    let (shares, warnings) = legacy::shares(spec, options, &backend, machine).map_err(CliError::Usage)?;
    let mut layout = legacy::rank_layout(spec, options, &backend, &shares, &asks).map_err(CliError::Preflight)?;
    let nofile = match early {
        Some(nofile) => nofile,
        None => room(layout.own_ranks().len())?,
    };
    if backend.backend == "gloo" {
        warn!("launch start with CPUONLY mode");
    }
    if let Some(notice) = backend.message.filter(|_| spec.dry_run.is_none()) {
        message::to_stdout(format!("{notice}\n").as_bytes());
    }
    for warning in warnings.iter().chain(&layout.warnings) {
        warn!("{warning}");
    }
    let leases = run::prepare::legacy_files::lease_ports(&mut layout).map_err(CliError::Preflight)?;
    let launcher = LauncherInfo {
        gloo_dir: context.gloo_tmpdir.clone(),
        mapping: mapping_path()?,
        args: args.iter().map(|arg| arg.to_string_lossy()).collect::<Vec<_>>().join(" "),
    };
    let plan =
        legacy::plan(spec, options, vars, context, (&layout, &backend, &launcher)).map_err(CliError::Preflight)?;
    if is_mapping_pass(&plan) && spec.dry_run.is_none() {
        run::prepare::legacy_files::set_aside(&launcher.mapping).map_err(CliError::Preflight)?;
    }
    if is_mapping_pass(&plan) {
        info!("no rank mapping yet: one process on each machine makes {}", launcher.mapping);
    }
    let (endpoints, kind) = (Some(layout.endpoints()), backend.visible.kind);
    let legacy = Some(LegacyNodePlan { backend, layout, launcher });
    Ok(BuiltPlan { endpoints, legacy, ..BuiltPlan::new(plan, leases, kind, nofile) })
}

/// Prints that a rank runs, as the legacy launcher does.
pub fn print_rank_started(pid: i32, local_rank: usize) {
    message::to_stdout(format!("launch proc_id:{pid} idx:{local_rank}\n").as_bytes());
}
