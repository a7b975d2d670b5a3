//! The static rendezvous of torchrun: node 0 serves a store, every node registers there, and node 0 assigns the rank numbers. Keys
//! and values are those of torchrun's agents (torch 2.15, `elastic/agent/server/api.py`), so agents of both kinds can be in one job,
//! on either side.
//!
//! [`codec`] and [`node_registry`] are pure; [`nodes`], `job_end` and `messages` do the input and output.

pub mod codec;
mod job_end;
mod messages;
pub mod node_registry;
pub mod nodes;

pub use crate::rendezvous::torch_static::codec::{RankNumbers, RankNumbersError, StaticNodeInfo};
pub use crate::rendezvous::torch_static::node_registry::{NodeRegistry, NodeStage};
pub use nodes::StaticPeers;
