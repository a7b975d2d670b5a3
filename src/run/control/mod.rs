//! The control socket of a running launcher: what it does, its stacks, its stop.

mod gathering;
mod grace_limit;
pub mod live_status;
mod looks;
mod memory;
pub mod message;
pub mod node_answer;
pub mod rank_facts;
pub mod runtime_folder;
pub mod server;
mod service;
