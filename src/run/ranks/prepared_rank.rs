//! A rank whose process is being started: what the start needs until the process runs.

use crate::run::output::log_rotation::RotatedLog;
use crate::run::output::rank_streams::RankStreams;
use crate::sys::process::lifeline::{KillScope, Lifeline};
use crate::sys::process::spawn::SpawnCommand;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;

/// A rank whose files are open and whose process does not run yet.
pub struct PreparedRank {
    /// Its command. The descriptors in it are those of the other fields.
    pub command: SpawnCommand,
    /// Its stdout and stderr.
    pub streams: RankStreams,
    /// Its log, if it is rotated.
    pub rotated: Option<Arc<RotatedLog>>,
    /// The rank's end of its lifeline.
    pub lifeline: OwnedFd,
}

impl PreparedRank {
    /// Gives it a new lifeline and returns the launcher's end.
    pub fn renew_lifeline(&mut self) -> io::Result<Lifeline> {
        let (lifeline, end) = Lifeline::open()?;
        self.command.lifeline = Some((end.as_raw_fd(), KillScope::Group));
        self.lifeline = end;
        Ok(lifeline)
    }
}
