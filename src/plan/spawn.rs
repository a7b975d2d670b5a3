//! Plan of `rlaunch.spawn`: devices and environment of each rank. The messages and the order of the checks are those of
//! `paddle.distributed.spawn`, because users' tests match on them.

use crate::framework::{Binding, RankIdentity, paddle_spawn, torch};
use crate::model::accelerator::{CUSTOM, CustomDevice};
use crate::model::{Endpoint, EnvDelta};
use crate::plan::devices::assign::DeviceShare;
use crate::plan::devices::machine::DeviceQuery;
use crate::plan::devices::visible_devices;
use crate::plan::devices::visible_devices::{Device, VisibleList, joined};
use crate::plan::env::frameworks::FrameworkServers;
use crate::spec::frameworks::Framework;
use crate::spec::options::EnvVars;
use crate::spec::spawn::options::{SpawnBackend, SpawnError, SpawnOptions};
use std::collections::BTreeSet;
use std::sync::Arc;

/// Counts the devices of a kind; called only if no visible list is set.
pub type DeviceCount<'a> = &'a dyn Fn(&str) -> usize;

/// The type of custom device of a request, if Paddle cannot be asked: the one that a variable names, otherwise the one
/// of the machine.
pub fn custom_kind(vars: &EnvVars, machine: DeviceQuery<'_>) -> Option<&'static str> {
    let named = |custom: &&CustomDevice| vars.contains_key(custom.list) || vars.contains_key(&selected(custom.kind));
    CUSTOM.iter().find(named).map(|custom| custom.kind).or_else(|| machine().custom.map(|(kind, _)| kind))
}

fn selected(kind: &str) -> String {
    format!("FLAGS_selected_{kind}s")
}

/// A warning if CUDA reads CUDA_VISIBLE_DEVICES differently from Paddle, which takes it element by element, so that ranks
/// would see fewer devices or other ones. It is no error, because users' tests match on Paddle's errors for such lists.
pub fn cuda_list_warning(backend: SpawnBackend, vars: &EnvVars) -> Option<String> {
    let text = vars.get(CUDA).filter(|text| backend == SpawnBackend::Nccl && !text.is_empty())?;
    match visible_devices::of_cuda(CUDA, text) {
        Err(error) => Some(error.to_string()),
        Ok(VisibleList::All) => {
            Some(format!("{CUDA} all: CUDA does not support this value and hides every GPU; unset {CUDA}"))
        }
        Ok(VisibleList::These(devices)) if devices.len() < text.trim_end_matches(',').split(',').count() => {
            let shown = if devices.is_empty() { "no device".to_owned() } else { format!("only {}", joined(&devices)) };
            Some(format!("{CUDA} {text}: the driver shows {shown}"))
        }
        Ok(VisibleList::These(_)) => None,
    }
}

const CUDA: &str = "CUDA_VISIBLE_DEVICES";

/// The devices of each rank. `custom`: the type of the custom device, if there is one.
pub fn bind(
    backend: SpawnBackend,
    nprocs: usize,
    options: &SpawnOptions,
    vars: &EnvVars,
    custom: Option<&str>,
    count: DeviceCount<'_>,
) -> Result<Vec<DeviceShare>, SpawnError> {
    let (kind, list, explicit, option) = match (backend, custom) {
        (SpawnBackend::Gloo, _) => {
            return Ok(vec![DeviceShare { binding: Binding::Cpu, lists: EnvDelta::new() }; nprocs]);
        }
        (SpawnBackend::Nccl, _) => ("gpu", CUDA.to_owned(), options.selected(&options.gpus), "gpus"),
        (SpawnBackend::Bkcl, _) => ("xpu", "XPU_VISIBLE_DEVICES".to_owned(), options.selected(&options.xpus), "xpus"),
        (SpawnBackend::Xccl, Some(kind)) => (kind, selected(kind), None, ""),
        (SpawnBackend::Xccl, None) => {
            // The message begins as Paddle's, which is Python's IndexError.
            let text = "list index out of range: backend 'xccl' needs a custom device, and there is none; use 'nccl', \
                        'bkcl' or 'gloo'";
            return Err(SpawnError::Index(text.into()));
        }
    };
    let list_of = |name: &str| vars.get(name).filter(|text| !text.is_empty());
    let visible: Vec<String> = match list_of(&list) {
        Some(text) => text.split(',').map(str::to_owned).collect(),
        None => (0..count(kind)).map(|i| i.to_string()).collect(),
    };
    let chosen = match explicit {
        None if visible.len() < nprocs => {
            return Err(SpawnError::Runtime(format!(
                "the number of visible devices({}) is less than the number of spawn processes({}), please ensure \
                 that the correct `nprocs` argument is passed or the environment variable `{list}` is correctly configured.",
                visible.len(),
                nprocs
            )));
        }
        None => visible[..nprocs].to_vec(),
        Some(text) => explicit_devices(text, option, &list, kind, &visible, nprocs)?,
    };
    // Indices are relative to CUDA_VISIBLE_DEVICES, whatever the kind, as in Paddle.
    let base: Option<Vec<&str>> = list_of(CUDA).map(|text| text.split(',').map(str::trim).collect());
    let relative = |id: &String| match &base {
        None => Ok(id.trim().to_owned()),
        Some(base) => match base.iter().position(|b| *b == id.trim()) {
            Some(index) => Ok(index.to_string()),
            None => Err(SpawnError::Assertion(format!(
                "Can't find your selected_gpus {} in CUDA_VISIBLE_DEVICES[{}].",
                id.trim(),
                base.join(",")
            ))),
        },
    };
    let share = |id: &String| {
        let mut lists = EnvDelta::new();
        let mut indices = relative(id)?;
        // Of several MIG devices, CUDA shows a process only the first (CUDA C++ Programming Guide).
        if kind == "gpu" && visible.len() > 1 && matches!(Device::of_cuda(id.trim()), Some(Device::Mig(_))) {
            lists.set(CUDA, id.trim());
            indices = "0".into();
        }
        Ok(DeviceShare { binding: Binding::Selected { kind: kind.to_owned(), indices }, lists })
    };
    chosen.iter().map(share).collect()
}

fn explicit_devices(
    text: &str,
    option: &str,
    list: &str,
    kind: &str,
    visible: &[String],
    nprocs: usize,
) -> Result<Vec<String>, SpawnError> {
    let chosen: Vec<String> = text.split(',').map(str::to_owned).collect();
    if chosen.len() != nprocs {
        return Err(SpawnError::Value(format!(
            "The number of selected devices({}) is not equal to the number of spawn processes({nprocs}), please \
             ensure that the correct `nprocs` and `{option}` arguments are passed.",
            chosen.len()
        )));
    }
    for id in &chosen {
        if !visible.iter().any(|v| v.trim() == id.trim()) {
            return Err(SpawnError::Value(format!(
                "The selected {kind} card {id} cannot found in {list} ({}).",
                visible.join(",")
            )));
        }
    }
    Ok(chosen)
}

/// Endpoints of the servers of torch and jax on several nodes: on the first node, at the ports after those of its ranks.
pub fn servers(
    frameworks: &BTreeSet<Framework>,
    endpoints: &[Endpoint],
    nprocs: usize,
) -> Result<FrameworkServers, SpawnError> {
    let Some(first) = endpoints.first().filter(|_| FrameworkServers::ports_needed(frameworks) > 0) else {
        return Ok(FrameworkServers::default());
    };
    let last = endpoints.iter().take(nprocs).map(|endpoint| endpoint.port).max().unwrap_or(0);
    match (last.checked_add(1), last.checked_add(2)) {
        (Some(torch), Some(jax)) => Ok(FrameworkServers::at(frameworks, &first.host, [torch, jax])),
        _ => Err(SpawnError::Runtime(format!(
            "no port below 65536 is left above {last} for the servers of `frameworks`"
        ))),
    }
}

/// The environment of each rank of this node. `endpoints`: of all ranks, by rank; `first`: the first rank of this node.
pub fn environments(
    endpoints: &[Endpoint],
    first: usize,
    shares: &[DeviceShare],
    (frameworks, servers): (&BTreeSet<Framework>, &FrameworkServers),
    vars: &EnvVars,
) -> Vec<EnvDelta> {
    let endpoints: Arc<[_]> = endpoints.into();
    let environment = |(local_rank, share): (usize, &DeviceShare)| {
        let identity = RankIdentity {
            rank: first + local_rank,
            local_rank,
            local_size: shares.len(),
            nnodes: endpoints.len() / shares.len(),
            endpoints: endpoints.clone(),
            master: None,
            binding: share.binding.clone(),
        };
        let has_paddle = frameworks.contains(&Framework::Paddle);
        let mut env = if has_paddle { paddle_spawn::write(&identity) } else { EnvDelta::new() };
        env.extend(&share.lists);
        servers.write(&identity, first / shares.len(), ("none", 0), vars, &mut env);
        if servers.torch.is_some() {
            torch::write_attempt(0, "", &mut env);
        }
        env
    };
    shares.iter().enumerate().map(environment).collect()
}
