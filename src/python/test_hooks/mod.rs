//! `_test_hooks`: a second native module in the same file, which only the tests of rlaunch use. The wheel lacks it.

mod affinity;
mod fork_request;
mod master;
mod parse_run;
mod store;

use pyo3::prelude::*;

/// Servers, parsers and probes without a job around them.
#[pymodule(name = "_test_hooks", gil_used = true)]
mod test_hooks {
    #[pymodule_export]
    use super::affinity::{bound_cpus, torch_devices};
    #[pymodule_export]
    use super::fork_request::encode_fork_request;
    #[pymodule_export]
    use super::master::{Master, MasterClient, sync_with_paddle_master};
    #[pymodule_export]
    use super::parse_run::parse_run;
    #[pymodule_export]
    use super::store::TorchStore;
}
