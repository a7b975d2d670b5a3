//! Devices, CPUs and threads of each rank.

pub mod affinity;
pub mod assign;
pub mod machine;
pub mod nproc;
pub mod threads;
pub mod visible_devices;
