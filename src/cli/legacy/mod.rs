//! The legacy front end (`--legacy`): the drop-in for `paddle.distributed.fleet.launch`.

pub mod prepare;
pub mod rendezvous;
