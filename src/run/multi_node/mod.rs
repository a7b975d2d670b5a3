//! One node of a multi-node job: membership in rounds, lease, peers of a static rendezvous, the torch store.

pub mod job_outcome;
pub mod lease_guard;
pub mod membership;
pub mod peers;
pub mod torch_store;
