//! The folder that processes of a job with parameter servers are told of (PADDLE_GLOO_FS_PATH): there while the job
//! runs, and gone after it.

use super::logs;
use crate::spec::SpecError;
use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

/// Where the folder of the job with this key will be.
pub fn path(key: &str) -> Result<String, SpecError> {
    let path = std::env::temp_dir().join(format!("rlaunch-{key}"));
    let text = path.to_str().map(str::to_owned);
    text.ok_or_else(|| SpecError::new("TMPDIR", path.to_string_lossy(), "is not UTF-8", "choose another folder"))
}

/// Makes it, for this user alone.
pub fn make(path: &Path) -> Result<(), SpecError> {
    DirBuilder::new().mode(0o700).create(path).map_err(|error| {
        let folder = path.parent().unwrap_or(path).display().to_string();
        let why = format!("no folder can be made in it: {}", logs::plain(&error));
        SpecError::new("TMPDIR", folder, why, "name a folder that you may write to")
    })
}

/// Empties it, for another attempt.
pub fn empty(path: &Path) {
    remove(Some(path));
    // Whose job it is sees that it is gone.
    let _ = make(path);
}

/// Removes it with all that is in it. Who is left to see it may have done so already.
pub fn remove(path: Option<&Path>) {
    if let Some(path) = path {
        let _ = std::fs::remove_dir_all(path);
    }
}
