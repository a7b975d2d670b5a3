//! The embedded master: a rendezvous backend for a few machines without etcd. One node serves, and all nodes are its clients.
//!
//! It speaks two protocols on one port: its own, a link of JSON lines behind an HTTP upgrade ([`frame`]), and that of Paddle's
//! key-value master, so that nodes that Paddle's own launcher starts can take part. With a key ([`auth`]) it accepts only links.
//!
//! [`frame`], [`http`] and [`auth`] (except for its random numbers) are pure.

pub mod auth;
pub mod client;
pub mod frame;
pub mod http;
pub mod server;

pub use client::{MasterAddress, MasterBackend, ProbeResult, join, probe};
pub use server::{MasterConfig, MasterServer, serve};
