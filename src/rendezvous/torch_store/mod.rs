//! The server of torch's TCPStore, as torch's clients from 2.1 on use it, and a client of it.
//!
//! [`frame`], [`state`] and [`stored_value`] are pure. The connections and their limits are those of [`crate::net`].

pub mod client;
pub mod frame;
mod limits;
pub mod server;
mod service;
mod sockets;
pub mod state;
pub mod stored_value;
mod watch;

pub use client::StoreClient;
pub use limits::StoreLimits;
pub use server::{PausedServer, StoreServer};
pub use sockets::{StorePeers, StoreSockets};
pub use watch::{StoreEvent, StoreWatch};
