//! The pipe on which the launcher reports its end to `rlaunch.launch`: a line of JSON, written last. The supervisor process
//! writes it, and the launcher process if the supervisor is lost, perhaps in the middle of its line or after it. So each line
//! also begins with a newline, and the first whole line counts.

use crate::cli::common::error::CliError;
use crate::cli::common::{exit_code, message};
use crate::run::record::journal::VERSION;
use crate::sys::io::fd;
use serde_json::{Value, json};
use std::fs::File;
use std::io::Write;
use std::os::fd::RawFd;

/// The write end; none for a launcher that was started from a shell. Its reader raises errors and failure reports as
/// exceptions, so they are not printed too.
#[derive(Debug)]
pub struct StatusPipe {
    writer: Option<File>,
    is_read: bool,
}

impl StatusPipe {
    /// Takes over this descriptor, none if it is negative. It closes at exec, so no rank has it.
    pub fn take(fd: RawFd) -> Self {
        let writer = (fd >= 0).then(|| fd::take_inherited(fd).ok()).flatten().map(File::from);
        let is_read = writer.is_some();
        Self { writer, is_read }
    }

    /// Whether a program reads it.
    pub fn is_read(&self) -> bool {
        self.is_read
    }

    /// Writes what is in `result.json`. Only this process's first write counts.
    pub fn write(&mut self, result: &Value) {
        if let Some(mut file) = self.writer.take() {
            // The reader may be gone.
            let _ = file.write_all(format!("\n{result}\n").as_bytes());
        }
    }

    /// Writes an error in place of a result.
    pub fn write_error(&mut self, error: &str, exit_status: i32) {
        self.write(&json!({"version": VERSION, "error": error, "exit_status": exit_status}));
    }

    /// Prints the error that ends the launcher, unless its reader does, and writes it; returns the exit status.
    pub fn fail(&mut self, error: &CliError) -> i32 {
        let (text, status) = (error.explained(), exit_code::of_error(error));
        if !self.is_read {
            message::print_error(&text);
        }
        self.write_error(&text, status);
        status
    }
}
