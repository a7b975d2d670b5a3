//! The embedded master and a node's tie to it, without a job around them.

use super::errors::os_error;
use crate::rendezvous::agree::Coordinator;
use crate::rendezvous::master::paddle_kv::{Own, Place, sync};
use crate::rendezvous::master::{Config, Join, MasterTie, Server, join, serve};
use crate::rendezvous::tie::{News, Tie};
use crate::rendezvous::torch_store::client::wait;
use crate::rendezvous::torch_store::listen;
use crate::sys::clock;
use nix::poll::PollFlags;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use std::io::{self, ErrorKind};
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

fn time(seconds: f64) -> PyResult<Duration> {
    Duration::try_from_secs_f64(seconds).map_err(|error| PyValueError::new_err(error.to_string()))
}

fn within(time: Duration) -> impl FnMut() -> io::Result<Duration> {
    let end = clock::now() + time;
    move || Ok(end.saturating_sub(clock::now()))
}

/// A master on one address of this machine.
#[pyclass(frozen, module = "rlaunch._lib")]
pub struct Master {
    /// The port it listens on.
    #[pyo3(get)]
    port: u16,
    server: Mutex<Option<Server>>,
}

#[pymethods]
impl Master {
    /// `port`: 0 for a free one; `lease`: seconds.
    #[new]
    #[pyo3(signature = (job="default", host="127.0.0.1", port=0, key=None, lease=10.0))]
    fn new(job: &str, host: &str, port: u16, key: Option<String>, lease: f64) -> PyResult<Self> {
        let address: IpAddr = host.parse().map_err(|_| PyValueError::new_err("the host is no address"))?;
        let listener = listen::on((address, port).into()).map_err(os_error)?;
        let port = listener.local_addr().map_err(os_error)?.port();
        let config = Config { key, ..Config::new(job, time(lease)?, clock::now) };
        let decide = Box::new(Coordinator::new(clock::now()));
        let server = serve(vec![listener], config, decide).map_err(os_error)?;
        Ok(Self { port, server: Mutex::new(Some(server)) })
    }

    /// Ends it at once. Doing it twice does nothing more.
    fn close(&self, py: Python<'_>) {
        py.detach(|| drop(self.server.lock().unwrap_or_else(PoisonError::into_inner).take()));
    }
}

/// A node of a job, which says what it is told to say.
#[pyclass(frozen, module = "rlaunch._lib", name = "MasterTie")]
pub struct PyMasterTie {
    tie: Mutex<MasterTie>,
}

#[pymethods]
impl PyMasterTie {
    #[new]
    #[pyo3(signature = (host, port, id, record, job="default", key=None, lease=10.0))]
    fn new(
        host: &str,
        port: u16,
        id: &str,
        record: &str,
        job: &str,
        key: Option<String>,
        lease: f64,
    ) -> PyResult<Self> {
        let (host, job) = (host.to_owned(), job.to_owned());
        let config = Join { host, port, job, key, lease: time(lease)?, clock: clock::now };
        Ok(Self { tie: Mutex::new(join(config, id, record).map_err(os_error)?) })
    }

    /// Replaces its record.
    fn put(&self, record: &str) {
        self.tie.lock().unwrap_or_else(PoisonError::into_inner).put(record);
    }

    /// What it has heard, for so many seconds at most, as soon as there is anything: `("state", state, members)`,
    /// `("lost", why, None)`, `("back", "", None)` or `("refused", why, None)`.
    fn heard(&self, py: Python<'_>, timeout: f64) -> PyResult<Vec<(&'static str, String, Option<String>)>> {
        let time = time(timeout)?;
        let heard = py.detach(|| {
            let mut tie = self.tie.lock().unwrap_or_else(PoisonError::into_inner);
            match wait(tie.as_fd(), PollFlags::POLLIN, &mut within(time)) {
                Err(error) if error.kind() != ErrorKind::TimedOut => Err(error),
                _ => Ok(tie.heard()),
            }
        });
        let shown = |news| match news {
            News::State { state, members } => ("state", state, members),
            News::Lost { why } => ("lost", why, None),
            News::Back => ("back", String::new(), None),
            News::Refused { why } => ("refused", why, None),
        };
        Ok(heard.map_err(os_error)?.into_iter().map(shown).collect())
    }

    /// Leaves.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let close = || self.tie.lock().unwrap_or_else(PoisonError::into_inner).close(Duration::from_secs(10));
        py.detach(close).map_err(os_error)
    }
}

/// Meets the nodes of a job whose master is Paddle's own: all keys and payloads in the order of their numbers, and which
/// is this one. `rank`: negative for none; `timeout`: seconds.
#[pyfunction]
#[pyo3(signature = (host, port, job, size, name, rank, payload, timeout, sort_ip=false))]
#[expect(clippy::too_many_arguments, reason = "each has its name in Python")]
pub fn meet_by_paddle(
    py: Python<'_>,
    host: &str,
    port: u16,
    job: &str,
    size: usize,
    name: &str,
    rank: i64,
    payload: &str,
    timeout: f64,
    sort_ip: bool,
) -> PyResult<(Vec<(String, String)>, usize)> {
    let place = Place { host: host.to_owned(), port, key: None, clock: clock::now };
    let own = Own { name: name.to_owned(), rank: usize::try_from(rank).ok(), payload: payload.to_owned() };
    let mut left = within(time(timeout)?);
    let peers = py.detach(|| sync(&place, job, size, &own, sort_ip, &mut left, &mut |_| {})).map_err(os_error)?;
    Ok((peers.all, peers.own))
}
