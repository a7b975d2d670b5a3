//! The log folder and its files: 0600 in a 0700 folder, opened without following links.

use crate::plan::{Backup, Output, Plan};
use crate::spec::SpecError;
use std::fs::{DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Makes the log folder (0700; a folder that is there keeps its mode) and checks that files can be
/// made in it.
pub fn make_folder(path: &Path) -> Result<(), SpecError> {
    let refuse = |why: String| {
        Err(SpecError::new("--log_dir", path.display().to_string(), why, "name a folder that you may write to"))
    };
    if let Err(error) = DirBuilder::new().recursive(true).mode(0o700).create(path) {
        return refuse(if path.is_dir() { error.to_string() } else { format!("cannot be made: {}", plain(&error)) });
    }
    match nameless(path) {
        Ok(_) => Ok(()),
        Err(error) => refuse(format!("no file can be made in it: {}", plain(&error))),
    }
}

/// A file in a folder, without a name by now. To ask by trying: permission bits do not tell of read-only mounts,
/// quotas or capabilities.
pub fn nameless(folder: &Path) -> io::Result<File> {
    let path = folder.join(format!(".rlaunch-{}", std::process::id()));
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
    let _ = std::fs::remove_file(&path);
    Ok(file)
}

/// An OS error without Rust's "(os error 2)".
pub fn plain(error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(errno) => nix::errno::Errno::from_raw(errno).desc().to_owned(),
        None => error.to_string(),
    }
}

/// Opens a log for appending, or empties it first.
pub fn open(path: &Path, overwrite: bool) -> io::Result<File> {
    let mut options = OpenOptions::new();
    // O_NONBLOCK, so that a FIFO that stands there is refused and not waited for.
    options.append(true).create(true).mode(0o600).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK);
    let file = options.open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    nix::fcntl::fcntl(&file, nix::fcntl::FcntlArg::F_SETFL(nix::fcntl::OFlag::O_APPEND))?;
    // A file of an earlier run, by whatever launcher. Not ours to change: then it stays as it is.
    let _ = file.set_permissions(Permissions::from_mode(0o600));
    if overwrite {
        file.set_len(0)?;
    }
    Ok(file)
}

/// Checks that every rank's log can be written, before any rank is started.
pub fn check(plan: &Plan, folder: &Path) -> Result<(), SpecError> {
    for rank in &plan.ranks {
        // Those of an attempt are in a folder that is made for it.
        let Output::Together(log) = &rank.output else { continue };
        let path = folder.join(log);
        if let Err(error) = open(&path, false) {
            return Err(refused(&path, &error));
        }
    }
    Ok(())
}

/// Why a file in the log folder cannot be used.
pub fn refused(path: &Path, error: &io::Error) -> SpecError {
    let why = match error.raw_os_error() {
        Some(libc::ELOOP) => "is a link, and logs follow none".to_owned(),
        Some(libc::EINVAL | libc::ENXIO | libc::EISDIR) => "is not a regular file".to_owned(),
        _ => format!("cannot be written: {}", plain(error)),
    };
    SpecError::new("the log file", path.display().to_string(), why, "remove it, or name another --log_dir")
}

/// Whether nothing more can be written in a folder. Some of a disk may be kept for user 0 (statvfs(3)).
pub fn is_full(folder: &Path) -> bool {
    let Ok(fs) = nix::sys::statvfs::statvfs(folder) else { return false };
    let left = if nix::unistd::geteuid().is_root() { fs.blocks_free() } else { fs.blocks_available() };
    fs.blocks() > 0 && left == 0
}

/// The folder of the launcher's own records in that of the logs.
pub const OWN: &str = "rlaunch";

/// Makes the folder of the launcher's own records, `LOG_DIR/rlaunch`.
pub fn own_folder(log_dir: &Path) -> io::Result<PathBuf> {
    private_folder(log_dir.join(OWN))
}

/// Makes a folder for this user alone, if it is not there. A link is not followed.
fn private_folder(path: PathBuf) -> io::Result<PathBuf> {
    match DirBuilder::new().mode(0o700).create(&path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    if std::fs::symlink_metadata(&path)?.is_symlink() {
        return Err(io::Error::from_raw_os_error(libc::ELOOP));
    }
    Ok(path)
}

/// Moves a log to `LOG_DIR/rlaunch/attempt-N/`, where those of the attempts before the last are, and its
/// `backups` older parts with it.
pub fn put_aside(log_dir: &Path, log: &str, attempt: u32, backups: u32) -> io::Result<()> {
    let folder = private_folder(own_folder(log_dir)?.join(format!("{ATTEMPT}{attempt}")))?;
    for n in 1..=backups {
        // There may be fewer.
        let _ = std::fs::rename(numbered(&log_dir.join(log), n), numbered(&folder.join(log), n));
    }
    std::fs::rename(log_dir.join(log), folder.join(log))
}

/// The same for all ranks of a plan that have one log.
pub fn put_all_aside(log_dir: &Path, plan: &Plan, attempt: u32, backups: u32) {
    for rank in &plan.ranks {
        if let Output::Together(log) = &rank.output {
            // Where it cannot be put aside, the next attempt appends to it.
            let _ = put_aside(log_dir, log, attempt, backups);
        }
    }
}

const ATTEMPT: &str = "attempt-";

/// Makes room for the attempts of a new job: those that an earlier one has left go to
/// `LOG_DIR/rlaunch/earlier-N/`, 1 being the oldest, or away if logs are to be overwritten.
pub fn put_attempts_aside(log_dir: &Path, overwrite: bool) -> Result<(), SpecError> {
    let own = log_dir.join(OWN);
    own_folder(log_dir).and_then(|own| make_room(&own, overwrite)).map_err(|error| refused(&own, &error))
}

fn make_room(own: &Path, overwrite: bool) -> io::Result<()> {
    let mut attempts = Vec::new();
    for entry in own.read_dir()? {
        let entry = entry?;
        let number = entry.file_name().to_str().and_then(|n| n.strip_prefix(ATTEMPT)?.parse::<u32>().ok());
        if number.is_some() && entry.file_type()?.is_dir() {
            attempts.push(entry);
        }
    }
    // Another job that begins in this folder may have been faster.
    let unless_gone = |done: io::Result<()>| match done {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        done => done,
    };
    if overwrite {
        return attempts.iter().try_for_each(|entry| unless_gone(std::fs::remove_dir_all(entry.path())));
    }
    if attempts.is_empty() {
        return Ok(());
    }
    let mut number = 1;
    let free = loop {
        let free = own.join(format!("earlier-{number}"));
        match DirBuilder::new().mode(0o700).create(&free) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => number += 1,
            made => break made.map(|()| free)?,
        }
    };
    attempts.iter().try_for_each(|entry| unless_gone(std::fs::rename(entry.path(), free.join(entry.file_name()))))
}

/// Forgets how an earlier job in this folder ended: it is not how this one does.
pub fn forget_result(log_dir: &Path) -> Result<(), SpecError> {
    let own = log_dir.join(OWN);
    // A link is refused when the folder is made; what it leads to is not ours.
    if own.is_symlink() {
        return Ok(());
    }
    let path = own.join(RESULT);
    match std::fs::remove_file(&path) {
        Err(error) if !matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            Err(refused(&path, &error))
        }
        _ => Ok(()),
    }
}

/// The file that says how a job ended.
pub const RESULT: &str = "result.json";

/// The name of an older part of a log, 1 being the newest.
pub fn numbered(log: &Path, n: u32) -> PathBuf {
    PathBuf::from(format!("{}.{n}", log.display()))
}

/// Replaces a small file. Written beside it and moved, so that a link is replaced, not followed.
pub fn replace(path: &Path, text: &str) -> io::Result<()> {
    let temporary = PathBuf::from(format!("{}.{}", path.display(), std::process::id()));
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&temporary)?;
    let replaced = file.write_all(text.as_bytes()).and_then(|()| std::fs::rename(&temporary, path));
    if replaced.is_err() {
        let _ = std::fs::remove_file(&temporary);
    }
    replaced
}

/// Writes into what is there, without waiting for whoever reads from it.
pub fn overwrite(path: &Path, text: &str) -> io::Result<()> {
    let opened = OpenOptions::new().write(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    if opened.metadata()?.is_file() {
        opened.set_len(0)?;
    }
    (&opened).write_all(text.as_bytes())
}

/// Writes what else belongs beside the ranks' logs: `{job_id}.{pod}.log` with the endpoints.
pub fn write_beside(plan: &Plan, folder: &Path, overwrite: bool) -> io::Result<()> {
    let mut file = open(&folder.join(format!("{}.{}.log", plan.job_id, plan.pod.name)), overwrite)?;
    for (local_rank, one) in plan.ranks.iter().enumerate() {
        let endpoint = one.endpoint.as_ref().map_or(String::new(), |endpoint| format!(" endpoint {endpoint}"));
        writeln!(file, "{} {} local_rank {local_rank}{endpoint}", one.role, one.rank)?;
    }
    Ok(())
}

/// Writes the lists that were too long for the environment.
pub fn write_backups(plan: &Plan) -> io::Result<()> {
    for Backup { path, vars } in plan.ranks.iter().filter_map(|r| r.backup.as_ref()) {
        let map: serde_json::Map<_, _> = vars.iter().map(|(n, v)| (n.clone(), (**v).into())).collect();
        replace(Path::new(path), &serde_json::Value::Object(map).to_string())?;
    }
    Ok(())
}

/// The last `most` bytes of a log from `start` on, without a cut line at their beginning. All of one that has
/// been emptied since `start`.
pub fn tail(path: &Path, start: u64, most: u64) -> Vec<u8> {
    use std::io::{Read, Seek, SeekFrom};
    let read = || -> io::Result<Vec<u8>> {
        let mut file = File::open(path)?;
        let end = file.metadata()?.len();
        let start = if start > end { 0 } else { start };
        let from = end.saturating_sub(most).max(start);
        file.seek(SeekFrom::Start(from))?;
        let mut bytes = Vec::new();
        file.take(most).read_to_end(&mut bytes)?;
        if from > start
            && let Some(newline) = bytes.iter().position(|b| *b == b'\n').filter(|i| i + 1 < bytes.len())
        {
            bytes.drain(..=newline);
        }
        Ok(bytes)
    };
    read().unwrap_or_default()
}
