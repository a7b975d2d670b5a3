//! The request of `rlaunch.spawn`: options, nodes, PaddleCloud's variables.

pub mod endpoints;
pub mod nodes;
pub mod options;
pub mod paddlecloud;
