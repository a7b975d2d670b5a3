//! NVIDIA GPUs, from the driver's own library. Never from a framework, nor from nvidia-smi.

use crate::log::gpu::{self, Memory, Process, Usage};
use crate::plan::machine::{Gpu, Machine};
use crate::plan::visible;
use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Device, Nvml};

/// How many GPUs the driver shows; 0 without a driver, or when the library will not say.
pub fn gpu_count() -> usize {
    Nvml::init().and_then(|nvml| nvml.device_count()).map_or(0, |n| n as usize)
}

/// The GPUs that the driver shows, with their MIG devices; none without a driver. What an older library cannot
/// say is left empty.
pub fn gpus() -> Vec<Gpu> {
    Nvml::init().map_or_else(|_| Vec::new(), |nvml| gpus_of(&nvml))
}

/// The same, each with its PCI address as Linux writes it (`0000:3b:00.0`), where the driver says.
pub fn placed_gpus() -> Vec<(Gpu, Option<String>)> {
    let Ok(nvml) = Nvml::init() else { return Vec::new() };
    let place = |index: usize| {
        let pci = nvml.device_by_index(u32::try_from(index).ok()?).and_then(|device| device.pci_info()).ok()?;
        Some(format!("{:04x}:{:02x}:{:02x}.0", pci.domain, pci.bus, pci.device))
    };
    gpus_of(&nvml).into_iter().enumerate().map(|(index, gpu)| (gpu, place(index))).collect()
}

fn gpus_of(nvml: &Nvml) -> Vec<Gpu> {
    let count = nvml.device_count().unwrap_or(0);
    let gpu = |index| nvml.device_by_index(index).map_or_else(|_| Gpu::default(), |device| gpu(&device));
    (0..count).map(gpu).collect()
}

fn gpu(device: &Device<'_>) -> Gpu {
    let most = device.mig_device_count().unwrap_or(0);
    // Of as many as there can be, those that are there: the others are NotFound.
    let migs = (0..most).filter_map(|index| device.mig_device_by_index(index).and_then(|mig| mig.uuid()).ok());
    Gpu { uuid: device.uuid().unwrap_or_default(), migs: migs.collect() }
}

/// GPUs that are looked at again and again. Any call may wait for the driver for as long as that pleases.
pub struct Watched {
    nvml: Nvml,
    /// The driver's numbers of them.
    numbers: Vec<u32>,
}

/// Whether a driver's table of processes has larger entries than its name, `_v3`, stands for before and after: read as
/// those it is garbage, and written beyond its end (XuehaiPan/nvitop#88 and #89: 535.43 to 535.86).
fn has_another_table(driver: &str) -> bool {
    let mut numbers = driver.split('.').map(str::parse::<u32>);
    matches!((numbers.next(), numbers.next()), (Some(Ok(535)), Some(Ok(..98))))
}

/// A name that is longer is cut by the library.
const LONGEST_NAME: usize = 4096;

impl Watched {
    /// The GPUs that are meant.
    pub fn open(meant: &[visible::Device]) -> Result<Self, NvmlError> {
        let nvml = Nvml::init()?;
        let machine = Machine { gpus: gpus_of(&nvml), ..Machine::default() };
        Ok(Self { numbers: machine.numbers(meant), nvml })
    }

    /// Their numbers, and what to ask; nothing of one that is lost by now.
    fn devices(&self) -> impl Iterator<Item = (u32, Option<Device<'_>>)> {
        self.numbers.iter().map(|&index| (index, self.nvml.device_by_index(index).ok()))
    }

    /// What they are.
    pub fn gpus(&self) -> Vec<gpu::Gpu> {
        let driver = self.nvml.sys_driver_version().ok();
        let gpu = |(index, device): (u32, Option<Device<'_>>)| {
            let unknown = gpu::Gpu { index, driver: driver.clone(), ..gpu::Gpu::default() };
            let Some(device) = device else { return unknown };
            gpu::Gpu {
                uuid: device.uuid().ok(),
                name: device.name().ok(),
                serial: device.serial().ok(),
                display_active: device.is_display_active().ok(),
                display_mode: device.is_display_connected().ok(),
                ..unknown
            }
        };
        self.devices().map(gpu).collect()
    }

    /// Who computes on them, as far as the driver can be asked.
    pub fn processes(&self) -> Vec<Process> {
        let mut processes = Vec::new();
        if self.nvml.sys_driver_version().is_ok_and(|version| has_another_table(&version)) {
            return processes;
        }
        for device in self.devices().filter_map(|(_, device)| device) {
            let (gpu_uuid, gpu_name) = (device.uuid().ok(), device.name().ok());
            processes.extend(device.running_compute_processes().unwrap_or_default().into_iter().map(|process| {
                let name = self.nvml.sys_process_name(process.pid, LONGEST_NAME).ok();
                let used = match process.used_gpu_memory {
                    UsedGpuMemory::Used(bytes) => Some(bytes),
                    UsedGpuMemory::Unavailable => None,
                };
                Process { pid: process.pid, name, gpu_uuid: gpu_uuid.clone(), gpu_name: gpu_name.clone(), used }
            }));
        }
        processes
    }

    /// How busy they are now.
    pub fn usage(&self) -> Vec<Usage> {
        let usage = |(index, device): (u32, Option<Device<'_>>)| {
            let Some(device) = device else { return Usage { index, ..Usage::default() } };
            Usage {
                index,
                utilization: device.utilization_rates().map(|rates| rates.gpu).ok(),
                memory: device.memory_info().map(|m| Memory { total: m.total, used: m.used, free: m.free }).ok(),
            }
        };
        self.devices().map(usage).collect()
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
