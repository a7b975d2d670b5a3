//! Where torch's ranks belong: their devices, and the CPUs near them.

use crate::model::CpuSet;
use crate::plan::affinity::bind;
use crate::probe::{numa, torch};
use crate::spec::options::Vars;
use crate::spec::torchrun::Numa;
use crate::sys::affinity;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use std::path::{Path, PathBuf};

fn refused(error: impl ToString) -> PyErr {
    PyValueError::new_err(error.to_string())
}

/// The PCI addresses of the devices that a torch started with `environ` would find, in its order; None where the driver
/// does not say. A list that the driver would misread is a ValueError.
#[pyfunction]
pub fn torch_devices(py: Python<'_>, environ: Vars) -> PyResult<Vec<Option<String>>> {
    py.detach(|| torch::accelerators(Path::new("/"), &environ)).map_err(refused)
}

/// The CPUs that `--numa-binding=kind` binds each local rank to, as the kernel lists them, where `devices` (PCI addresses)
/// are what a rank sees. `root`: `/`, or a tree that stands for it; `allowed`: the affinity mask, by default this
/// thread's. A rank that cannot be bound is a ValueError.
#[pyfunction]
#[pyo3(signature = (kind, ranks, devices, root=PathBuf::from("/"), allowed=None))]
pub fn bound_cpus(
    py: Python<'_>,
    kind: &str,
    ranks: usize,
    devices: Vec<Option<String>>,
    root: PathBuf,
    allowed: Option<&str>,
) -> PyResult<Vec<String>> {
    let kind = Numa::parse(kind).ok_or_else(|| refused(format!("{kind} is no kind of binding")))?;
    let allowed = match allowed {
        Some(text) => CpuSet::parse(text).ok_or_else(|| refused(format!("{text} is no list of CPUs")))?,
        None => affinity::own().map_err(super::errors::os_error)?,
    };
    let bound = py.detach(|| bind(kind, &numa::facts(&root, allowed, &devices), ranks)).map_err(refused)?;
    Ok(bound.into_iter().map(|bound| bound.cpus.to_string()).collect())
}
