//! Facts of a machine that the checks judge. `gather` collects them; tests make them up.

use crate::cli::common::interpreter::PythonFacts;
use crate::plan::devices::machine::MachineDevices;
use crate::plan::devices::threads::CpuQuota;
use crate::probe::disk::DiskSpace;
use crate::probe::nvml::DriverFault;
use crate::spec::options::EnvVars;
use crate::sys::clock::Discipline;
use crate::sys::denied_calls::DeniedCall;
use crate::sys::process::procfs::ProcfsUnusable;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

/// All facts. `None` in a field: it could not be found out.
#[derive(Clone, Debug)]
pub(super) struct Facts {
    pub system: SystemFacts,
    pub limits: LimitFacts,
    pub cpus: CpuFacts,
    pub log_dir: FolderFacts,
    /// /dev/shm.
    pub shared_memory: FolderFacts,
    pub devices: DeviceFacts,
    pub python: PythonFacts,
    pub network: NetworkFacts,
    /// Variables, without those of a launcher inside whose rank this process runs.
    pub vars: EnvVars,
    /// Whether there is such a launcher.
    pub is_nested: bool,
}

/// The kernel, its cgroups and its clock.
#[derive(Clone, Debug)]
pub(super) struct SystemFacts {
    /// `6.1.0-13-amd64`.
    pub release: String,
    /// System calls of rlaunch that a sandbox denies.
    pub denied: Vec<DeniedCall>,
    pub procfs: Result<(), ProcfsUnusable>,
    /// Whether a cgroup can be created for a job.
    pub has_cgroup: bool,
    /// Memory of the machine or of the cgroup, in bytes.
    pub memory: Option<u64>,
    /// Time since the epoch.
    pub wall: Duration,
    /// How the kernel's clock is kept.
    pub clock: Option<Discipline>,
}

/// Limits of resources.
#[derive(Clone, Debug)]
pub(super) struct LimitFacts {
    /// Soft and hard limit of open files.
    pub files: (u64, u64),
    /// Open files that the launcher needs for its ranks.
    pub files_needed: u64,
    /// Soft limit of processes and threads of this user; `None` without one.
    pub processes: Option<u64>,
    /// Processes and threads that the cgroup has room for; `None` without a limit.
    pub cgroup_processes: Option<u64>,
    /// Soft limit of locked memory in bytes; `None` without one.
    pub locked: Option<u64>,
    /// RDMA devices.
    pub rdma: Vec<String>,
}

/// CPUs.
#[derive(Clone, Debug)]
pub(super) struct CpuFacts {
    /// Number of CPUs that this process may use.
    pub allowed: Option<usize>,
    /// Number of CPUs that are online.
    pub online: Option<usize>,
    pub quota: Option<CpuQuota>,
}

/// A folder.
#[derive(Clone, Debug)]
pub(super) struct FolderFacts {
    pub path: PathBuf,
    pub state: FolderState,
}

/// What is known of a folder.
#[derive(Clone, Debug)]
pub(super) enum FolderState {
    /// The folder, or the nearest one above it that exists.
    There {
        /// The folder that exists.
        at: PathBuf,
        space: DiskSpace,
        /// Why files cannot be created.
        writable: Result<(), String>,
    },
    /// Why it cannot be used.
    Unusable(String),
    /// The file system does not answer.
    Hangs,
}

/// Devices.
#[derive(Clone, Debug)]
pub(super) struct DeviceFacts {
    /// Files in /dev of NVIDIA GPUs.
    pub nodes: usize,
    /// GPUs by NVML.
    pub gpus: GpuFacts,
    pub machine: MachineDevices,
    /// Numbers of the kernel's messages on faults of GPUs (Xid), with the GPU's address; `None` if they cannot be read.
    pub xids: Option<Vec<(String, u32)>>,
}

/// What the driver of NVIDIA's GPUs says.
#[derive(Clone, Debug)]
pub(super) enum GpuFacts {
    Found {
        driver: Option<String>,
        gpus: Vec<GpuState>,
    },
    Fault(DriverFault),
    /// The driver does not answer.
    Hangs,
}

/// One GPU.
#[derive(Clone, Debug, Default)]
pub(super) struct GpuState {
    pub index: u32,
    pub name: Option<String>,
    /// Used and total memory in bytes.
    pub memory: Option<(u64, u64)>,
    /// Whether the driver has lost it.
    pub is_lost: bool,
    /// Memory errors since the driver was loaded that were not corrected.
    pub ecc_errors: Option<u64>,
    /// Whether memory pages wait for a reset to be retired.
    pub pages_pending: bool,
    /// Whether it admits no program (compute mode).
    pub is_prohibited: bool,
    /// `python (pid 4242)`, with its memory.
    pub holders: Vec<String>,
}

/// Names, interfaces, ports.
#[derive(Clone, Debug)]
pub(super) struct NetworkFacts {
    pub host: NameFacts,
    pub localhost: NameFacts,
    /// Names of the interfaces that are up.
    pub interfaces: Option<Vec<String>>,
    /// Addresses of the interfaces that are up, loopback last.
    pub addresses: Vec<IpAddr>,
    /// First and last port that the kernel gives out.
    pub free_ports: Option<(u16, u16)>,
    /// Why no port can be taken.
    pub any_port: Result<(), String>,
    pub masters: Vec<MasterFacts>,
}

/// A name, and what it resolves to.
#[derive(Clone, Debug)]
pub(super) struct NameFacts {
    pub name: String,
    /// `None`: no answer in time.
    pub addresses: Option<Vec<IpAddr>>,
}

impl NameFacts {
    /// Whether all its addresses are loopback.
    pub(super) fn is_loopback(&self) -> bool {
        self.addresses.as_ref().is_some_and(|all| !all.is_empty() && all.iter().all(IpAddr::is_loopback))
    }
}

/// An address at which nodes find each other.
#[derive(Clone, Debug)]
pub(super) struct MasterFacts {
    /// The option or variable that gives it.
    pub from: &'static str,
    pub host: NameFacts,
    pub port: Option<u16>,
    /// Why no packet can be sent there.
    pub route: Result<(), String>,
    /// Who has the port, if the address is this machine's.
    pub busy: Option<String>,
}
