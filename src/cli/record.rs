//! How the launcher tells the program that started it (`rlaunch.launch`) how it ended: one line of JSON, the
//! last thing it writes anywhere.

use crate::run::journal::VERSION;
use crate::sys::fd;
use serde_json::{Value, json};
use std::fs::File;
use std::io::Write;
use std::os::fd::RawFd;

/// Where to; nowhere for a launcher that people started.
#[derive(Debug)]
pub struct Record(Option<File>);

impl Record {
    /// Takes over this descriptor, none if it is negative. It closes at exec, so no rank has it.
    pub fn take(fd: RawFd) -> Self {
        Self((fd >= 0).then(|| fd::take(fd).ok()).flatten().map(File::from))
    }

    /// Whether somebody reads it.
    pub fn is_read(&self) -> bool {
        self.0.is_some()
    }

    /// Writes what is in `result.json`, once.
    pub fn write(&mut self, result: &Value) {
        if let Some(mut file) = self.0.take() {
            // Whoever would read it may have gone.
            let _ = file.write_all(format!("{result}\n").as_bytes());
        }
    }

    /// Writes that there is no result, and why.
    pub fn write_error(&mut self, why: &str, exit_status: i32) {
        self.write(&json!({"version": VERSION, "error": why, "exit_status": exit_status}));
    }
}
