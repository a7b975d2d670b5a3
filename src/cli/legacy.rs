//! A job in the older launcher's ways, made ready: `--legacy`, or one of its own options.

use super::lay_out::{LaidOut, Older};
use super::message;
use super::refusal::{Refusal, unmet, usage};
use crate::model::Role;
use crate::plan::cluster::Addresses;
use crate::plan::legacy::{self, Asks, Itself};
use crate::plan::machine::Ask;
use crate::plan::{HostFacts, Plan};
use crate::probe::net;
use crate::run::{self, preflight};
use crate::spec::LaunchSpec;
use crate::spec::job::Job;
use crate::spec::legacy::{Layout, LegacySpec};
use crate::spec::options::Vars;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use tracing::{error, info, warn};

/// With this status a mapper says that it has written the mapping, and that its launcher is to go on.
const MAPPED: i32 = 102;

/// Whether a plan is for a mapping alone.
pub fn maps(plan: &Plan) -> bool {
    plan.ranks.first().is_some_and(|rank| rank.role == Role::Mapper)
}

/// Whether a run of this plan has only made the mapping that the job is to go on by. A mapper that only says so has
/// failed.
pub fn has_mapped(plan: &Plan, status: i32) -> bool {
    maps(plan) && status == MAPPED && mapping_path().is_ok_and(|path| Path::new(&path).exists())
}

/// The second pass, once the first has ended with this status; `None`: there is none, as is said where the mapper
/// promised one.
pub fn second_pass(spec: &LaunchSpec, status: i32) -> Option<LaunchSpec> {
    let mut next = spec.clone();
    let Job::Legacy(older) = &mut next.job else { return None };
    let Layout::Mapped(mapped) = &mut older.layout else { return None };
    if mapped.mapping.is_some() || status != MAPPED {
        return None;
    }
    let path = mapping_path().ok()?;
    if !Path::new(&path).exists() {
        error!("PADDLE_RANK_MAPPING_PATH {path}: no mapper has written it, though one ended with {MAPPED}");
        return None;
    }
    mapped.mapping = Some(("PADDLE_RANK_MAPPING_PATH".into(), path));
    Some(next)
}

/// Where a mapper writes.
fn mapping_path() -> Result<String, Refusal> {
    let folder = std::env::current_dir().map_err(|e| unmet(format!("the current folder: {e}")))?;
    text_of(folder.join("auto_parallel_rank_mapping.json"))
}

fn text_of(path: PathBuf) -> Result<String, Refusal> {
    path.into_os_string().into_string().map_err(|path| unmet(format!("{} is not UTF-8", path.display())))
}

/// Who runs where, and with what. Nothing is made yet but the leases of ports, and nothing changed but the name of an
/// earlier job's mapping.
pub(super) fn lay_out(
    (spec, older): (&LaunchSpec, &LegacySpec),
    vars: &Vars,
    facts: &HostFacts,
    machine: Ask<'_>,
    args: &[OsString],
) -> Result<LaidOut, Refusal> {
    preflight::check_script(&spec.script).map_err(unmet)?;
    let ground = legacy::ground(spec, older, vars, machine).map_err(usage)?;
    let room = |ranks| preflight::make_room("--nproc_per_node", ranks, preflight::FDS_OF_LAUNCH).map_err(unmet);
    // Before anything is made for each rank: the number may be absurd.
    let early = legacy::ranks(spec, older, &ground).map(room).transpose()?;
    let addresses = Addresses { own: &net::addresses, of: &net::of, interface: &net::interface_of };
    let asks = Asks { machine, addresses, file: &run::legacy::read };
    let (shares, warnings) = legacy::shares(spec, older, &ground, machine).map_err(usage)?;
    let mut site = legacy::site(spec, older, &ground, &shares, &asks).map_err(unmet)?;
    let nofile = match early {
        Some(nofile) => nofile,
        None => room(site.here().len())?,
    };
    if ground.backend == "gloo" {
        warn!("launch start with CPUONLY mode");
    }
    if let Some(words) = ground.words.filter(|_| spec.dry_run.is_none()) {
        message::to_stdout(format!("{words}\n").as_bytes());
    }
    for warning in warnings.iter().chain(&site.warnings) {
        warn!("{warning}");
    }
    let leases = run::legacy::lease(&mut site).map_err(unmet)?;
    let itself = Itself {
        folder: facts.temporary.clone(),
        mapping: mapping_path()?,
        args: args.iter().map(|arg| arg.to_string_lossy()).collect::<Vec<_>>().join(" "),
    };
    let plan = legacy::plan(spec, older, vars, facts, (&site, &ground, &itself)).map_err(unmet)?;
    if maps(&plan) && spec.dry_run.is_none() {
        run::legacy::set_aside(&itself.mapping).map_err(unmet)?;
    }
    if maps(&plan) {
        info!("no rank mapping yet: one process a machine makes {}", itself.mapping);
    }
    let (endpoints, kind) = (Some(site.endpoints()), ground.visible.kind);
    let older = Some(Older { ground, site, itself });
    Ok(LaidOut { endpoints, older, ..LaidOut::new(plan, leases, kind, nofile) })
}

/// Says that a rank runs, as the older launcher does.
pub fn announce(pid: i32, local_rank: usize) {
    message::to_stdout(format!("launch proc_id:{pid} idx:{local_rank}\n").as_bytes());
}
