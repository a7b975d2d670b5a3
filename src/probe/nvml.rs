//! NVIDIA GPUs, from the driver's own library. Never from a framework.

use nvml_wrapper::Nvml;

/// How many GPUs the driver shows; 0 without a driver, or when the library will not say.
pub fn gpu_count() -> usize {
    Nvml::init().and_then(|nvml| nvml.device_count()).map_or(0, |n| n as usize)
}
