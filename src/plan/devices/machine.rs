//! Devices of this machine, as the system names them. `probe` finds them, only when needed.

use crate::plan::devices::visible_devices::Device;
use std::collections::BTreeSet;

/// One GPU, in the driver's order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GpuDevice {
    /// `GPU-...`; empty if the driver does not say.
    pub uuid: String,
    /// `MIG-...` of each instance on it.
    pub migs: Vec<String>,
}

/// All devices.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MachineDevices {
    /// NVIDIA GPUs.
    pub gpus: Vec<GpuDevice>,
    /// Number of Kunlun XPUs.
    pub xpus: usize,
    /// Type and number of the first type of custom device.
    pub custom: Option<(&'static str, usize)>,
    /// True if /dev has a GPU. The NVIDIA driver's library need not show it.
    pub has_gpu_node: bool,
}

/// Finds the devices; called only when needed.
pub type DeviceQuery<'a> = &'a dyn Fn() -> &'a MachineDevices;

impl MachineDevices {
    /// Kind and number of the devices; custom devices come first, as in Paddle.
    pub fn devices(&self) -> (&'static str, usize) {
        match self.custom {
            Some((kind, count)) if count > 0 => (kind, count),
            _ if self.xpus > 0 => ("xpu", self.xpus),
            _ => ("gpu", self.gpus.len()),
        }
    }

    /// Whether the name matches exactly one device. An old name of a MIG device matches if its GPU has any.
    pub fn has(&self, device: &Device) -> bool {
        match device {
            Device::Index(_) => self.uuid(device).is_some(),
            _ => self.number(device).is_some(),
        }
    }

    /// The driver's numbers of these GPUs, or of the GPUs of these MIG devices, in ascending order. If one is unknown, the
    /// numbers of all GPUs.
    pub fn numbers(&self, devices: &[Device]) -> Vec<u32> {
        let known: Option<BTreeSet<u32>> = devices.iter().map(|device| self.number(device)).collect();
        let all = || (0..self.gpus.len() as u32).collect();
        known.unwrap_or_else(all).into_iter().collect()
    }

    /// The driver's number of this GPU, or of the GPU of this MIG device.
    pub fn number(&self, device: &Device) -> Option<u32> {
        let place = match device {
            Device::Index(index) => Some(*index as usize).filter(|index| *index < self.gpus.len()),
            _ => match self.uuid(device) {
                Some(uuid) => {
                    self.gpus.iter().position(|gpu| gpu.uuid == uuid || gpu.migs.iter().any(|mig| mig == uuid))
                }
                None => {
                    let of_old_name = self.uuid(&device.gpu()?)?;
                    self.gpus.iter().position(|gpu| gpu.uuid == of_old_name && !gpu.migs.is_empty())
                }
            },
        };
        place.and_then(|place| u32::try_from(place).ok())
    }

    /// The full UUID of a GPU or MIG device, if the name matches exactly one.
    pub fn uuid(&self, device: &Device) -> Option<&str> {
        let all: Vec<&str> = match device {
            Device::Index(index) => {
                return self.gpus.get(*index as usize).map(|g| g.uuid.as_str()).filter(|u| !u.is_empty());
            }
            Device::Gpu(_) => self.gpus.iter().map(|gpu| gpu.uuid.as_str()).collect(),
            Device::Mig(_) => self.gpus.iter().flat_map(|gpu| &gpu.migs).map(String::as_str).collect(),
            Device::Other(_) => return None,
        };
        let mut matching = all.into_iter().filter(|uuid| device.begins(uuid));
        matching.next().filter(|_| matching.next().is_none())
    }
}
