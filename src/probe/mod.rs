//! Probes of the machine: devices, CPUs, memory, disks, network addresses, core files.

pub mod accelerators;
pub mod core_dump;
pub mod cpus;
pub mod disk;
pub mod intel;
pub mod limits;
pub mod memory;
pub mod net;
pub mod numa;
pub mod nvml;
pub mod stack_answers;
pub mod stacks;
pub mod torch;
