//! Output of ranks: log files, log rotation, console, routing.

pub mod console;
pub mod gpu_log;
pub mod log_copier;
pub mod log_files;
pub mod log_rotation;
pub mod node_folder;
pub mod output_routing;
pub mod pending_text;
pub mod rank_streams;
pub mod rotated_log;
pub mod run_folder;
pub mod uncaught_file;
