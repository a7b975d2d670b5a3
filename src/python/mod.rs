//! Floor 8: the door for Python. One module, `rlaunch._lib`, private; `python/rlaunch/_lib.pyi` says
//! what is in it. Python is called only on threads that Python called from, and waiting never holds
//! its lock.

mod errors;
mod join;
mod rank;

use pyo3::prelude::*;

/// The native half of rlaunch.
#[pymodule(name = "_lib", gil_used = true)]
mod lib {
    use super::errors::{self, to_python};
    use super::rank::PortLeases;
    use crate::cli::paddle;
    use crate::plan::spawn as plan;
    use crate::probe::nvml;
    use crate::run::preflight;
    use crate::spec::options::Vars;
    use crate::spec::spawn::{self, SpawnOptions};
    use crate::sys::lifeline;
    use crate::sys::ports::Lease;
    use pyo3::prelude::*;
    use pyo3::types::PyDict;
    use std::collections::BTreeMap;

    #[pymodule_export]
    use super::join::Joiner;
    #[pymodule_export]
    use super::rank::{Nursery, PortLeases as ExportedPortLeases, Rank};

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }

    /// Runs `python -m rlaunch` with these arguments (program name left out) and returns its exit
    /// status. `python` is the interpreter for the ranks.
    #[pyfunction]
    fn main(py: Python<'_>, args: Vec<String>, python: String) -> i32 {
        py.detach(|| paddle::main(&args, &python))
    }

    /// GPUs that the NVIDIA driver shows; 0 without one.
    #[pyfunction]
    fn gpu_count(py: Python<'_>) -> usize {
        py.detach(nvml::gpu_count)
    }

    /// Has the kernel kill this process when the lifeline that `fd` reads from closes.
    #[pyfunction]
    fn arm_lifeline(fd: i32) -> PyResult<()> {
        Ok(lifeline::arm(fd)?)
    }

    /// Checks the names of `spawn`'s options, in order; returns the deprecated ones.
    #[pyfunction]
    fn check_option_names(names: Vec<String>) -> PyResult<Vec<String>> {
        let deprecated = spawn::check_option_names(names.iter().map(String::as_str)).map_err(to_python)?;
        Ok(deprecated.into_iter().map(str::to_owned).collect())
    }

    /// Checks the name of a backend.
    #[pyfunction]
    fn check_backend(name: String) -> PyResult<()> {
        spawn::check_backend(&name).map_err(to_python)
    }

    /// One rank's variables, in order.
    type Environment = Vec<(String, String)>;

    fn option<'py, T>(options: &Bound<'py, PyDict>, name: &str) -> PyResult<Option<T>>
    where
        T: for<'a> FromPyObject<'a, 'py, Error = PyErr>,
    {
        match options.get_item(name)? {
            Some(value) if !value.is_none() => Ok(Some(value.extract()?)),
            _ => Ok(None),
        }
    }

    /// What each of `nprocs` ranks is told, and the leases of their ports. `options`: those of
    /// `spawn`, with `backend` resolved; `environ`: this process's environment; `devices`: how many
    /// devices of the backend's kind there are, -1 to ask the driver.
    #[pyfunction]
    fn plan_spawn(
        py: Python<'_>,
        nprocs: i64,
        options: &Bound<'_, PyDict>,
        environ: BTreeMap<String, String>,
        devices: i64,
    ) -> PyResult<(Vec<Environment>, PortLeases)> {
        let given = SpawnOptions {
            backend: option(options, "backend")?.unwrap_or_default(),
            ips: option(options, "ips")?,
            gpus: option(options, "gpus")?,
            xpus: option(options, "xpus")?,
            selected_devices: option(options, "selected_devices")?,
            started_port: option(options, "started_port")?,
            cluster_node_ips: option(options, "cluster_node_ips")?,
            node_ip: option(options, "node_ip")?,
            use_paddlecloud: match options.get_item("use_paddlecloud")? {
                Some(value) if !value.is_none() => Some(value.is_truthy()?),
                _ => None,
            },
        };
        let vars: Vars = environ;
        py.detach(|| {
            let spec = spawn::check(nprocs, &given, &vars)?;
            let count = |kind: &str| match usize::try_from(devices) {
                Ok(n) => n,
                Err(_) if kind == "gpu" => nvml::gpu_count(),
                Err(_) => 0,
            };
            let bindings = plan::bind(&spec, &vars, &count)?;
            preflight::make_room(spec.nprocs)
                .map_err(|e| spawn::SpawnError::Value(format!("nprocs {}: {}; {}", spec.nprocs, e.why, e.hint)))?;
            let leases = match spec.first_port {
                Some(first) => preflight::consecutive(first, spec.nprocs).map_err(spawn::SpawnError::Runtime)?,
                None => (0..spec.nprocs)
                    .map(|_| Lease::any())
                    .collect::<Result<_, _>>()
                    .map_err(|e| spawn::SpawnError::Runtime(format!("no free port for {} ranks: {e}", spec.nprocs)))?,
            };
            let ports: Vec<u16> = leases.iter().map(Lease::port).collect();
            let environments = plan::environments(&spec, &bindings, &ports);
            let rows = environments.into_iter().map(|env| env.vars().to_vec()).collect();
            Ok((rows, PortLeases::new(leases)))
        })
        .map_err(errors::to_python)
    }
}
