//! Floor 5: facts of the machine.

pub mod accelerators;
pub mod memory;
pub mod net;
pub mod nvml;
