//! Floor 5: where processes of a job, and launchers of several nodes, meet.

pub mod agree;
#[cfg(feature = "etcd")]
pub mod etcd;
pub mod master;
pub mod tie;
pub mod torch_static;
pub mod torch_store;
