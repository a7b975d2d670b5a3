//! The PCI addresses of torch's devices, and the CPUs that `--numa-binding` chooses near them.

use crate::model::CpuSet;
use crate::plan::devices::affinity::bind;
use crate::probe::{numa, torch};
use crate::spec::options::EnvVars;
use crate::spec::torchrun::NumaBinding;
use crate::sys::process::affinity;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use std::path::{Path, PathBuf};

fn value_error(error: impl ToString) -> PyErr {
    PyValueError::new_err(error.to_string())
}

/// The PCI addresses of the devices that a torch with this environment finds, in its order; None where the driver reports
/// none. ValueError: a visible list that the driver would misread.
#[pyfunction]
pub fn torch_devices(py: Python<'_>, environ: EnvVars) -> PyResult<Vec<Option<String>>> {
    py.detach(|| torch::accelerators(Path::new("/"), &environ)).map_err(value_error)
}

/// The CPUs that `--numa-binding=kind` binds each local rank to, as the kernel lists them. `devices`: the PCI addresses of
/// the devices that ranks see; `root`: `/`, or a fake tree; `allowed`: the affinity mask, by default this thread's.
/// ValueError: a rank that cannot be bound.
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
    let kind = NumaBinding::parse(kind).ok_or_else(|| value_error(format!("{kind} is no kind of binding")))?;
    let allowed = match allowed {
        Some(text) => CpuSet::parse(text).ok_or_else(|| value_error(format!("{text} is no list of CPUs")))?,
        None => affinity::own().map_err(crate::python::errors::os_error)?,
    };
    let bound = py.detach(|| bind(kind, &numa::facts(&root, allowed, &devices), ranks)).map_err(value_error)?;
    Ok(bound.into_iter().map(|bound| bound.cpus.to_string()).collect())
}
