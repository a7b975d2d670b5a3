//! Why a rank could not be started.

use crate::model::ProcessLabel;
use crate::run::multi_node::torch_store::StoreNotServed;
use crate::run::output::log_files::plain;
use crate::run::zygote::ForkedStartError;
use nix::errno::Errno;
use std::ffi::NulError;
use std::io;
use std::path::PathBuf;
use thiserror::Error;

/// Why a rank could not be started.
#[derive(Debug, Error)]
pub enum RankStartError {
    /// A step of the start failed.
    #[error("{rank} ({}): {step}: {}{reason}", .program.display(), describe(.source))]
    Step {
        /// The rank.
        rank: ProcessLabel,
        /// Its program.
        program: PathBuf,
        /// A system call, a file or an option.
        step: String,
        /// The error of the system.
        source: io::Error,
        /// Why the system refused it, if that is known (`refusal::reason`).
        reason: String,
    },
    /// An argument or a variable has a NUL byte.
    #[error("{rank} ({}): {source}", .program.display())]
    Nul {
        /// The rank.
        rank: ProcessLabel,
        /// Its program.
        program: PathBuf,
        /// Where the byte is.
        source: NulError,
    },
    /// The torch TCPStore is not served; ranks would wait for it for minutes.
    #[error("{rank} ({}): {source}", .program.display())]
    Store {
        /// The rank.
        rank: ProcessLabel,
        /// Its program.
        program: PathBuf,
        /// Why.
        source: StoreNotServed,
    },
    /// The preload server did not fork it.
    #[error("{rank} from the preload server: {source}")]
    Forked {
        /// The rank.
        rank: ProcessLabel,
        /// Why.
        source: ForkedStartError,
    },
}

fn describe(error: &io::Error) -> String {
    let name = error.raw_os_error().map_or(String::new(), |errno| format!(" ({:?})", Errno::from_raw(errno)));
    format!("{}{name}", plain(error))
}
