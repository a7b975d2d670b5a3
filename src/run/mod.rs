//! The driver: runs a plan on this node. The event loop carries out what the pure supervisor decides.

pub mod control;
pub mod engine;
pub mod event_loop;
pub mod gpu_reader;
pub mod hangs;
pub mod launch;
pub mod launch_result;
pub mod launcher_process;
pub mod multi_node;
pub mod output;
pub mod preempt;
pub mod prepare;
pub mod rank_state;
pub mod ranks;
pub mod record;
pub mod sampling;
pub mod signal_inbox;
pub mod stacks;
pub mod stop_requests;
pub mod sweep;
mod tokens;
pub mod zygote;
