//! Facts of folders: whether files can be created there, and how much room there is.

use crate::cli::doctor::facts::{FolderFacts, FolderState};
use crate::net::thread;
use crate::probe::disk;
use nix::unistd::{AccessFlags, access};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How long a file system may take for an answer.
const PATIENCE: Duration = Duration::from_secs(3);

/// Looks at a folder without creating it.
pub(super) fn look(path: &Path) -> FolderFacts {
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let at = path.clone();
    FolderFacts { path, state: thread::within(PATIENCE, move || state(&at)).unwrap_or(FolderState::Hangs) }
}

fn state(path: &Path) -> FolderState {
    let Some(at) = path.ancestors().find(|part| part.symlink_metadata().is_ok()).map(Path::to_owned) else {
        return FolderState::Unusable("it cannot be found".into());
    };
    match at.metadata() {
        Err(error) => return FolderState::Unusable(format!("{}: {error}", at.display())),
        Ok(found) if !found.is_dir() => {
            return FolderState::Unusable(format!("{} is not a folder", at.display()));
        }
        Ok(_) => {}
    }
    match disk::space(&at) {
        Err(error) => FolderState::Unusable(format!("{}: {error}", at.display())),
        Ok(space) => FolderState::There { writable: writable(&at), at, space },
    }
}

fn writable(at: &PathBuf) -> Result<(), String> {
    access(at, AccessFlags::W_OK | AccessFlags::X_OK).map_err(|error| error.desc().to_owned())
}
