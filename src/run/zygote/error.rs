//! Errors of the preload server.

use crate::model::Exit;
use crate::model::exit::signal_label;
use crate::run::output::log_files::plain;
use crate::sys::process::spawn::SpawnStepError;
use nix::errno::Errno;
use std::ffi::NulError;
use std::fmt;
use std::io;
use std::sync::Arc;
use thiserror::Error;

/// Why the preload server could not be started.
#[derive(Debug, Error)]
pub enum PreloadStartError {
    /// Its socket or its lifeline could not be opened.
    #[error("{}", plain(.0))]
    Descriptor(#[from] io::Error),
    /// An argument or a variable has a NUL byte.
    #[error(transparent)]
    Nul(#[from] NulError),
    /// The process could not be started.
    #[error(transparent)]
    Spawn(#[from] SpawnStepError),
}

/// Why there is no preload server.
#[derive(Debug, Error)]
pub enum PreloadFailure {
    /// It could not be started.
    #[error("the preload server cannot be started: {0}")]
    NotStarted(#[from] PreloadStartError),
    /// It has not imported its modules yet.
    #[error("the preload server is not ready yet")]
    NotReady,
    /// An import raised an exception.
    #[error("{why}")]
    ImportRaised {
        /// The import and the exception.
        why: String,
        /// Its traceback; empty if there is no such module.
        traceback: String,
    },
    /// An import did something that makes a fork unsafe.
    #[error("{0}")]
    UnsafeToFork(String),
    /// An import ended the process.
    #[error("importing {modules} ended the process (pid {pid}) with {exit}")]
    EndedByImport {
        /// All modules that were to be imported.
        modules: String,
        /// Its process id.
        pid: i32,
        /// How it ended.
        exit: Exit,
    },
    /// Its first packet is not what it should be.
    #[error("the preload server sent an invalid reply: {0}")]
    InvalidReply(#[source] serde_json::Error),
    /// It ended after its imports.
    #[error("the preload server (pid {pid}) {}", end_of(*.exit))]
    Ended {
        /// Its process id.
        pid: i32,
        /// How it ended.
        exit: Exit,
    },
    /// It does not answer a request.
    #[error("the preload server (pid {pid}) does not answer")]
    NoAnswer {
        /// Its process id.
        pid: i32,
    },
    /// The connection to it failed.
    #[error("the preload server (pid {pid}): {}", plain(.source))]
    Connection {
        /// Its process id.
        pid: i32,
        /// The error.
        source: io::Error,
    },
}

fn end_of(exit: Exit) -> String {
    match exit {
        Exit::Signal(signal) => format!("was killed by {}", signal_label(signal)),
        _ => format!("ended with {exit}"),
    }
}

impl PreloadFailure {
    fn traceback(&self) -> Option<&str> {
        match self {
            PreloadFailure::ImportRaised { traceback, .. } => {
                Some(traceback.trim_end()).filter(|text| !text.is_empty())
            }
            _ => None,
        }
    }

    /// What to do about it. `modules`: the requested modules, separated by commas.
    fn advice(&self, modules: &str) -> String {
        match self {
            // The server leaves the traceback out if a requested module does not exist.
            PreloadFailure::ImportRaised { traceback, .. } if traceback.is_empty() => {
                format!("check the names of --preload={modules}, and PYTHONPATH")
            }
            _ => format!("with --preload={modules},auto every rank imports for itself then"),
        }
    }
}

/// Why the preload server could not fork a rank.
#[derive(Debug, Error)]
pub enum ForkedStartError {
    /// There is no preload server, and ranks may not be started without one.
    #[error(
        "{failure}; {}{}{}",
        failure.advice(modules),
        if failure.traceback().is_some() { "\n" } else { "" },
        failure.traceback().unwrap_or_default()
    )]
    Unavailable {
        /// Why.
        #[source]
        failure: Arc<PreloadFailure>,
        /// The modules, separated by commas.
        modules: String,
    },
    /// There is none, so this rank and all later ones import for themselves (`auto`).
    #[error("{0}")]
    FallBack(#[source] Arc<PreloadFailure>),
    /// A step of the fork failed.
    #[error(transparent)]
    Fork(#[from] ForkError),
}

/// The step of a fork that failed.
#[derive(Debug)]
pub struct ForkError {
    pub(super) step: String,
    pub(super) errno: i32,
}

impl std::error::Error for ForkError {}

impl fmt::Display for ForkError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let errno = Errno::from_raw(self.errno);
        match self.step.as_str() {
            "fork" => write!(f, "fork: {} ({errno:?})", errno.desc()),
            // The server's text already describes the errno.
            step => write!(f, "{step} ({errno:?})"),
        }
    }
}
