//! The options of `python -m rlaunch`, which are those of `paddle.distributed.launch`, and the request that they make.

pub mod job;
pub mod launch;
pub mod nodes;
pub mod options;
pub mod ps;
pub mod tuner;
