//! Environment variables by which each framework identifies a rank, one file a framework.
//! `variables` is the table of all of them.

mod identity;
pub mod jax;
pub mod paddle_launch;
pub mod paddle_legacy;
pub mod paddle_ps;
pub mod paddle_rpc;
pub mod paddle_spawn;
pub mod paddle_tuner;
mod read_env;
pub mod torch;
mod variables;

pub use identity::{Binding, RankIdentity};
pub use variables::{VARIABLES, Variable, document, is_declared, is_paddle_variable};
