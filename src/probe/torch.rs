//! The devices that torch would find, in its order, without torch.

use super::{intel, nvml};
use crate::plan::machine::Machine;
use crate::plan::nproc;
use crate::spec::SpecError;
use crate::spec::options::Vars;
use crate::spec::torchrun::Nproc;
use std::path::Path;

/// A device's PCI address as Linux writes it (`0000:3b:00.0`), where its driver says.
pub type Place = Option<String>;

/// GPUs that CUDA would show to a process started with these variables.
pub fn gpus(vars: &Vars) -> Result<Vec<Place>, SpecError> {
    let (gpus, places): (Vec<_>, Vec<_>) = nvml::placed_gpus().into_iter().unzip();
    let shown = nproc::cuda(vars, &Machine { gpus, ..Machine::default() })?;
    Ok(shown.into_iter().map(|number| places.get(number as usize).cloned().flatten()).collect())
}

/// Intel GPUs that Level Zero would show to it. `root`: `/`, or a tree that stands for it.
pub fn xpus(root: &Path, vars: &Vars) -> Result<Vec<Place>, SpecError> {
    let found = intel::gpus(root);
    let shown = nproc::level_zero(vars, found.len())?;
    Ok(shown.into_iter().map(|place| found.get(place).cloned()).collect())
}

/// The devices of `auto`: GPUs if there are any, or else XPUs; maybe none.
pub fn accelerators(root: &Path, vars: &Vars) -> Result<Vec<Place>, SpecError> {
    match gpus(vars)? {
        none if none.is_empty() => xpus(root, vars),
        some => Ok(some),
    }
}

/// How many ranks `--nproc-per-node`, or the variable `field`, asks for. `cpus`: those in the affinity mask.
pub fn count(asked: Nproc, field: &str, root: &Path, vars: &Vars, cpus: usize) -> Result<usize, SpecError> {
    nproc::count(asked, field, &|| Ok(gpus(vars)?.len()), &|| Ok(xpus(root, vars)?.len()), cpus)
}
