//! A folder for the ranks of one job, which goes with it.

use super::logs;
use crate::spec::SpecError;
use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;

/// The folder. Dropping it removes it with all that is in it, as often as there are processes that do so.
#[derive(Debug)]
pub struct Scratch(PathBuf);

impl Scratch {
    /// Makes it, for this user alone. Its name must be new.
    pub fn make(path: PathBuf) -> Result<Self, SpecError> {
        match DirBuilder::new().mode(0o700).create(&path) {
            Ok(()) => Ok(Self(path)),
            Err(error) => {
                let why = format!("cannot be made: {}", logs::plain(&error));
                let hint = "set TMPDIR to a folder that you may write to";
                Err(SpecError::new("the job's own folder", path.display().to_string(), why, hint))
            }
        }
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // The other process of the launcher may have been faster.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
