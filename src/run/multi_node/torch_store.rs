//! The torch TCPStore that the launcher serves for its ranks, renewed in every attempt.

use crate::rendezvous::torch_store::{StoreLimits, StoreServer, StoreSockets};
use crate::run::output::log_files::plain;
use std::io;
use std::sync::Arc;
use thiserror::Error;
use tracing::warn;

/// Why the store is not served.
#[derive(Clone, Debug, Error)]
#[error("cannot serve the TCPStore of this job: {}", plain(.0))]
pub struct StoreNotServed(#[source] Arc<io::Error>);

/// A store on listening sockets that outlive it.
pub struct ServedTorchStore<'a> {
    sockets: &'a StoreSockets,
    limits: StoreLimits,
    server: Result<Option<StoreServer>, StoreNotServed>,
}

impl<'a> ServedTorchStore<'a> {
    /// Serves on these sockets. Without any, there is no store.
    pub fn start(sockets: &'a StoreSockets, limits: StoreLimits) -> io::Result<Self> {
        let server = Ok(serve(sockets, limits)?);
        Ok(Self { sockets, limits, server })
    }

    /// Closes all connections and forgets all keys. Replaces the server if it has failed.
    pub fn renew(&mut self) {
        if let Ok(server) = &self.server {
            match server.as_ref().map_or(Ok(()), StoreServer::renew) {
                Ok(()) => return,
                Err(error) => warn!("the TCPStore of this job failed and is restarted: {}", plain(&error)),
            }
        }
        // Dropped first, so that the old server accepts no new client.
        self.server = Ok(None);
        let server = serve(self.sockets, self.limits).and_then(|server| {
            server.as_ref().map_or(Ok(()), StoreServer::renew)?;
            Ok(server)
        });
        self.server = server.map_err(|error| StoreNotServed(Arc::new(error)));
    }

    /// Fails if there should be a store and there is none.
    pub fn check(&self) -> Result<(), StoreNotServed> {
        self.server.as_ref().map(drop).map_err(StoreNotServed::clone)
    }
}

fn serve(sockets: &StoreSockets, limits: StoreLimits) -> io::Result<Option<StoreServer>> {
    if sockets.listeners.is_empty() {
        return Ok(None);
    }
    StoreServer::start_with(sockets.try_clone()?, limits, None).map(Some)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // A test fails by panicking.
    use super::*;
    use crate::net::listen;
    use crate::rendezvous::torch_store::client::StoreClient;
    use std::time::Duration;

    fn client(port: u16) -> StoreClient {
        StoreClient::connect("127.0.0.1", port, &mut || Ok(Duration::from_secs(20))).unwrap()
    }

    #[test]
    fn a_failed_server_is_replaced_by_an_empty_one() {
        let sockets = StoreSockets::from(listen::loopback(0).unwrap());
        let port = sockets.listeners[0].local_addr().unwrap().port();
        let mut served = ServedTorchStore::start(&sockets, StoreLimits::default()).unwrap();
        let mut old = client(port);
        let left = &mut || Ok(Duration::from_secs(20));
        assert_eq!(old.add(b"n", 1, left).unwrap(), 1);
        if let Ok(Some(server)) = &mut served.server {
            server.lose_thread();
        }
        served.renew();
        assert!(served.check().is_ok());
        assert!(old.add(b"n", 1, left).is_err());
        assert_eq!(client(port).add(b"n", 1, left).unwrap(), 1);
    }

    #[test]
    fn a_store_that_is_not_served_is_an_error_until_it_is_renewed() {
        let sockets = StoreSockets::from(listen::loopback(0).unwrap());
        let server = Err(StoreNotServed(Arc::new(io::Error::from_raw_os_error(libc::EMFILE))));
        let mut served = ServedTorchStore { sockets: &sockets, limits: StoreLimits::default(), server };
        assert!(served.check().is_err_and(|error| error.to_string().contains("Too many open files")));
        served.renew();
        assert!(served.check().is_ok());
    }
}
