//! Devices that torch would find, in its order, without torch.

use super::{intel, nvml};
use crate::plan::devices::machine::MachineDevices;
use crate::plan::devices::nproc;
use crate::spec::SpecError;
use crate::spec::options::EnvVars;
use crate::spec::torchrun::Nproc;
use std::path::Path;

/// PCI address of a device in the form of Linux (`0000:3b:00.0`), if its driver reports it.
pub type PciAddress = Option<String>;

/// GPUs that CUDA shows to a process with these variables.
pub fn gpus(vars: &EnvVars) -> Result<Vec<PciAddress>, SpecError> {
    let (gpus, places): (Vec<_>, Vec<_>) = nvml::placed_gpus().into_iter().unzip();
    let shown = nproc::cuda(vars, &MachineDevices { gpus, ..MachineDevices::default() })?;
    Ok(shown.into_iter().map(|number| places.get(number as usize).cloned().flatten()).collect())
}

/// Intel GPUs that Level Zero shows to a process with these variables. `root`: `/`, or a directory that replaces it.
pub fn xpus(root: &Path, vars: &EnvVars) -> Result<Vec<PciAddress>, SpecError> {
    let found = intel::gpus(root);
    let shown = nproc::level_zero(vars, found.len())?;
    Ok(shown.into_iter().map(|place| found.get(place).cloned()).collect())
}

/// The devices of `auto`: GPUs if there are any, otherwise XPUs; may be empty.
pub fn accelerators(root: &Path, vars: &EnvVars) -> Result<Vec<PciAddress>, SpecError> {
    match gpus(vars)? {
        none if none.is_empty() => xpus(root, vars),
        some => Ok(some),
    }
}

/// The number of ranks that `--nproc-per-node`, or the variable `field`, requests. `cpus`: number of CPUs in the affinity
/// mask.
pub fn count(requested: Nproc, field: &str, root: &Path, vars: &EnvVars, cpus: usize) -> Result<usize, SpecError> {
    nproc::count(requested, field, &|| Ok(gpus(vars)?.len()), &|| Ok(xpus(root, vars)?.len()), cpus)
}
