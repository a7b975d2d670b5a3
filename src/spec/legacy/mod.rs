//! The options of the legacy launcher (`paddle.distributed.fleet.launch`): collective and elastic jobs.

pub mod collective;
pub mod elastic;
