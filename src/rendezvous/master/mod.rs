//! The embedded master: for a few machines without etcd, one node serves and all are tied to it.
//!
//! On one port it speaks two languages: its own, a link of JSON lines behind an upgraded request ([`frame`]), and that of
//! Paddle's key-value master ([`kv`]), so that a job may have nodes that Paddle's own launcher starts. Nobody who connects
//! has to say who he is unless there is a key ([`seal`]); what comes is taken for hostile, and what may be held is counted.
//!
//! [`frame`], [`http`], [`kv`] and all of [`seal`] but its random numbers are pure. [`server`] is one thread over one
//! epoll set; [`client`] is a node's tie, also one thread; [`paddle_kv`] is the other direction, a node of a job whose
//! master is Paddle's.

pub mod client;
mod connection;
mod desk;
mod dial;
pub mod frame;
pub mod http;
mod hub;
pub mod kv;
pub mod paddle_kv;
pub mod probe;
pub mod seal;
pub mod server;

pub use client::{Join, MasterTie, join};
pub use probe::{Found, probe};
pub use server::{Config, Server, serve};

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Monotonic time, from the one clock of the program.
pub type Clock = fn() -> Duration;

/// Bytes that have come and gone.
#[derive(Clone, Debug, Default)]
pub struct Traffic(Arc<[AtomicU64; 2]>);

impl Traffic {
    fn came(&self, bytes: usize) {
        self.0[0].fetch_add(bytes as u64, Relaxed);
    }

    fn went(&self, bytes: usize) {
        self.0[1].fetch_add(bytes as u64, Relaxed);
    }

    /// Read and written so far.
    pub fn total(&self) -> (u64, u64) {
        (self.0[0].load(Relaxed), self.0[1].load(Relaxed))
    }
}
