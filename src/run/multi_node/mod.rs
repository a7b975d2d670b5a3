//! One node of a multi-node job: membership in rounds, connectivity, peers of a static rendezvous, the torch store.

pub mod connectivity;
pub mod job_outcome;
pub mod membership;
pub mod peers;
pub mod torch_store;
