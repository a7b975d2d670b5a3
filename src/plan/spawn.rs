//! The plan of `rlaunch.spawn`: which devices and which identity each rank gets. Contract: messages
//! and order of checks as `paddle.distributed.spawn` has them, because users' tests match on them.

use super::machine::Ask;
use crate::dialect::{Binding, Identity, paddle_spawn};
use crate::model::accelerator::{CUSTOM, Custom};
use crate::model::{Endpoint, EnvPatch};
use crate::spec::options::Vars;
use crate::spec::spawn::{Backend, SpawnError, SpawnOptions};
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

/// One binding a rank. `custom`: the type of the custom device, if there is one.
pub fn bind(
    backend: Backend,
    nprocs: usize,
    options: &SpawnOptions,
    vars: &Vars,
    custom: Option<&str>,
    count: Count<'_>,
) -> Result<Vec<Binding>, SpawnError> {
    let (kind, list, explicit, option) = match (backend, custom) {
        (Backend::Gloo, _) => return Ok(vec![Binding::Cpu; nprocs]),
        (Backend::Nccl, _) => ("gpu", "CUDA_VISIBLE_DEVICES".to_owned(), options.explicit(&options.gpus), "gpus"),
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
    let base: Option<Vec<&str>> = list_of("CUDA_VISIBLE_DEVICES").map(|text| text.split(',').map(str::trim).collect());
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
    let bound = |index| Binding::Selected { kind: kind.to_owned(), indices: index };
    chosen.iter().map(|id| relative(id).map(bound)).collect()
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

/// What each rank of this node is told. `endpoints`: of all ranks, by rank; this node's first rank is number `first`.
pub fn environments(endpoints: &[Endpoint], first: usize, bindings: &[Binding]) -> Vec<EnvPatch> {
    let endpoints: Arc<[_]> = endpoints.into();
    let identity = |(local_rank, binding): (usize, &Binding)| Identity {
        rank: first + local_rank,
        local_rank,
        local_size: bindings.len(),
        nnodes: endpoints.len() / bindings.len(),
        endpoints: endpoints.clone(),
        master: None,
        binding: binding.clone(),
    };
    bindings.iter().enumerate().map(identity).map(|who| paddle_spawn::write(&who)).collect()
}
