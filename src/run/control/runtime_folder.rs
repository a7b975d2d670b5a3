//! The folder with the control sockets of a user's jobs: `/tmp/rlaunch-UID`, or RLAUNCH_RUNTIME_DIR. Not XDG_RUNTIME_DIR: systemd
//! empties it when the user logs out (pam_systemd(8)), and jobs of a scheduler do not have it.

use nix::unistd::geteuid;
use std::fs::{DirBuilder, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use thiserror::Error;

/// The variable that names another folder.
pub const VARIABLE: &str = "RLAUNCH_RUNTIME_DIR";
/// What the name of a socket ends with.
const ENDING: &str = ".sock";

/// Why there is no control socket.
#[derive(Debug, Error)]
pub enum NoControlSocket {
    /// Another user could put sockets there.
    #[error("{} is no folder of this user alone; let {VARIABLE} name one that only you may write to", .0.display())]
    NotPrivate(PathBuf),
    /// The system refused something.
    #[error("{}: {}", .0.display(), .1)]
    System(PathBuf, io::Error),
}

/// The folder; it need not exist.
pub fn path() -> PathBuf {
    match std::env::var_os(VARIABLE).filter(|folder| !folder.is_empty()) {
        Some(folder) => folder.into(),
        None => format!("/tmp/rlaunch-{}", geteuid()).into(),
    }
}

/// Checks that only this user can put anything into the folder.
fn check(folder: &Path) -> Result<(), NoControlSocket> {
    let data = folder.symlink_metadata().map_err(|error| NoControlSocket::System(folder.to_owned(), error))?;
    let is_private = data.is_dir() && data.uid() == geteuid().as_raw() && data.mode() & 0o022 == 0;
    if is_private { Ok(()) } else { Err(NoControlSocket::NotPrivate(folder.to_owned())) }
}

/// Creates a socket in the folder and listens on it. Returns it with its path. `name`: unique among the user's jobs.
pub fn listen(name: &str) -> Result<(UnixListener, PathBuf), NoControlSocket> {
    let folder = path();
    let system = |error| NoControlSocket::System(folder.clone(), error);
    DirBuilder::new().recursive(true).mode(0o700).create(&folder).map_err(system)?;
    check(&folder)?;
    remove_stale(&folder);
    let path = folder.join(format!("{name}{ENDING}"));
    // Others take a socket that does not listen yet for one that was left behind.
    let unfinished = folder.join(format!("{name}.new"));
    let listener = UnixListener::bind(&unfinished).map_err(system)?;
    let mode = std::fs::set_permissions(&unfinished, Permissions::from_mode(0o600));
    if let Err(error) = mode.and_then(|()| std::fs::rename(&unfinished, &path)) {
        let _ = std::fs::remove_file(&unfinished);
        return Err(system(error));
    }
    Ok((listener, path))
}

/// The sockets in the folder. Those whose launchers were killed are removed.
pub fn sockets() -> Result<Vec<PathBuf>, NoControlSocket> {
    let folder = path();
    match check(&folder) {
        Err(NoControlSocket::System(_, error)) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        checked => checked?,
    }
    remove_stale(&folder);
    Ok(all(&folder))
}

fn all(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut found: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    found.retain(|path| path.to_string_lossy().ends_with(ENDING));
    found.sort();
    found
}

fn remove_stale(folder: &Path) {
    for path in all(folder) {
        if UnixStream::connect(&path).is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused) {
            // Another launcher or client may be faster.
            let _ = std::fs::remove_file(path);
        }
    }
}
