//! What all front ends share: startup, reading options, messages, exit statuses, the interpreter.

pub mod argparse;
pub mod command_line;
pub mod dry_run;
pub mod error;
pub mod exit_code;
pub mod help;
pub mod interpreter;
pub mod message;
pub mod startup;
pub mod status_pipe;
