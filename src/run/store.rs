//! Where this node's ranks find each other: torch's store, which begins anew with every attempt.

use super::logs::plain;
use crate::rendezvous::torch_store::{Limits, Server};
use std::io;
use std::net::TcpListener;
use tracing::warn;

/// A store on sockets that outlive it.
pub struct Served<'a> {
    listeners: &'a [TcpListener],
    limits: Limits,
    server: io::Result<Option<Server>>,
}

impl<'a> Served<'a> {
    /// Serves on these; if there are any.
    pub fn start(listeners: &'a [TcpListener], limits: Limits) -> io::Result<Self> {
        let server = Ok(serve(listeners, limits)?);
        Ok(Self { listeners, limits, server })
    }

    /// Whoever came before is hung up on, and what they have told each other is forgotten: by another server, if the one
    /// that there is has failed.
    pub fn renew(&mut self) {
        if let Ok(server) = &self.server {
            match server.as_ref().map_or(Ok(()), Server::renew) {
                Ok(()) => return,
                Err(error) => warn!("the store has failed, and is served anew: {}", plain(&error)),
            }
        }
        // First: who comes now is not to be let in by the one that goes.
        self.server = Ok(None);
        self.server = serve(self.listeners, self.limits).and_then(|server| {
            server.as_ref().map_or(Ok(()), Server::renew)?;
            Ok(server)
        });
    }

    /// Ranks that were started without it would wait for it for long.
    pub fn check(&self) -> Result<(), String> {
        match &self.server {
            Ok(_) => Ok(()),
            Err(error) => Err(format!("the store where ranks meet cannot be served: {}", plain(error))),
        }
    }
}

fn serve(listeners: &[TcpListener], limits: Limits) -> io::Result<Option<Server>> {
    let own = listeners.iter().map(TcpListener::try_clone).collect::<io::Result<Vec<_>>>()?;
    if own.is_empty() { Ok(None) } else { Server::start_with(own, limits, None).map(Some) }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // A test fails by panicking.
    use super::*;
    use crate::rendezvous::torch_store::client::Client;
    use crate::rendezvous::torch_store::listen;
    use std::time::Duration;

    fn client(port: u16) -> Client {
        Client::connect("127.0.0.1", port, &mut || Ok(Duration::from_secs(20))).unwrap()
    }

    #[test]
    fn a_server_that_has_failed_has_a_successor_that_knows_nothing() {
        let listeners = listen::loopback(0).unwrap();
        let port = listeners[0].local_addr().unwrap().port();
        let mut served = Served::start(&listeners, Limits::default()).unwrap();
        let mut old = client(port);
        let left = &mut || Ok(Duration::from_secs(20));
        assert_eq!(old.add(b"n", 1, left).unwrap(), 1);
        if let Ok(Some(server)) = &mut served.server {
            server.lose();
        }
        served.renew();
        assert_eq!(served.check(), Ok(()));
        assert!(old.add(b"n", 1, left).is_err());
        assert_eq!(client(port).add(b"n", 1, left).unwrap(), 1);
    }

    #[test]
    fn without_a_store_no_rank_is_started_until_there_is_one_again() {
        let listeners = listen::loopback(0).unwrap();
        let server = Err(io::Error::from_raw_os_error(libc::EMFILE));
        let mut served = Served { listeners: &listeners, limits: Limits::default(), server };
        assert!(served.check().is_err_and(|why| why.contains("Too many open files")));
        served.renew();
        assert_eq!(served.check(), Ok(()));
    }
}
