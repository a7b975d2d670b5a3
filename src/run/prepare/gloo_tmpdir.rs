//! The temporary folder of PADDLE_GLOO_FS_PATH for a job with parameter servers. It exists while the job runs.

use crate::run::output::log_files;
use crate::spec::SpecError;
use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

/// The path of the folder for the job with this key.
pub fn path(key: &str) -> Result<String, SpecError> {
    let path = std::env::temp_dir().join(format!("rlaunch-{key}"));
    let text = path.to_str().map(str::to_owned);
    text.ok_or_else(|| SpecError::new("TMPDIR", path.to_string_lossy(), "is not UTF-8", "choose another folder"))
}

/// Creates it with mode 0700.
pub fn create(path: &Path) -> Result<(), SpecError> {
    DirBuilder::new().mode(0o700).create(path).map_err(|error| {
        let folder = path.parent().unwrap_or(path).display().to_string();
        let why = format!("no folder can be created in it: {}", log_files::plain(&error));
        SpecError::new("TMPDIR", folder, why, "name a folder that you may write to")
    })
}

/// Empties it for another attempt.
pub fn empty(path: &Path) {
    remove(Some(path));
    // If this fails, the job reports that the folder is missing.
    let _ = create(path);
}

/// Removes it with its content. The other launcher process may have done so already.
pub fn remove(path: Option<&Path>) {
    if let Some(path) = path {
        let _ = std::fs::remove_dir_all(path);
    }
}
