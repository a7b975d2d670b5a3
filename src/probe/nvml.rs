//! NVIDIA GPUs, from the driver's own library. Never from a framework.

use crate::plan::machine::Gpu;
use nvml_wrapper::{Device, Nvml};

/// How many GPUs the driver shows; 0 without a driver, or when the library will not say.
pub fn gpu_count() -> usize {
    Nvml::init().and_then(|nvml| nvml.device_count()).map_or(0, |n| n as usize)
}

/// The GPUs that the driver shows, with their MIG devices; none without a driver. What an older library cannot
/// say is left empty.
pub fn gpus() -> Vec<Gpu> {
    let Ok(nvml) = Nvml::init() else { return Vec::new() };
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
