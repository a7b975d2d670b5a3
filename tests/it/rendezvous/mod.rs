//! Rendezvous backends and the torch store, over real sockets.

#[cfg(feature = "etcd")]
mod etcd;
mod master;
mod membership;
mod torch_store;
