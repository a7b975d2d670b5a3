//! The folders with the control sockets of a user's jobs: `/tmp/rlaunch-UID`, or RLAUNCH_RUNTIME_DIR. Not XDG_RUNTIME_DIR: systemd
//! empties it when the user logs out (pam_systemd(8)), and jobs of a scheduler do not have it.
//!
//! Every user may create `/tmp/rlaunch-UID`, also for another one. Then the sockets are in `/tmp/rlaunch-UID-RANDOM`. Commands look
//! into all folders of such names that belong to their user alone.

use crate::net::unix;
use crate::sys::process::procfs;
use crate::sys::process::procfs::stat::ProcStat;
use crate::sys::random;
use nix::unistd::geteuid;
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::{DirBuilder, File, Permissions};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use thiserror::Error;
use tracing::debug;

/// The variable that names another folder.
pub const VARIABLE: &str = "RLAUNCH_RUNTIME_DIR";
/// What the name of a socket ends with.
const ENDING: &str = ".sock";
/// What it ends with until the socket listens, which the kernel shows for ever (proc_net(5)).
const UNFINISHED: &str = ".new";
/// What the kernel adds to the path of a file that was removed (proc_pid_fd(5)).
const DELETED: &str = " (deleted)";
/// Characters of the boot id in the name of a socket.
const BOOT_ID: usize = 8;

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

/// Where the sockets of a user's jobs are.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Place {
    /// In a folder that the user has named.
    Named(PathBuf),
    /// In a folder of this name in a folder that all users may write to, or in one whose name begins so.
    Shared(PathBuf, String),
}

impl Place {
    fn of_process() -> Self {
        match std::env::var_os(VARIABLE).filter(|folder| !folder.is_empty()) {
            Some(folder) => Self::Named(folder.into()),
            None => Self::Shared("/tmp".into(), format!("rlaunch-{}", geteuid())),
        }
    }

    fn usual(&self) -> PathBuf {
        match self {
            Self::Named(folder) => folder.clone(),
            Self::Shared(parent, name) => parent.join(name),
        }
    }

    /// Creates the folder if it is missing. Returns the one to use, and the one that is left alone because it is not private.
    fn create(&self) -> Result<(PathBuf, Option<PathBuf>), NoControlSocket> {
        let usual = self.usual();
        match (create(&usual), self) {
            (Err(NoControlSocket::NotPrivate(left)), Self::Shared(parent, name)) => {
                // Others of this user are found as well.
                let other = parent.join(format!("{name}-{}", random::lowercase(10)));
                Ok((self.others().into_iter().next().map_or_else(|| create(&other), Ok)?, Some(left)))
            }
            (created, _) => Ok((created?, None)),
        }
    }

    /// The private folders whose names begin with that of the usual one.
    fn others(&self) -> Vec<PathBuf> {
        let Self::Shared(parent, name) = self else { return Vec::new() };
        let beginning = format!("{name}-");
        let entries = std::fs::read_dir(parent).into_iter().flatten().flatten();
        let named = entries.filter(|entry| entry.file_name().as_encoded_bytes().starts_with(beginning.as_bytes()));
        let mut found: Vec<PathBuf> =
            named.map(|entry| entry.path()).filter(|folder| check_private(folder).is_ok()).collect();
        found.sort();
        found
    }

    /// Whether sockets may be in this folder.
    fn has(&self, folder: &Path) -> bool {
        let is_other = |parent: &Path, name: &str| {
            let own = folder.file_name().and_then(|own| own.to_str()).and_then(|own| own.strip_prefix(name));
            folder.parent() == Some(parent) && own.is_some_and(|rest| rest.starts_with('-'))
        };
        folder == self.usual() || matches!(self, Self::Shared(parent, name) if is_other(parent, name))
    }

    /// The folders in which sockets may be.
    fn all(&self) -> Result<Vec<PathBuf>, NoControlSocket> {
        let (usual, mut found) = (self.usual(), self.others());
        match check_private(&usual) {
            Ok(()) => found.insert(0, usual),
            Err(NoControlSocket::System(_, error)) if error.kind() == io::ErrorKind::NotFound => {}
            Err(_) if matches!(self, Self::Shared(..)) => {}
            Err(error) => return Err(error),
        }
        Ok(found)
    }
}

/// The folder that is used unless another user has created it; it need not exist.
pub fn path() -> PathBuf {
    Place::of_process().usual()
}

/// The private folders of this user's jobs that exist.
pub fn folders() -> Result<Vec<PathBuf>, NoControlSocket> {
    Place::of_process().all()
}

/// Creates the folder of this user's jobs if it is missing.
pub fn create_usual() -> Result<PathBuf, NoControlSocket> {
    Place::of_process().create().map(|(folder, _)| folder)
}

/// Creates a folder with mode 0700, unless it exists and is private.
fn create(folder: &Path) -> Result<PathBuf, NoControlSocket> {
    let made = DirBuilder::new().recursive(true).mode(0o700).create(folder);
    match made {
        // Something else has this name.
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            return Err(NoControlSocket::System(folder.to_owned(), error));
        }
        _ => {}
    }
    check_private(folder).map(|()| folder.to_owned())
}

/// Checks that only this user can put anything into the folder.
pub fn check_private(folder: &Path) -> Result<(), NoControlSocket> {
    let data = folder.symlink_metadata().map_err(|error| NoControlSocket::System(folder.to_owned(), error))?;
    let is_private = data.is_dir() && data.uid() == geteuid().as_raw() && data.mode() & 0o022 == 0;
    if is_private { Ok(()) } else { Err(NoControlSocket::NotPrivate(folder.to_owned())) }
}

/// The file of a socket that listens. Dropping it removes the file.
#[derive(Debug)]
pub struct SocketFile {
    name: String,
    path: PathBuf,
    /// Clients connect to it by the links in /proc/PID/fd if the file was removed.
    file: File,
}

impl SocketFile {
    /// Creates a socket that listens, and its file. `name`: unique among the user's jobs on this machine. Returns the folder too that is
    /// left alone because others may write to it.
    pub fn create(name: &str) -> Result<(Self, UnixListener, Option<PathBuf>), NoControlSocket> {
        let (listener, path, left_alone) = listen(name)?;
        let opened = File::options().read(true).custom_flags(libc::O_PATH | libc::O_NOFOLLOW).open(&path);
        let file = opened.map_err(|error| NoControlSocket::System(path.clone(), error))?;
        Ok((Self { name: name.to_owned(), path, file }, listener, left_alone))
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Creates another one if the file was removed, as by a cleaner of temporary files.
    pub fn renew(&mut self) -> Option<UnixListener> {
        if self.is_there() {
            return None;
        }
        let made = Self::create(&self.name).inspect_err(|error| debug!("the control socket was removed, and {error}"));
        let (new, listener, _) = made.ok()?;
        *self = new;
        Some(listener)
    }

    fn is_there(&self) -> bool {
        let (Ok(now), Ok(own)) = (self.path.symlink_metadata(), self.file.metadata()) else { return false };
        (now.dev(), now.ino()) == (own.dev(), own.ino())
    }
}

impl AsFd for SocketFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if self.is_there() {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Creates a socket and listens on it. Returns its path, and the folder that is left alone.
fn listen(name: &str) -> Result<(UnixListener, PathBuf, Option<PathBuf>), NoControlSocket> {
    let (folder, left_alone) = Place::of_process().create()?;
    let boot = boot_id();
    remove_stale(&folder, boot.as_deref());
    let system = |error| NoControlSocket::System(folder.clone(), error);
    // One without the mark of a machine is removed by no other process.
    let mark = boot.map(|boot| format!("-{boot}")).unwrap_or_default();
    let path = folder.join(format!("{name}{mark}{ENDING}"));
    // Others take a socket that does not listen yet for one that was left behind.
    let unfinished = folder.join(format!("{name}{UNFINISHED}"));
    let listener = UnixListener::bind(&unfinished).map_err(system)?;
    let mode = std::fs::set_permissions(&unfinished, Permissions::from_mode(0o600));
    if let Err(error) = mode.and_then(|()| std::fs::rename(&unfinished, &path)) {
        let _ = std::fs::remove_file(&unfinished);
        return Err(system(error));
    }
    Ok((listener, path, left_alone))
}

/// A socket of a job.
#[derive(Clone, Debug)]
pub struct FoundSocket {
    /// The path of its file, which may have been removed.
    pub file: PathBuf,
    /// The path to connect to.
    pub path: PathBuf,
}

impl FoundSocket {
    /// The process id of the launcher, in its PID namespace.
    pub fn launcher(&self) -> Option<i32> {
        launcher(&self.file)
    }

    /// The same socket, or the one that was made in its place.
    pub fn find_again(&self) -> Option<Self> {
        sockets().ok()?.into_iter().find(|other| other.file == self.file)
    }
}

/// The sockets of this user's jobs on this machine. Those whose launchers were killed are removed.
pub fn sockets() -> Result<Vec<FoundSocket>, NoControlSocket> {
    let (folders, boot) = (Place::of_process().all()?, boot_id());
    folders.iter().for_each(|folder| remove_stale(folder, boot.as_deref()));
    let mut files: Vec<PathBuf> = folders.iter().flat_map(|folder| all(folder)).collect();
    files.retain(|path| Origin::of(path, boot.as_deref()) != Origin::OtherMachine);
    let mut found: Vec<_> = files.into_iter().map(|file| FoundSocket { path: file.clone(), file }).collect();
    found.extend(lost_sockets(&Place::of_process()).iter().filter_map(|lost| find_link(lost)));
    Ok(found)
}

/// The paths, without their endings, of sockets of these folders that listen and have no file any more.
fn lost_sockets(place: &Place) -> BTreeSet<PathBuf> {
    let text = std::fs::read("/proc/net/unix").unwrap_or_default();
    // Those of this network namespace, each with the path that it was bound to (proc_net(5)).
    let lines = String::from_utf8_lossy(&text);
    let bound = lines.lines().filter_map(|line| line.get(line.find('/')?..)?.strip_suffix(UNFINISHED));
    let is_lost = |path: &&Path| {
        let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else { return false };
        let has_name = |file: &PathBuf| is_file_of(file, name);
        place.has(folder) && !all(folder).iter().any(has_name)
    };
    bound.map(Path::new).filter(is_lost).map(Path::to_owned).collect()
}

/// Whether a file is the one of the socket of this name.
fn is_file_of(file: &Path, name: &OsStr) -> bool {
    let file = file.file_name().unwrap_or_default().as_encoded_bytes();
    file.strip_prefix(name.as_encoded_bytes()).is_some_and(|rest| rest.starts_with(b"-") || rest == ENDING.as_bytes())
}

/// Finds the link to the file of a socket, by which it can be connected to though the file was removed.
fn find_link(lost: &Path) -> Option<FoundSocket> {
    let launcher = launcher(lost)?;
    let is_supervisor = |pid: &i32| {
        let owner = std::fs::metadata(format!("/proc/{pid}")).map(|data| data.uid());
        ProcStat::of(*pid).is_some_and(|stat| stat.parent == launcher) && owner.ok() == Some(geteuid().as_raw())
    };
    let socket = |link: PathBuf| {
        let target = std::fs::read_link(&link).ok()?;
        let target = Path::new(target.to_str()?.trim_end_matches(DELETED));
        let file = lost.with_file_name(target.file_name()?);
        is_file_of(&file, lost.file_name()?).then_some(FoundSocket { file, path: link })
    };
    procfs::pids().into_iter().filter(is_supervisor).find_map(|supervisor| {
        // A socket that was made again is in the table of one thread alone.
        let threads = entries(Path::new(&format!("/proc/{supervisor}/task")));
        threads.iter().flat_map(|thread| entries(&thread.join("fd"))).find_map(socket)
    })
}

fn entries(folder: &Path) -> Vec<PathBuf> {
    std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()).collect()
}

fn launcher(path: &Path) -> Option<i32> {
    path.file_name()?.to_str()?.split('-').next()?.parse().ok()
}

fn all(folder: &Path) -> Vec<PathBuf> {
    let mut found = entries(folder);
    found.retain(|path| path.to_string_lossy().ends_with(ENDING));
    found.sort();
    found
}

/// The machine whose kernel has a socket. On a network file system, those of all machines are in one folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Origin {
    ThisMachine,
    OtherMachine,
    /// Of an earlier version of rlaunch, or where /proc hides the id.
    Unknown,
}

impl Origin {
    fn of(path: &Path, boot: Option<&str>) -> Self {
        let name = path.file_name().and_then(|name| name.to_str()).and_then(|name| name.strip_suffix(ENDING));
        let mark = name.and_then(|name| name.split('-').nth(2));
        match (mark, boot) {
            (Some(mark), Some(boot)) if mark == boot => Self::ThisMachine,
            (Some(_), Some(_)) => Self::OtherMachine,
            _ => Self::Unknown,
        }
    }
}

/// The beginning of a random number that all processes of this machine see until it is started again (random(4)).
fn boot_id() -> Option<String> {
    let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    let id = id.get(..BOOT_ID)?;
    id.bytes().all(|byte| byte.is_ascii_alphanumeric()).then(|| id.to_owned())
}

/// Removes the sockets that no process of this machine has open.
fn remove_stale(folder: &Path, boot: Option<&str>) {
    for path in all(folder) {
        if Origin::of(&path, boot) == Origin::ThisMachine && unix::is_abandoned(&path) {
            // Another launcher or client may be faster.
            let _ = std::fs::remove_file(path);
        }
    }
}
