//! The embedded master and a node's connection to it, without a job around them.

use crate::net::listen;
use crate::net::tcp::wait;
use crate::protocol::{Coordinator, member_list};
use crate::python::errors::os_error;
use crate::rendezvous::backend::{BackendEvent, RendezvousBackend};
use crate::rendezvous::lease::NodeLease;
use crate::rendezvous::master::client::paddle_kv::{KvAddress, KvEntry, sync};
use crate::rendezvous::master::{MasterAddress, MasterBackend, MasterConfig, MasterServer, join, serve};
use crate::sys::clock;
use nix::poll::PollFlags;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use std::io::{self, ErrorKind};
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

fn time(seconds: f64) -> PyResult<Duration> {
    Duration::try_from_secs_f64(seconds).map_err(|error| PyValueError::new_err(error.to_string()))
}

fn within(time: Duration) -> impl FnMut() -> io::Result<Duration> {
    let end = clock::now() + time;
    move || Ok(end.saturating_sub(clock::now()))
}

/// A master on one address of this machine.
#[pyclass(frozen, module = "_test_hooks")]
pub struct Master {
    /// The port it listens on.
    #[pyo3(get)]
    port: u16,
    server: Mutex<Option<MasterServer>>,
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
        let config = MasterConfig { key, ..MasterConfig::new(job, time(lease)?, clock::now) };
        let decide = Box::new(Coordinator::new(clock::now()));
        let server = serve(vec![listener], config, decide).map_err(os_error)?;
        Ok(Self { port, server: Mutex::new(Some(server)) })
    }

    /// Stops the server at once. A second call does nothing.
    fn close(&self, py: Python<'_>) {
        py.detach(|| drop(self.server.lock().unwrap_or_else(PoisonError::into_inner).take()));
    }
}

/// A node of a job that sends the records it is given.
#[pyclass(frozen, module = "_test_hooks")]
pub struct MasterClient {
    backend: Mutex<MasterBackend>,
}

#[pymethods]
impl MasterClient {
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
        let config = MasterAddress {
            host,
            port,
            job,
            key,
            lease: time(lease)?,
            clock: clock::now,
            node_lease: Arc::new(NodeLease::new()?),
        };
        Ok(Self { backend: Mutex::new(join(config, id, record).map_err(os_error)?) })
    }

    /// Replaces its record.
    fn put(&self, record: &str) {
        self.backend.lock().unwrap_or_else(PoisonError::into_inner).put(record);
    }

    /// What the master sent, as soon as there is anything, within `timeout` seconds: `("state", state, members)`,
    /// `("joined", lease, None)`, `("lost", why, None)`, `("back", "", None)` or `("refused", why, None)`.
    fn heard(&self, py: Python<'_>, timeout: f64) -> PyResult<Vec<(&'static str, String, Option<String>)>> {
        let time = time(timeout)?;
        let heard = py.detach(|| {
            let mut backend = self.backend.lock().unwrap_or_else(PoisonError::into_inner);
            match wait(backend.as_fd(), PollFlags::POLLIN, &mut within(time)) {
                Err(error) if error.kind() != ErrorKind::TimedOut => Err(error),
                _ => Ok(backend.take_events()),
            }
        });
        let shown = |news| match news {
            BackendEvent::State { state, members } => {
                ("state", state, members.and_then(|list| serde_json::to_string(&member_list::read(&list)?).ok()))
            }
            BackendEvent::Lost { why } => ("lost", why, None),
            BackendEvent::Hindered { why } => ("hindered", why, None),
            BackendEvent::Joined { lease } => ("joined", lease.to_string(), None),
            BackendEvent::Back => ("back", String::new(), None),
            BackendEvent::Refused { why } | BackendEvent::Superseded { why } => ("refused", why, None),
        };
        Ok(heard.map_err(os_error)?.into_iter().map(shown).collect())
    }

    /// Leaves.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let close = || self.backend.lock().unwrap_or_else(PoisonError::into_inner).close(Duration::from_secs(10));
        py.detach(close).map_err(os_error)
    }
}

/// Waits for the nodes of a job whose master is Paddle's own. Returns all keys and payloads in the order of the nodes'
/// numbers, and the number of this node. `rank`: negative for none; `timeout`: seconds.
#[pyfunction]
#[pyo3(signature = (host, port, job, size, name, rank, payload, timeout, sort_ip=false))]
#[expect(clippy::too_many_arguments, reason = "each has its name in Python")]
pub fn sync_with_paddle_master(
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
    let place = KvAddress { host: host.to_owned(), port, clock: clock::now };
    let own = KvEntry { name: name.to_owned(), rank: usize::try_from(rank).ok(), payload: payload.to_owned() };
    let mut left = within(time(timeout)?);
    let peers = py.detach(|| sync(&place, job, size, &own, sort_ip, &mut left, &mut |_| {})).map_err(os_error)?;
    Ok((peers.all, peers.own))
}
