//! The devices of this machine, as the system names them. Found by `probe`, and only when somebody has to know.

use super::visible::Device;
use std::collections::BTreeSet;

/// One GPU, in the driver's order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Gpu {
    /// `GPU-...`; empty if the driver does not say.
    pub uuid: String,
    /// `MIG-...` of each instance on it.
    pub migs: Vec<String>,
}

/// All of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Machine {
    /// NVIDIA's.
    pub gpus: Vec<Gpu>,
    /// How many Kunlun devices.
    pub xpus: usize,
    /// The type of the first custom device, and how many of it.
    pub custom: Option<(&'static str, usize)>,
}

/// Asked at most once, if at all.
pub type Ask<'a> = &'a dyn Fn() -> &'a Machine;

impl Machine {
    /// The kind of its devices, and how many; custom devices come first, as in Paddle.
    pub fn devices(&self) -> (&'static str, usize) {
        match self.custom {
            Some((kind, count)) if count > 0 => (kind, count),
            _ if self.xpus > 0 => ("xpu", self.xpus),
            _ => ("gpu", self.gpus.len()),
        }
    }

    /// Whether exactly one of its devices is meant. An older name of a MIG device is believed if its GPU is there.
    pub fn has(&self, device: &Device) -> bool {
        self.uuid(device).or_else(|| self.uuid(&device.gpu()?)).is_some()
    }

    /// The driver's numbers of the GPUs that are meant, or that hold the MIG devices that are, in its order. All of them
    /// where one is not known.
    pub fn numbers(&self, devices: &[Device]) -> Vec<u32> {
        let known: Option<BTreeSet<u32>> = devices.iter().map(|device| self.number(device)).collect();
        let all = || (0..self.gpus.len() as u32).collect();
        known.unwrap_or_else(all).into_iter().collect()
    }

    /// The driver's number of the GPU that is meant, or that holds the MIG device that is.
    pub fn number(&self, device: &Device) -> Option<u32> {
        let place = match device {
            Device::Index(index) => Some(*index as usize).filter(|index| *index < self.gpus.len()),
            _ => {
                let uuid = self.uuid(device).or_else(|| self.uuid(&device.gpu()?))?;
                self.gpus.iter().position(|gpu| gpu.uuid == uuid || gpu.migs.iter().any(|mig| mig == uuid))
            }
        };
        place.and_then(|place| u32::try_from(place).ok())
    }

    /// The whole UUID of a GPU or of a MIG device, if exactly one is meant.
    pub fn uuid(&self, device: &Device) -> Option<&str> {
        let all: Vec<&str> = match device {
            Device::Index(index) => {
                return self.gpus.get(*index as usize).map(|g| g.uuid.as_str()).filter(|u| !u.is_empty());
            }
            Device::Gpu(_) => self.gpus.iter().map(|gpu| gpu.uuid.as_str()).collect(),
            Device::Mig(_) => self.gpus.iter().flat_map(|gpu| &gpu.migs).map(String::as_str).collect(),
            Device::Other(_) => return None,
        };
        let mut meant = all.into_iter().filter(|uuid| device.begins(uuid));
        meant.next().filter(|_| meant.next().is_none())
    }
}
