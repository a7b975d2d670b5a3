//! The static rendezvous of torchrun: node 0 serves a store, every node says there who it is, node 0 gives out the
//! numbers. Keys and values are those of torchrun's agents (torch 2.15, `elastic/agent/server/api.py`), so agents of
//! both kinds can be in one job, at either side.
//!
//! [`words`] and [`roll`] are pure; [`nodes`] does the input and output.

pub mod nodes;
pub mod roll;
pub mod words;

pub use nodes::Nodes;
pub use roll::{Roll, Stands};
pub use words::{Info, Numbers};
