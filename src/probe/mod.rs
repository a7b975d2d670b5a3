//! Floor 5: facts of the machine.

pub mod memory;
pub mod nvml;
