//! `--sample` and `--metrics_file`: a thread that measures what the ranks use, apart from the event loop.

mod metrics_text;
pub mod queue;
pub mod sampler;
