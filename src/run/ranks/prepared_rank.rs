//! A rank whose process is being started: what the start needs until the process runs.

use crate::run::output::rank_streams::RankStreams;
use crate::sys::process::cgroup::CgroupDir;
use crate::sys::process::lifeline::{KillScope, Lifeline};
use crate::sys::process::spawn::{SpawnCommand, SpawnDescriptors};
use std::io;
use std::os::fd::{AsFd, OwnedFd};

/// A rank whose files are open and whose process does not run yet.
pub struct PreparedRank {
    /// Its command, which goes with `descriptors`.
    pub command: SpawnCommand,
    /// Its stdout and stderr.
    pub streams: RankStreams,
    /// The rank's end of its lifeline.
    pub lifeline: OwnedFd,
}

impl PreparedRank {
    /// The descriptors that it starts with. `cgroup`: where it starts.
    pub fn descriptors<'a>(&'a self, cgroup: Option<&'a CgroupDir>) -> SpawnDescriptors<'a> {
        let [stdout, stderr] = self.streams.descriptors();
        SpawnDescriptors {
            stdio: [None, stdout, stderr],
            keep: Vec::new(),
            cgroup: cgroup.map(|folder| folder.as_fd()),
            lifeline: Some((self.lifeline.as_fd(), KillScope::Group)),
        }
    }

    /// Gives it a new lifeline and returns the launcher's end.
    pub fn renew_lifeline(&mut self) -> io::Result<Lifeline> {
        let (lifeline, end) = Lifeline::open()?;
        self.lifeline = end;
        Ok(lifeline)
    }
}
