//! Before ranks start: checks of the machine, port leases, files and folders, the user's hook.

pub mod gloo_tmpdir;
pub mod legacy_files;
pub mod ports;
pub mod pre_hook;
pub mod preflight;
