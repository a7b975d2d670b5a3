//! Probes of the machine: devices, CPUs, memory, network addresses.

pub mod accelerators;
pub mod cpus;
pub mod intel;
pub mod memory;
pub mod net;
pub mod numa;
pub mod nvml;
pub mod stacks;
pub mod torch;
