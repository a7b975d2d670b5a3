//! The store that torch's processes meet in: torch's TCPStore, as its clients see it, and a client of it.
//!
//! [`frame`] and [`state`] are pure; [`server`] does the input and output, in one thread. Nobody who connects
//! has to say who he is, so everything that comes is taken for hostile: what may be held is counted
//! ([`ledger`]), and whoever breaks the rules is hung up on.

pub mod client;
mod connection;
pub mod frame;
pub mod ledger;
pub mod listen;
pub mod server;
pub mod state;

pub use client::Client;
pub use server::{Limits, News, Paused, Server, Watch};
pub use state::ClientId;
