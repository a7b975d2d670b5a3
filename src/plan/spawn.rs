//! The plan of `rlaunch.spawn`: which devices and which identity each rank gets. Contract: messages
//! and order of checks as `paddle.distributed.spawn` has them, because users' tests match on them.

use crate::dialect::{Binding, Identity, paddle_spawn};
use crate::model::{Endpoint, EnvPatch};
use crate::spec::options::Vars;
use crate::spec::spawn::{Backend, SpawnError, SpawnOptions};

/// How many devices of a kind there are, asked only when no visible list says.
pub type Count<'a> = &'a dyn Fn(&str) -> usize;

/// One binding a rank.
pub fn bind(
    backend: Backend,
    nprocs: usize,
    options: &SpawnOptions,
    vars: &Vars,
    count: Count<'_>,
) -> Result<Vec<Binding>, SpawnError> {
    let (kind, list, explicit, option) = match backend {
        Backend::Gloo => return Ok(vec![Binding::Cpu; nprocs]),
        Backend::Nccl => ("gpu", "CUDA_VISIBLE_DEVICES", &options.gpus, "gpus"),
        Backend::Bkcl => ("xpu", "XPU_VISIBLE_DEVICES", &options.xpus, "xpus"),
    };
    let list_of = |name: &str| vars.get(name).filter(|text| !text.is_empty());
    let visible: Vec<String> = match list_of(list) {
        Some(text) => text.split(',').map(str::to_owned).collect(),
        None => (0..count(kind)).map(|i| i.to_string()).collect(),
    };
    let selected = match explicit.as_ref().or(options.selected_devices.as_ref()) {
        None if visible.len() < nprocs => {
            return Err(SpawnError::Runtime(format!(
                "the number of visible devices({}) is less than the number of spawn processes({}), please ensure \
                 that the correct `nprocs` argument is passed or the environment variable `{list}` is correctly configured.",
                visible.len(),
                nprocs
            )));
        }
        None => visible[..nprocs].to_vec(),
        Some(text) => explicit_devices(text, option, list, kind, &visible, nprocs)?,
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
    selected.iter().map(|id| relative(id).map(bound)).collect()
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

/// What each rank is told. `ports` has one entry a rank.
pub fn environments(host: &str, bindings: &[Binding], ports: &[u16]) -> Vec<EnvPatch> {
    let endpoints: Vec<_> = ports.iter().map(|&port| Endpoint::new(host, port)).collect();
    let identity = |(rank, binding): (usize, &Binding)| Identity {
        rank,
        local_rank: rank,
        local_size: endpoints.len(),
        nnodes: 1,
        endpoints: endpoints.clone(),
        master: None,
        binding: binding.clone(),
    };
    bindings.iter().enumerate().map(identity).map(|who| paddle_spawn::write(&who)).collect()
}
