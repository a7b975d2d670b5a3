//! The place of a rank in the memory of `rlaunch.should_stop`, for Python.

use super::errors::os_error;
use crate::run::preempt::stop_words::{RankStopSlot, StopAnswer};
use pyo3::prelude::*;

/// What a rank shares with its launcher about the step at which all ranks stop.
#[pyclass(frozen, name = "RankStop", module = "rlaunch._lib")]
pub struct PyRankStop(RankStopSlot);

#[pymethods]
impl PyRankStop {
    /// Opens the place by the value of RLAUNCH_STOP_SLOT. OSError: there is no such place.
    #[new]
    fn new(address: &str) -> PyResult<Self> {
        RankStopSlot::open(address).map(Self).map_err(os_error)
    }

    /// Has this process ignore SIGTERM until the launcher sends it, unless it has a handler. OSError: there is no such place.
    #[staticmethod]
    fn defer_sigterm(address: &str) -> PyResult<()> {
        RankStopSlot::defer_sigterm(address).map_err(os_error)
    }

    /// Whether the process with this id speaks for the rank (`RankStopSlot::is_of_rank`).
    fn is_of_rank(&self, py: Python<'_>, pid: i32) -> bool {
        py.detach(|| self.0.is_of_rank(pid))
    }

    /// Reports a step; whether to stop there. None: ask again soon.
    fn ask(&self, step: u64) -> Option<bool> {
        match self.0.ask(step) {
            StopAnswer::GoOn => Some(false),
            StopAnswer::Stop => Some(true),
            StopAnswer::Wait => None,
        }
    }

    /// The seconds until the ranks are ended by signals, if they are to stop.
    fn time_left(&self) -> Option<f64> {
        self.0.time_left().map(|left| left.as_secs_f64())
    }
}
