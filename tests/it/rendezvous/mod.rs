//! Rendezvous backends and the torch store, over real sockets.

mod cable;
#[cfg(feature = "etcd")]
mod etcd;
mod master;
mod membership;
mod static_messages;
mod torch_store;
