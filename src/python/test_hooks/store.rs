//! The torch store's server, without a job around it.

use crate::net::listen;
use crate::probe::memory;
use crate::python::errors::os_error;
use crate::rendezvous::torch_store::{StoreLimits, StoreServer};
use crate::sys::process::limits;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use std::net::IpAddr;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A server on a free port: of loopback, or of one address of this machine.
#[pyclass(frozen, module = "_test_hooks")]
pub struct TorchStore {
    /// The port it listens on.
    #[pyo3(get)]
    port: u16,
    server: Mutex<Option<StoreServer>>,
}

impl TorchStore {
    fn lock(&self) -> MutexGuard<'_, Option<StoreServer>> {
        self.server.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[pymethods]
impl TorchStore {
    /// `port`: 0 for a free one; `limit`: maximum of stored bytes; `connections`: maximum of clients; `None`: the default.
    #[new]
    #[pyo3(signature = (host=None, port=0, limit=None, connections=None))]
    fn new(host: Option<&str>, port: u16, limit: Option<usize>, connections: Option<usize>) -> PyResult<Self> {
        let listeners = match host {
            None => listen::loopback(port),
            Some(host) => {
                let address: IpAddr = host.parse().map_err(|_| PyValueError::new_err("the host is no address"))?;
                listen::on((address, port).into()).map(|listener| vec![listener])
            }
        }
        .map_err(os_error)?;
        let port = listeners[0].local_addr().map_err(os_error)?.port();
        let mut most = StoreLimits::of(memory::total(Path::new("/")), limits::open_files().0 / 4 * 3);
        most.bytes = limit.unwrap_or(most.bytes);
        most.connections = connections.unwrap_or(most.connections);
        let server = StoreServer::start_with(listeners, most, None).map_err(os_error)?;
        Ok(Self { port, server: Mutex::new(Some(server)) })
    }

    /// Closes all connections and deletes all keys.
    fn renew(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| self.lock().as_ref().map_or(Ok(()), StoreServer::renew)).map_err(os_error)
    }

    /// Stops the server. A second call does nothing.
    fn close(&self, py: Python<'_>) {
        py.detach(|| drop(self.lock().take()));
    }
}
