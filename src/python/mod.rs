//! Floor 8: the door for Python. One module, `rlaunch._lib`, private; `python/rlaunch/_lib.pyi` says
//! what is in it. Python is called only on threads that Python called from, and waiting never holds
//! its lock.

mod affinity;
mod descriptor;
mod errors;
mod guardian;
mod join;
mod master;
mod rank;
mod run;
mod store;
mod wakeup;

use crate::spec::options::Vars;
use pyo3::prelude::*;
use std::collections::BTreeMap;
use std::ffi::OsString;

/// What is no UTF-8 is nothing of ours.
fn texts(environ: BTreeMap<OsString, OsString>) -> Vars {
    let text = |(n, v): (OsString, OsString)| Some((n.into_string().ok()?, v.into_string().ok()?));
    environ.into_iter().filter_map(text).collect()
}

/// The native half of rlaunch.
#[pymodule(name = "_lib", gil_used = true)]
mod lib {
    use super::errors::{self, to_python};
    use super::rank::PortLeases;
    use super::texts;
    use crate::cli::paddle;
    use crate::log;
    use crate::model::{Endpoint, EnvPatch};
    use crate::plan::dialects::{Servers, misses};
    use crate::plan::{devices, spawn as plan};
    use crate::probe::{accelerators, net, nvml};
    use crate::run::preflight;
    use crate::spec::options::{Kind, OPTIONS, Opt};
    use crate::spec::spawn::{self, Backend, SpawnError, SpawnOptions};
    use crate::spec::spawn_nodes::{self, Place};
    use crate::spec::zygote;
    use crate::sys::lifeline;
    use crate::sys::ports::Lease;
    use pyo3::prelude::*;
    use pyo3::types::PyDict;
    use std::cell::LazyCell;
    use std::collections::BTreeMap;
    use std::ffi::OsString;
    use std::path::Path;

    #[pymodule_export]
    use super::affinity::{bound_cpus, torch_devices};
    #[pymodule_export]
    use super::descriptor::{Descriptor, need_descriptors};
    #[pymodule_export]
    use super::guardian::{find_leftovers, guard, mark_memory, start_guardian, sweep_leftovers, swept_line};
    #[pymodule_export]
    use super::join::Joiner;
    #[pymodule_export]
    use super::master::{Master, PyMasterTie, meet_by_paddle};
    #[pymodule_export]
    use super::rank::{Nursery, PortLeases as ExportedPortLeases, Rank, settle_rank};
    #[pymodule_export]
    use super::run::{parse_run, run_completion, run_main, run_options};
    #[pymodule_export]
    use super::store::TorchStore;
    #[pymodule_export]
    use super::wakeup::await_readable;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }

    /// Runs `python -m rlaunch` with these arguments (program name left out) and returns its exit
    /// status. `python` is the interpreter for the ranks; `record`: a descriptor to write the end to, for
    /// `rlaunch.launch`, or -1.
    #[pyfunction]
    fn main(py: Python<'_>, args: Vec<OsString>, python: OsString, record: i32) -> i32 {
        py.detach(|| paddle::main(&args, &python, record))
    }

    /// The names of the command line's options, aliases too, and whether each is a flag.
    #[pyfunction]
    fn launch_options() -> BTreeMap<&'static str, bool> {
        let names = |opt: &'static Opt| std::iter::once(&opt.name).chain(opt.aliases).map(|name| (*name, opt.kind));
        OPTIONS.iter().flat_map(names).map(|(name, kind)| (name, kind == Kind::Flag)).collect()
    }

    /// Who in a failed rank's last words says that a peer is gone: the name of a library; None if nobody does.
    #[pyfunction]
    fn lost_peer(text: &str) -> Option<&'static str> {
        log::lost_peer(text.as_bytes()).map(log::LostPeer::name)
    }

    /// GPUs that the NVIDIA driver shows; 0 without one.
    #[pyfunction]
    fn gpu_count(py: Python<'_>) -> usize {
        py.detach(nvml::gpu_count)
    }

    /// The kind of devices that a program started now would see (`gpu`, `xpu`, a custom type), and how many:
    /// by the system and the visible lists of `environ`. A list that the driver would misread is a ValueError.
    #[pyfunction]
    fn devices_seen(py: Python<'_>, environ: BTreeMap<OsString, OsString>) -> PyResult<(&'static str, usize)> {
        let vars = texts(environ);
        let seen = py.detach(|| devices::seen(&vars, &accelerators::machine(Path::new("/"))));
        seen.map_err(|error| to_python(SpawnError::Value(error.to_string())))
    }

    /// The addresses of this machine's interfaces, loopback last.
    #[pyfunction]
    fn addresses(py: Python<'_>) -> Vec<String> {
        py.detach(|| net::addresses().iter().map(ToString::to_string).collect())
    }

    /// Has the kernel kill this process when the lifeline that `fd` reads from closes.
    #[pyfunction]
    fn arm_lifeline(fd: i32) -> PyResult<()> {
        lifeline::arm(fd).map_err(errors::os_error)
    }

    /// Checks the name of an option of `spawn`; whether it is deprecated.
    #[pyfunction]
    fn check_option_name(name: &str) -> PyResult<bool> {
        spawn::check_option_name(name).map_err(to_python)
    }

    /// Checks the name of a backend.
    #[pyfunction]
    fn check_backend(name: String) -> PyResult<()> {
        spawn::check_backend(&name).map_err(to_python)
    }

    /// What these words of `preload` name: the modules, and whether every rank may import for itself instead.
    /// `framework`: the module that none stands for, and "auto" alone.
    #[pyfunction]
    fn preload_modules(words: Vec<String>, framework: &str) -> PyResult<(Vec<String>, bool)> {
        let asked = zygote::preload(&words, framework).map_err(|why| to_python(SpawnError::Value(why)))?;
        Ok((asked.modules, asked.auto))
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

    /// What is planned for this node: what each of its ranks is told, the leases of their ports, this node's
    /// address and what is to be logged.
    type Plan = (Vec<Environment>, PortLeases, String, Vec<String>);

    /// Plans `nprocs` ranks on this node. `options`: those of `spawn`, with `backend` resolved; `environ`: this
    /// process's environment; `devices`: how many devices of the backend's kind there are, -1 to ask the system;
    /// `custom`: the type of the custom device, looked for in the system only where that is asked; `here`: the
    /// address of this machine's name, then those of its interfaces; needed if there are several nodes and no `node_ip`.
    #[pyfunction]
    #[pyo3(signature = (nprocs, options, environ, devices, custom=None, here=Vec::new()))]
    fn plan_spawn(
        py: Python<'_>,
        nprocs: &Bound<'_, PyAny>,
        options: &Bound<'_, PyDict>,
        environ: BTreeMap<OsString, OsString>,
        devices: i64,
        custom: Option<String>,
        here: Vec<String>,
    ) -> PyResult<Plan> {
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
            dialect: option(options, "dialect")?,
        };
        let vars = texts(environ);
        let backend = spawn::check(&given, &vars).map_err(to_python)?;
        let dialects = spawn::dialects(&given).map_err(to_python)?;
        let nprocs = usize::try_from(nprocs.extract::<i64>()?).unwrap_or(0);
        py.detach(|| {
            // Before anything is made for each rank: the number may be absurd.
            preflight::make_room("--nproc_per_node", nprocs, preflight::FDS_OF_SPAWN)
                .map_err(|e| SpawnError::Value(format!("nprocs {nprocs}: {}; {}", e.why, e.hint)))?;
            let machine = LazyCell::new(|| accelerators::machine(Path::new("/")));
            let count = |kind: &str| match (usize::try_from(devices), kind) {
                (Ok(n), _) => n,
                (Err(_), "gpu") => nvml::gpu_count(),
                (Err(_), "xpu") => machine.xpus,
                (Err(_), _) => machine.custom.filter(|(own, _)| *own == kind).map_or(0, |(_, n)| n),
            };
            let custom = match (custom, backend) {
                (None, Backend::Xccl) if devices < 0 => plan::custom_kind(&vars, &|| &*machine).map(str::to_owned),
                (custom, _) => custom,
            };
            let shares = plan::bind(backend, nprocs, &given, &vars, custom.as_deref(), &count)?;
            let nodes = spawn_nodes::locate(backend, &given, &vars, nprocs, &here)?;
            let (leases, endpoints, first, servers) = match nodes.place {
                Place::Fixed { endpoints, first } => {
                    let servers = plan::servers(&dialects, &endpoints, nprocs)?;
                    let own = endpoints[first..].iter().take(nprocs).map(|endpoint| endpoint.port);
                    let own = own.chain(servers.ports().filter(|_| first == 0));
                    (preflight::each(own).map_err(SpawnError::Runtime)?, endpoints, first, servers)
                }
                Place::Free { host } => {
                    let more = Servers::ports_needed(&dialects);
                    let leases: Vec<Lease> = (0..nprocs + more)
                        .map(|_| Lease::any())
                        .collect::<Result<_, _>>()
                        .map_err(|e| SpawnError::Runtime(format!("no free port for {nprocs} ranks: {e}")))?;
                    let mut endpoints: Vec<_> = leases.iter().map(|lease| Endpoint::new(&host, lease.port())).collect();
                    let servers = match &endpoints.split_off(nprocs)[..] {
                        [torch, jax] => Servers::at(&dialects, &host, [torch.port, jax.port]),
                        _ => Servers::default(),
                    };
                    (leases, endpoints, 0, servers)
                }
            };
            let environments = plan::environments(&endpoints, first, &shares, (&dialects, &servers), &vars);
            let row = |env: EnvPatch| env.vars().iter().map(|(n, v)| (n.to_string(), v.to_string())).collect();
            let rows = environments.into_iter().map(row).collect();
            let warnings = plan::misread(backend, &vars).into_iter().chain(nodes.warnings);
            let warnings = warnings.chain(misses(&dialects, &shares)).collect();
            Ok((rows, PortLeases::new(leases), nodes.node_ip, warnings))
        })
        .map_err(to_python)
    }
}
