//! The lease of a rank's node, for Python.

use super::errors::os_error;
use crate::rendezvous::lease::RankLease;
use pyo3::prelude::*;
use std::path::PathBuf;

/// The lease that a rank of one round runs under.
#[pyclass(frozen, name = "RankLease", module = "rlaunch._lib")]
pub struct PyRankLease(RankLease);

#[pymethods]
impl PyRankLease {
    /// Opens the lease by the values of RLAUNCH_ROUND_LEASE and RLAUNCH_ROUND. OSError: there is no such lease.
    #[new]
    fn new(path: PathBuf, round: u64) -> PyResult<Self> {
        RankLease::open(&path, round).map(Self).map_err(os_error)
    }

    /// Whether the round is still its node's, and the lease has not lapsed.
    fn is_valid(&self) -> bool {
        self.0.is_valid()
    }
}
