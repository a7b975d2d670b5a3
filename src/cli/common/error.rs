//! `CliError`: why the launcher ends without running the job, or gives it up.

use crate::cli::common::command_line::CommandLineError;
use crate::cli::elastic::error::RendezvousError;
use crate::probe::limits::refusal;
use crate::run::output::log_files::plain;
use crate::spec::SpecError;
use std::io;

/// An error that ends the launcher. Its text is one line; `exit_code::of_error` has its exit status.
#[derive(Debug, thiserror::Error)]
pub enum CliError {
    /// The command line cannot be parsed.
    #[error(transparent)]
    CommandLine(#[from] CommandLineError),
    /// A variable that stands for an option is not text.
    #[error("{name}: its value is not UTF-8; unset it, or set another")]
    VariableNotUtf8 {
        /// The variable.
        name: String,
    },
    /// An option, a variable or a configuration file has a value that cannot be used.
    #[error(transparent)]
    Usage(SpecError),
    /// The machine is not as the job needs it.
    #[error(transparent)]
    Preflight(SpecError),
    /// A system call failed before the job could start.
    #[error("{what}: {}", plain(.source))]
    System {
        /// What failed, with the option and its value where there is one.
        what: String,
        /// Why.
        source: io::Error,
    },
    /// The nodes of the job did not find each other.
    #[error(transparent)]
    Rendezvous(#[from] RendezvousError),
    /// The process that supervises the ranks could not be started.
    #[error("cannot start the supervisor process: {}", plain(.0))]
    SupervisorNotStarted(#[source] io::Error),
    /// Signal handlers could not be installed.
    #[error("cannot install signal handlers: {0}")]
    SignalHandlers(#[source] io::Error),
    /// The launcher process could not watch the supervisor process.
    #[error("the launcher process cannot watch its supervisor: {0}")]
    SupervisorWatch(#[source] io::Error),
    /// The supervisor's event loop failed.
    #[error("the supervisor's event loop failed: {0}")]
    EventLoop(#[source] io::Error),
    /// Another error, with the exit status that torchrun has for it (`--exit-code-compat`).
    #[error(transparent)]
    AsTorchrun(Box<CliError>),
}

impl CliError {
    /// Its text, with the system call that a sandbox denies, or the limit of processes that was reached, if that may be why.
    pub fn explained(&self) -> String {
        let reason = match self {
            CliError::CommandLine(_) | CliError::VariableNotUtf8 { .. } | CliError::Usage(_) => String::new(),
            CliError::Preflight(_) | CliError::Rendezvous(_) => refusal::of_sandbox(),
            CliError::System { source, .. }
            | CliError::SupervisorNotStarted(source)
            | CliError::SignalHandlers(source)
            | CliError::SupervisorWatch(source)
            | CliError::EventLoop(source) => refusal::reason(source),
            CliError::AsTorchrun(error) => return error.explained(),
        };
        format!("{self}{reason}")
    }
}

/// For `map_err` on an `io::Error`: says what failed.
pub fn system(what: impl Into<String>) -> impl FnOnce(io::Error) -> CliError {
    let what = what.into();
    |source| CliError::System { what, source }
}
