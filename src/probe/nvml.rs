//! NVIDIA GPUs, from the driver's library (NVML). Neither a framework nor nvidia-smi is used.

use crate::plan::devices::machine::{GpuDevice, MachineDevices};
use crate::plan::devices::visible_devices;
use crate::report::gpu_log;
use crate::report::gpu_log::{GpuMemory, GpuProcess, GpuUsage};
use crate::sys::clock;
use nvml_wrapper::enum_wrappers::device::{ComputeMode, EccCounter, MemoryError};
use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::struct_wrappers::device::ProcessUtilizationSample;
use nvml_wrapper::{Device, Nvml};
use std::time::Duration;

/// Number of GPUs of the driver; 0 without a driver, or if the library fails.
pub fn gpu_count() -> usize {
    Nvml::init().and_then(|nvml| nvml.device_count()).map_or(0, |n| n as usize)
}

/// The GPUs of the driver, with their MIG devices; empty without a driver. Values that an old library does not report are
/// empty.
pub fn gpus() -> Vec<GpuDevice> {
    Nvml::init().map_or_else(|_| Vec::new(), |nvml| gpus_of(&nvml))
}

/// The same, each with its PCI address in the form of Linux (`0000:3b:00.0`), if the driver reports it.
pub fn placed_gpus() -> Vec<(GpuDevice, Option<String>)> {
    let Ok(nvml) = Nvml::init() else { return Vec::new() };
    let place = |index: usize| {
        let pci = nvml.device_by_index(u32::try_from(index).ok()?).and_then(|device| device.pci_info()).ok()?;
        Some(format!("{:04x}:{:02x}:{:02x}.0", pci.domain, pci.bus, pci.device))
    };
    gpus_of(&nvml).into_iter().enumerate().map(|(index, gpu)| (gpu, place(index))).collect()
}

fn gpus_of(nvml: &Nvml) -> Vec<GpuDevice> {
    let count = nvml.device_count().unwrap_or(0);
    let gpu = |index| nvml.device_by_index(index).map_or_else(|_| GpuDevice::default(), |device| gpu(&device));
    (0..count).map(gpu).collect()
}

fn gpu(device: &Device<'_>) -> GpuDevice {
    let most = device.mig_device_count().unwrap_or(0);
    // The count is a maximum; instances that do not exist are NotFound.
    let migs = (0..most).filter_map(|index| device.mig_device_by_index(index).and_then(|mig| mig.uuid()).ok());
    GpuDevice { uuid: device.uuid().unwrap_or_default(), migs: migs.collect() }
}

/// What a process uses of a GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GpuProcessUse {
    /// Its process id.
    pub pid: u32,
    /// The driver's number of the GPU.
    pub gpu: u32,
    /// Its memory on the GPU, in bytes.
    pub memory: Option<u64>,
    /// Percent of time in which its kernels ran.
    pub percent: Option<u32>,
    /// The same for all processes on the GPU, if the driver does not tell them apart.
    pub percent_of_gpu: Option<u32>,
}

/// Why the driver does not answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DriverFault {
    /// Its library is not installed.
    NoLibrary,
    /// Its kernel module is not loaded, or not visible in this container.
    NotLoaded,
    /// The library and the kernel module are of different versions.
    Mismatch,
    /// Another reason, as the library describes it.
    Other(String),
}

impl From<NvmlError> for DriverFault {
    fn from(error: NvmlError) -> Self {
        match error {
            NvmlError::LibloadingError(_) | NvmlError::LibraryNotFound => Self::NoLibrary,
            NvmlError::DriverNotLoaded => Self::NotLoaded,
            NvmlError::LibRmVersionMismatch => Self::Mismatch,
            other => Self::Other(other.to_string()),
        }
    }
}

/// Faults of one GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GpuHealth {
    /// The driver cannot reach it.
    pub is_lost: bool,
    /// Memory errors that were not corrected, since the driver was loaded; `None` without ECC.
    pub ecc_errors: Option<u64>,
    /// Memory pages wait for a reset to be retired.
    pub pages_pending: bool,
    /// Its compute mode admits no program.
    pub is_prohibited: bool,
}

/// How old a process's utilization may be. The driver measures about six times a second.
const RECENT: Duration = Duration::from_secs(2);

/// The driver, for repeated queries. Any call may block in it.
pub struct GpuMonitor(Nvml);

/// Whether the process table `_v3` of this driver has larger entries than in earlier and later drivers. Reading it would
/// return garbage, and the driver would write beyond the buffer (XuehaiPan/nvitop#88 and #89: 535.43 to 535.86).
fn has_another_table(driver: &str) -> bool {
    let mut numbers = driver.split('.').map(str::parse::<u32>);
    matches!((numbers.next(), numbers.next()), (Some(Ok(535)), Some(Ok(..98))))
}

fn used_bytes(memory: &UsedGpuMemory) -> Option<u64> {
    match memory {
        UsedGpuMemory::Used(bytes) => Some(*bytes),
        UsedGpuMemory::Unavailable => None,
    }
}

/// Longer process names are truncated by the library.
const LONGEST_NAME: usize = 4096;

impl GpuMonitor {
    /// Opens the driver.
    pub fn open() -> Result<Self, NvmlError> {
        Nvml::init().map(Self)
    }

    /// The driver's numbers of these GPUs; of all if one is unknown.
    pub fn numbers(&self, devices: &[visible_devices::Device]) -> Vec<u32> {
        let machine = MachineDevices { gpus: gpus_of(&self.0), ..MachineDevices::default() };
        machine.numbers(devices)
    }

    /// Numbers and handles; no handle for a GPU that is lost.
    fn devices<'a>(&'a self, numbers: &'a [u32]) -> impl Iterator<Item = (u32, Option<Device<'a>>)> {
        numbers.iter().map(|&index| (index, self.0.device_by_index(index).ok()))
    }

    /// Static information on the GPUs with these numbers.
    pub fn gpus(&self, numbers: &[u32]) -> Vec<gpu_log::GpuRow> {
        let driver = self.0.sys_driver_version().ok();
        let gpu = |(index, device): (u32, Option<Device<'_>>)| {
            let unknown = gpu_log::GpuRow { index, driver: driver.clone(), ..gpu_log::GpuRow::default() };
            let Some(device) = device else { return unknown };
            gpu_log::GpuRow {
                uuid: device.uuid().ok(),
                name: device.name().ok(),
                serial: device.serial().ok(),
                display_active: device.is_display_active().ok(),
                display_mode: device.is_display_connected().ok(),
                ..unknown
            }
        };
        self.devices(numbers).map(gpu).collect()
    }

    /// The numbers of all GPUs.
    pub fn all(&self) -> Vec<u32> {
        (0..self.0.device_count().unwrap_or(0)).collect()
    }

    /// Faults of the GPUs with these numbers.
    pub fn health(&self, numbers: &[u32]) -> Vec<GpuHealth> {
        let is_gone = |error: &NvmlError| matches!(error, NvmlError::GpuLost | NvmlError::ResetRequired);
        let health = |index: &u32| match self.0.device_by_index(*index) {
            Err(error) => GpuHealth { is_lost: is_gone(&error), ..GpuHealth::default() },
            Ok(device) => GpuHealth {
                is_lost: device.memory_info().is_err_and(|error| is_gone(&error)),
                ecc_errors: device.total_ecc_errors(MemoryError::Uncorrected, EccCounter::Volatile).ok(),
                pages_pending: device.are_pages_pending_retired().unwrap_or(false),
                is_prohibited: device.compute_mode().is_ok_and(|mode| mode == ComputeMode::Prohibited),
            },
        };
        numbers.iter().map(health).collect()
    }

    fn has_another_table(&self) -> bool {
        self.0.sys_driver_version().is_ok_and(|version| has_another_table(&version))
    }

    /// What the processes that compute on all GPUs use of them.
    pub fn process_use(&self) -> Vec<GpuProcessUse> {
        let mut found = Vec::new();
        if self.has_another_table() {
            return found;
        }
        let since = u64::try_from(clock::wall().saturating_sub(RECENT).as_micros()).unwrap_or_default();
        let numbers = self.all();
        for (gpu, device) in self.devices(&numbers) {
            let processes = device.as_ref().and_then(|device| device.running_compute_processes().ok());
            let (Some(device), Some(processes)) = (device, processes.filter(|found| !found.is_empty())) else {
                continue;
            };
            let samples = match device.process_utilization_stats(since) {
                // No kernel ran meanwhile.
                Err(NvmlError::NotFound) => Some(Vec::new()),
                samples => samples.ok(),
            };
            let of_gpu = if samples.is_none() { device.utilization_rates().ok().map(|rates| rates.gpu) } else { None };
            found.extend(processes.into_iter().map(|process| {
                let of_process = |samples: &Vec<ProcessUtilizationSample>| {
                    let own = samples.iter().filter(|sample| sample.pid == process.pid);
                    own.max_by_key(|sample| sample.timestamp).map_or(0, |sample| sample.sm_util)
                };
                GpuProcessUse {
                    pid: process.pid,
                    gpu,
                    memory: used_bytes(&process.used_gpu_memory),
                    percent: samples.as_ref().map(of_process),
                    percent_of_gpu: of_gpu,
                }
            }));
        }
        found
    }

    /// Processes that compute on the GPUs with these numbers, as far as the driver reports them.
    pub fn processes(&self, numbers: &[u32]) -> Vec<GpuProcess> {
        let mut processes = Vec::new();
        if self.has_another_table() {
            return processes;
        }
        for device in self.devices(numbers).filter_map(|(_, device)| device) {
            let (gpu_uuid, gpu_name) = (device.uuid().ok(), device.name().ok());
            processes.extend(device.running_compute_processes().unwrap_or_default().into_iter().map(|process| {
                let name = self.0.sys_process_name(process.pid, LONGEST_NAME).ok();
                let used = used_bytes(&process.used_gpu_memory);
                GpuProcess { pid: process.pid, name, gpu_uuid: gpu_uuid.clone(), gpu_name: gpu_name.clone(), used }
            }));
        }
        processes
    }

    /// Current utilization and memory of the GPUs with these numbers.
    pub fn usage(&self, numbers: &[u32]) -> Vec<GpuUsage> {
        let usage = |(index, device): (u32, Option<Device<'_>>)| {
            let Some(device) = device else { return GpuUsage { index, ..GpuUsage::default() } };
            GpuUsage {
                index,
                utilization: device.utilization_rates().map(|rates| rates.gpu).ok(),
                memory: device.memory_info().map(|m| GpuMemory { total: m.total, used: m.used, free: m.free }).ok(),
            }
        };
        self.devices(numbers).map(usage).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drivers_with_another_table_are_known_by_their_version() {
        for (version, has) in [
            ("530.41.03", false),
            ("535.43.02", true),
            ("535.54.03", true),
            ("535.86.10", true),
            ("535.98", false),
            ("535.104.05", false),
            ("580.65.06", false),
            ("535", false),
            ("", false),
        ] {
            assert_eq!(has_another_table(version), has, "{version}");
        }
    }
}
