//! What a job leaves behind beside its results: rotated logs, samples, metrics.

pub mod log_rotation;
pub mod sampling;
