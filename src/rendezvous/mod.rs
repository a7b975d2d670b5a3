//! Rendezvous: how the nodes of a job, and torch's processes, find each other.

pub mod backend;
#[cfg(feature = "etcd")]
pub mod etcd;
pub mod lease;
pub mod master;
pub mod questions;
pub mod torch_static;
pub mod torch_store;
