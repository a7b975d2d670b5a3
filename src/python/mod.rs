//! The native module `rlaunch._lib`, private to the Python package; its stubs are `python/rlaunch/_lib.pyi`.
//!
//! Python code is called only on threads that Python called from, and no wait holds the GIL.

mod creator;
mod descriptor;
mod errors;
mod guardian;
mod join;
mod rank;
mod rank_lease;
mod rank_stop;
mod run;
#[cfg(feature = "test-hooks")]
mod test_hooks;
mod wakeup;

use crate::spec::options::EnvVars;
use pyo3::prelude::*;
use std::collections::BTreeMap;
use std::ffi::OsString;

/// The variables that are UTF-8; rlaunch reads no others.
fn texts(environ: BTreeMap<OsString, OsString>) -> EnvVars {
    let text = |(n, v): (OsString, OsString)| Some((n.into_string().ok()?, v.into_string().ok()?));
    environ.into_iter().filter_map(text).collect()
}

/// The native half of rlaunch.
#[pymodule(name = "_lib", gil_used = true)]
mod lib {
    use super::errors::{self, to_python};
    use super::rank::PortLeases;
    use super::texts;
    use crate::cli::common::interpreter::Interpreter;
    use crate::cli::control;
    use crate::cli::paddle::frontend;
    use crate::model::{Endpoint, EnvDelta};
    use crate::plan::devices::assign;
    use crate::plan::env::frameworks::{FrameworkServers, gpu_mismatch};
    use crate::plan::spawn as plan;
    use crate::probe::limits::refusal;
    use crate::probe::{accelerators, net, nvml, stack_answers};
    use crate::report;
    use crate::run::prepare::{ports, preflight};
    use crate::run::stacks::{self, look};
    use crate::spec::options::{Opt, OptKind};
    use crate::spec::paddle::options::OPTIONS;
    use crate::spec::preload;
    use crate::spec::spawn::endpoints::SpawnEndpoints;
    use crate::spec::spawn::nodes;
    use crate::spec::spawn::options;
    use crate::spec::spawn::options::{SpawnBackend, SpawnError, SpawnOptions};
    use crate::sys::io::ports::PortLease;
    use crate::sys::process::{current, lifeline};
    use pyo3::exceptions::{PyImportError, PyOSError, PyValueError};
    use pyo3::prelude::*;
    use pyo3::types::PyDict;
    use std::cell::LazyCell;
    use std::collections::BTreeMap;
    use std::ffi::OsString;
    use std::os::fd::AsFd;
    use std::path::{Path, PathBuf};

    #[pymodule_export]
    use super::creator::PyCreator;
    #[pymodule_export]
    use super::descriptor::{Descriptor, need_descriptors};
    #[pymodule_export]
    use super::guardian::{
        Guardian, find_leftovers, guard, is_shared_memory_private, left_line, mark_memory, procfs_line,
        sweep_leftovers, swept_line,
    };
    #[pymodule_export]
    use super::join::Joiner;
    #[pymodule_export]
    use super::rank::{PortLeases as ExportedPortLeases, Rank, Spawner, set_up_rank_process};
    #[pymodule_export]
    use super::rank_lease::PyRankLease;
    #[pymodule_export]
    use super::rank_stop::PyRankStop;
    #[pymodule_export]
    use super::run::{run_completion, run_main, run_options};
    #[pymodule_export]
    use super::wakeup::await_readable;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        need_gil(module.py())?;
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }

    /// A free-threaded Python turns the GIL on before it calls this module, because of `gil_used`; not with `PYTHON_GIL=0` or
    /// `-X gil=0` (Python 3.13, `Python/import.c`, `_PyImport_EnableGILAndWarn`). ImportError: it is off.
    fn need_gil(py: Python<'_>) -> PyResult<()> {
        let sys = py.import("sys")?;
        match sys.getattr_opt("_is_gil_enabled")? {
            Some(is_enabled) if !is_enabled.call0()?.is_truthy()? => Err(PyImportError::new_err(
                "rlaunch needs the GIL, and PYTHON_GIL=0 or -X gil=0 keeps it off. Without this setting Python turns it on when \
                 rlaunch is imported; ranks that do not import rlaunch still run without it",
            )),
            _ => Ok(()),
        }
    }

    /// Runs `python -m rlaunch` with these arguments (without the program name) and returns its exit status. `interpreter`: path,
    /// version and module search path of the one for the ranks; `record`: the write end of `rlaunch.launch`'s status pipe, or -1.
    #[pyfunction]
    fn main(py: Python<'_>, args: Vec<OsString>, interpreter: (OsString, String, Vec<PathBuf>), record: i32) -> i32 {
        py.detach(|| frontend::main(&args, &Interpreter::from(interpreter), record))
    }

    /// The names of the command line's options and of their aliases, and whether each is a flag.
    #[pyfunction]
    fn launch_options() -> BTreeMap<&'static str, bool> {
        let names = |opt: &'static Opt| {
            let names = std::iter::once(opt.name).chain(opt.aliases.iter().copied());
            names.map(|name| (name, opt.kind == OptKind::Flag))
        };
        OPTIONS.iter().flat_map(names).collect()
    }

    /// Runs the command `rlaunch` for running jobs with these arguments (without the program name) and returns its exit status.
    /// `executable`, `version`, `path`: the interpreter's, of which `rlaunch doctor` tells.
    #[pyfunction]
    fn control_main(
        py: Python<'_>,
        args: Vec<OsString>,
        executable: Option<OsString>,
        version: String,
        path: Vec<PathBuf>,
    ) -> i32 {
        let executable = executable.unwrap_or_else(|| "an embedded interpreter".into());
        py.detach(|| control::main(&args, Interpreter { executable, version, path }))
    }

    /// The stacks of child processes as text, equal ones once: `ranks` are (number, process id); `python`: the interpreter for the
    /// process that reads them. OSError: it cannot be started, or does not answer.
    #[pyfunction]
    fn describe_stacks(py: Python<'_>, ranks: Vec<(usize, i32)>, python: OsString) -> PyResult<String> {
        py.detach(|| stacks::describe(&ranks, python)).map_err(|error| PyOSError::new_err(error.to_string()))
    }

    /// The stacks of child processes of this one, by rank, as faulthandler writes them. OSError: they cannot be read.
    #[pyfunction]
    fn stacks_as_faulthandler(
        py: Python<'_>,
        ranks: Vec<(usize, i32)>,
        python: OsString,
    ) -> PyResult<BTreeMap<usize, String>> {
        let dump = py.detach(|| stacks::read(&ranks, python)).map_err(|error| PyOSError::new_err(error.to_string()))?;
        Ok(dump.ranks.iter().map(|rank| (rank.local_rank, rank.as_faulthandler())).collect())
    }

    /// Reads the stacks of ranks: a request and its answer as JSON (`src/run/stacks/look.rs`). Only for a process of its own: a read
    /// of memory that changes meanwhile may panic, which is one more failed read and prints nothing. ValueError: no request.
    #[pyfunction]
    fn read_stacks(py: Python<'_>, request: &[u8]) -> PyResult<Vec<u8>> {
        let invalid = |error: serde_json::Error| PyValueError::new_err(error.to_string());
        let request = serde_json::from_slice(request).map_err(invalid)?;
        std::panic::set_hook(Box::new(|_| {}));
        let answer = py.detach(|| look::answer(&request));
        serde_json::to_vec(&answer).map_err(invalid)
    }

    /// The library that reports a lost peer in this end of a rank's log; None if there is no such message.
    #[pyfunction]
    fn lost_peer(text: &str) -> Option<&'static str> {
        report::lost_peer(text.as_bytes()).map(report::LostPeer::name)
    }

    /// The number of GPUs that the NVIDIA driver shows; 0 without a driver.
    #[pyfunction]
    fn gpu_count(py: Python<'_>) -> usize {
        py.detach(nvml::gpu_count)
    }

    /// The kind of devices that a program started now would see (`gpu`, `xpu`, a custom type), and their number, from the
    /// system and the visible lists in `environ`. ValueError: a list that the driver would misread.
    #[pyfunction]
    fn devices_seen(py: Python<'_>, environ: BTreeMap<OsString, OsString>) -> PyResult<(&'static str, usize)> {
        let vars = texts(environ);
        let seen = py.detach(|| assign::count_visible(&vars, &accelerators::machine(Path::new("/"))));
        seen.map_err(|error| to_python(SpawnError::Value(error.to_string())))
    }

    /// The addresses of this machine's interfaces, loopback last.
    #[pyfunction]
    fn addresses(py: Python<'_>) -> Vec<String> {
        py.detach(|| net::addresses().iter().map(ToString::to_string).collect())
    }

    /// Whether other processes of this user may read the memory of this one, as far as that is known.
    #[pyfunction]
    fn is_readable() -> bool {
        stack_answers::is_readable()
    }

    /// Has the kernel kill this process when the lifeline that `fd` reads from closes.
    #[pyfunction]
    fn arm_lifeline(fd: i32) -> PyResult<()> {
        let end = crate::sys::io::fd::duplicate_number_above_stdio(fd).map_err(errors::os_error)?;
        lifeline::arm(end.as_fd()).map_err(errors::os_error)
    }

    /// Has the kernel kill this process, which multiprocessing's fork server has forked, when the server ends.
    #[pyfunction]
    fn die_with_fork_server() -> PyResult<()> {
        // If the server has ended already, the lifeline alone ties this process to the program.
        current::die_with_parent(std::os::unix::process::parent_id()).map_err(errors::os_error)
    }

    /// Checks the name of an option of `spawn`; whether it is deprecated.
    #[pyfunction]
    fn check_option_name(name: &str) -> PyResult<bool> {
        options::check_option_name(name).map_err(to_python)
    }

    /// Checks the name of a backend.
    #[pyfunction]
    fn check_backend(name: String) -> PyResult<()> {
        options::check_backend(&name).map_err(to_python)
    }

    /// The modules in the option `preload`, and whether ranks may import them themselves instead (`auto`).
    /// `framework`: the module that none stands for, and "auto" alone.
    #[pyfunction]
    fn preload_modules(words: Vec<String>, framework: &str) -> PyResult<(Vec<String>, bool)> {
        let asked =
            preload::check_items(&words, framework).map_err(|error| to_python(SpawnError::Value(error.to_string())))?;
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

    /// The plan for this node: the variables of each rank, the leases of their ports, this node's address, warnings.
    type Plan = (Vec<Environment>, PortLeases, String, Vec<String>);

    /// Plans `nprocs` ranks on this node. `options`: those of `spawn`, with `backend` resolved; `environ`: this process's
    /// environment; `devices`: the number of devices of the backend's kind, -1 to query the system; `custom`: the type of
    /// the custom device, queried only with `devices` -1; `here`: the address of this machine's name, then those of its
    /// interfaces, needed for several nodes without `node_ip`.
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
            frameworks: option(options, "frameworks")?,
        };
        let vars = texts(environ);
        let backend = options::check(&given, &vars).map_err(to_python)?;
        let frameworks = options::requested_frameworks(&given).map_err(to_python)?;
        let nprocs = usize::try_from(nprocs.extract::<i64>()?).unwrap_or(0);
        py.detach(|| {
            // Before anything is allocated for each rank: the number may be absurd.
            preflight::raise_file_limit("--nproc_per_node", nprocs, preflight::FDS_OF_SPAWN).map_err(|e| {
                SpawnError::Value(format!("nprocs {nprocs}: {}; {}", e.why, e.hint.unwrap_or_default()))
            })?;
            let machine = LazyCell::new(|| accelerators::machine(Path::new("/")));
            let count = |kind: &str| match (usize::try_from(devices), kind) {
                (Ok(n), _) => n,
                (Err(_), "gpu") => nvml::gpu_count(),
                (Err(_), "xpu") => machine.xpus,
                (Err(_), _) => machine.custom.filter(|(own, _)| *own == kind).map_or(0, |(_, n)| n),
            };
            let custom = match (custom, backend) {
                (None, SpawnBackend::Xccl) if devices < 0 => plan::custom_kind(&vars, &|| &*machine).map(str::to_owned),
                (custom, _) => custom,
            };
            let shares = plan::bind(backend, nprocs, &given, &vars, custom.as_deref(), &count)?;
            let nodes = nodes::locate(backend, &given, &vars, nprocs, &here)?;
            let (leases, endpoints, first, servers) = match nodes.endpoints {
                SpawnEndpoints::Fixed { endpoints, first } => {
                    let servers = plan::servers(&frameworks, &endpoints, nprocs)?;
                    let own = endpoints[first..].iter().take(nprocs).map(|endpoint| endpoint.port);
                    let own = own.chain(servers.ports().filter(|_| first == 0));
                    (
                        ports::lease_each(own).map_err(|error| SpawnError::Runtime(error.to_string()))?,
                        endpoints,
                        first,
                        servers,
                    )
                }
                SpawnEndpoints::Free { host } => {
                    let more = FrameworkServers::ports_needed(&frameworks);
                    let leases: Vec<PortLease> =
                        (0..nprocs + more).map(|_| PortLease::any()).collect::<Result<_, _>>().map_err(|e| {
                            SpawnError::Runtime(format!("no free port for {nprocs} ranks: {e}{}", refusal::reason(&e)))
                        })?;
                    let mut endpoints: Vec<_> = leases.iter().map(|lease| Endpoint::new(&host, lease.port())).collect();
                    let servers = match &endpoints.split_off(nprocs)[..] {
                        [torch, jax] => FrameworkServers::at(&frameworks, &host, [torch.port, jax.port]),
                        _ => FrameworkServers::default(),
                    };
                    (leases, endpoints, 0, servers)
                }
            };
            let environments = plan::environments(&endpoints, first, &shares, (&frameworks, &servers), &vars);
            let row = |env: EnvDelta| env.vars().iter().map(|(n, v)| (n.to_string(), v.to_string())).collect();
            let rows = environments.into_iter().map(row).collect();
            let warnings = plan::cuda_list_warning(backend, &vars).into_iter().chain(nodes.warnings);
            let warnings = warnings.chain(gpu_mismatch(&frameworks, &shares)).collect();
            Ok((rows, PortLeases::new(leases), nodes.node_ip, warnings))
        })
        .map_err(to_python)
    }
}
