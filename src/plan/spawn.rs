//! The plan of `rlaunch.spawn`: which devices and which identity each rank gets. Contract: messages
//! and order of checks as `paddle.distributed.spawn` has them, because users' tests match on them.

use super::devices::Share;
use super::dialects::Servers;
use super::machine::Ask;
use super::visible::{self, Device, List, joined};
use crate::dialect::{Binding, Identity, paddle_spawn, torch};
use crate::model::accelerator::{CUSTOM, Custom};
use crate::model::{Endpoint, EnvPatch};
use crate::spec::dialects::Dialect;
use crate::spec::options::Vars;
use crate::spec::spawn::{Backend, SpawnError, SpawnOptions};
use std::collections::BTreeSet;
use std::sync::Arc;

/// How many devices of a kind there are, asked only when no visible list says.
pub type Count<'a> = &'a dyn Fn(&str) -> usize;

/// The type of custom device that a request is for, where Paddle cannot be asked: one that a variable speaks of, else the
/// machine's.
pub fn custom_kind(vars: &Vars, machine: Ask<'_>) -> Option<&'static str> {
    let named = |custom: &&Custom| vars.contains_key(custom.list) || vars.contains_key(&selected(custom.kind));
    CUSTOM.iter().find(named).map(|custom| custom.kind).or_else(|| machine().custom.map(|(kind, _)| kind))
}

fn selected(kind: &str) -> String {
    format!("FLAGS_selected_{kind}s")
}

/// What CUDA makes of a list that Paddle takes element by element, where that is not the same: its ranks would find
/// fewer devices, or others. Only said: users' tests match on the errors that Paddle has for such lists.
pub fn misread(backend: Backend, vars: &Vars) -> Option<String> {
    let text = vars.get(CUDA).filter(|text| backend == Backend::Nccl && !text.is_empty())?;
    match visible::of_cuda(CUDA, text) {
        Err(error) => Some(error.to_string()),
        Ok(List::All) => Some(format!("{CUDA} all: CUDA does not know the word, and hides every GPU; unset it")),
        Ok(List::These(devices)) if devices.len() < text.trim_end_matches(',').split(',').count() => {
            let shown = if devices.is_empty() { "no device".to_owned() } else { format!("only {}", joined(&devices)) };
            Some(format!("{CUDA} {text}: the driver shows {shown}"))
        }
        Ok(List::These(_)) => None,
    }
}

const CUDA: &str = "CUDA_VISIBLE_DEVICES";

/// What each rank gets. `custom`: the type of the custom device, if there is one.
pub fn bind(
    backend: Backend,
    nprocs: usize,
    options: &SpawnOptions,
    vars: &Vars,
    custom: Option<&str>,
    count: Count<'_>,
) -> Result<Vec<Share>, SpawnError> {
    let (kind, list, explicit, option) = match (backend, custom) {
        (Backend::Gloo, _) => return Ok(vec![Share { binding: Binding::Cpu, lists: EnvPatch::new() }; nprocs]),
        (Backend::Nccl, _) => ("gpu", CUDA.to_owned(), options.explicit(&options.gpus), "gpus"),
        (Backend::Bkcl, _) => ("xpu", "XPU_VISIBLE_DEVICES".to_owned(), options.explicit(&options.xpus), "xpus"),
        (Backend::Xccl, Some(kind)) => (kind, selected(kind), None, ""),
        (Backend::Xccl, None) => {
            // Paddle's words, which are Python's, and ours.
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
    // Indices relative to CUDA_VISIBLE_DEVICES, whatever the kind; whitespace is stripped at every step.
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
        let mut lists = EnvPatch::new();
        let mut indices = relative(id)?;
        // Of a list of MIG devices CUDA shows a process the first alone (CUDA C++ Programming Guide).
        if kind == "gpu" && visible.len() > 1 && matches!(Device::of_cuda(id.trim()), Some(Device::Mig(_))) {
            lists.set(CUDA, id.trim());
            indices = "0".into();
        }
        Ok(Share { binding: Binding::Selected { kind: kind.to_owned(), indices }, lists })
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

/// Where servers of other frameworks than Paddle listen on several nodes: on the first, behind its ranks' ports.
pub fn servers(dialects: &BTreeSet<Dialect>, endpoints: &[Endpoint], nprocs: usize) -> Result<Servers, SpawnError> {
    let Some(first) = endpoints.first().filter(|_| Servers::ports_needed(dialects) > 0) else {
        return Ok(Servers::default());
    };
    let last = endpoints.iter().take(nprocs).map(|endpoint| endpoint.port).max().unwrap_or(0);
    match (last.checked_add(1), last.checked_add(2)) {
        (Some(torch), Some(jax)) => Ok(Servers::at(dialects, &first.host, [torch, jax])),
        _ => Err(SpawnError::Runtime(format!("no port below 65536 is left above {last} for what `dialect` needs"))),
    }
}

/// What each rank of this node is told. `endpoints`: of all ranks, by rank; this node's first rank is number `first`.
pub fn environments(
    endpoints: &[Endpoint],
    first: usize,
    shares: &[Share],
    (dialects, servers): (&BTreeSet<Dialect>, &Servers),
    vars: &Vars,
) -> Vec<EnvPatch> {
    let endpoints: Arc<[_]> = endpoints.into();
    let told = |(local_rank, share): (usize, &Share)| {
        let who = Identity {
            rank: first + local_rank,
            local_rank,
            local_size: shares.len(),
            nnodes: endpoints.len() / shares.len(),
            endpoints: endpoints.clone(),
            master: None,
            binding: share.binding.clone(),
        };
        let is_paddles = dialects.contains(&Dialect::Paddle);
        let mut env = if is_paddles { paddle_spawn::write(&who) } else { EnvPatch::new() };
        env.extend(&share.lists);
        servers.write(&who, first / shares.len(), ("none", 0), vars, &mut env);
        if servers.torch.is_some() {
            torch::write_attempt(0, "", &mut env);
        }
        env
    };
    shares.iter().enumerate().map(told).collect()
}
