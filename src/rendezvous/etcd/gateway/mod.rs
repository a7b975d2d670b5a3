//! A blocking client of etcd's JSON gateway.

pub mod client;
pub mod codec;
mod tls;
pub mod watch;
mod watch_check;
pub mod wire;
