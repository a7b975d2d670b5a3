//! The server of the embedded master.

mod config;
mod connection;
mod kv;
mod links;
mod master_server;
mod service;

pub use config::MasterConfig;
pub use master_server::{MasterServer, serve};
