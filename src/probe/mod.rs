//! Floor 5: facts of the machine.

pub mod accelerators;
pub mod cpus;
pub mod intel;
pub mod memory;
pub mod net;
pub mod numa;
pub mod nvml;
pub mod torch;
