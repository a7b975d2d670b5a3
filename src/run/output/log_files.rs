//! The log folder and its files: mode 0600 in a 0700 folder, opened without following links.

use crate::plan::{EnvOverflowFile, OutputPlan, Plan};
use crate::probe::disk;
use crate::spec::SpecError;
use crate::sys::random;
use sha2::{Digest, Sha256};
use std::borrow::Cow;
use std::fs::{DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Creates the log folder (0700; an existing folder keeps its mode) and checks that files can be created in it.
pub fn make_folder(path: &Path) -> Result<(), SpecError> {
    let refuse = |why: String| {
        Err(SpecError::new("--log_dir", path.display().to_string(), why, "name a folder that you may write to"))
    };
    if let Err(error) = DirBuilder::new().recursive(true).mode(0o700).create(path) {
        // A file in the way gives "File exists" or "Not a directory", which names no file.
        let in_the_way = path.ancestors().find(|part| part.exists()).filter(|part| !part.is_dir());
        let kind =
            in_the_way.map_or("", |part| if part.is_file() { "is a file, not a folder" } else { "is not a folder" });
        return refuse(match in_the_way {
            Some(part) if part == path => kind.to_owned(),
            Some(part) => format!("cannot be created: {} {kind}", part.display()),
            None if path.is_dir() => error.to_string(),
            None => format!("cannot be created: {}", plain(&error)),
        });
    }
    match create_unlinked(path) {
        Ok(_) => Ok(()),
        Err(error) => refuse(format!("no file can be created in it: {}", plain(&error))),
    }
}

/// Creates a file in a folder and removes its name. A test by doing: permission bits do not show read-only mounts, quotas or
/// capabilities.
pub fn create_unlinked(folder: &Path) -> io::Result<File> {
    // Nodes that share the folder may have the same process ids.
    let path = folder.join(format!(".rlaunch-{}", random::alphanumeric(12)));
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
    let _ = std::fs::remove_file(&path);
    Ok(file)
}

/// The text of a system error, without Rust's "(os error 2)".
pub fn plain(error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(errno) => nix::errno::Errno::from_raw(errno).desc().to_owned(),
        None => error.to_string(),
    }
}

/// Opens a log for appending. `overwrite`: empties it first.
pub fn open(path: &Path, overwrite: bool) -> io::Result<File> {
    let mut options = OpenOptions::new();
    // O_NONBLOCK: a FIFO of that name is refused instead of waited for.
    options.append(true).create(true).mode(0o600).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK);
    let file = options.open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    nix::fcntl::fcntl(&file, nix::fcntl::FcntlArg::F_SETFL(nix::fcntl::OFlag::O_APPEND))?;
    // An earlier run may have created the file with another mode. Another user's file keeps its mode.
    let _ = file.set_permissions(Permissions::from_mode(0o600));
    if overwrite {
        file.set_len(0)?;
    }
    Ok(file)
}

/// Checks that every rank's log can be written, before any rank is started.
pub fn check(plan: &Plan, folder: &Path) -> Result<(), SpecError> {
    for rank in &plan.ranks {
        // The folder for other logs is created in each attempt.
        let OutputPlan::Combined(log) = &rank.output else { continue };
        let path = folder.join(log);
        if let Err(error) = open(&path, false) {
            return Err(unusable(&path, &error));
        }
    }
    Ok(())
}

/// The error for a file in the log folder that cannot be used.
pub fn unusable(path: &Path, error: &io::Error) -> SpecError {
    let why = match error.raw_os_error() {
        Some(libc::ELOOP) => "is a symbolic link".to_owned(),
        Some(libc::EINVAL | libc::ENXIO | libc::EISDIR) => "is not a regular file".to_owned(),
        _ => format!("cannot be written: {}", plain(error)),
    };
    SpecError::new("the log file", path.display().to_string(), why, "remove it, or name another --log_dir")
}

/// Whether a write failed because there was no room, which may pass.
pub fn has_no_room(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// Whether the file system of a folder is full.
pub fn is_full(folder: &Path) -> bool {
    disk::space(folder).is_ok_and(|space| space.total > 0 && space.left == 0)
}

/// The folder of the launcher's own records, inside the log folder.
pub const RECORDS: &str = "rlaunch";

/// Creates the folder of the launcher's own records, `LOG_DIR/rlaunch`.
pub fn records_folder(log_dir: &Path) -> io::Result<PathBuf> {
    private_folder(log_dir.join(RECORDS))
}

/// Creates a folder with mode 0700 unless it exists. Does not follow a link.
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

/// Moves the log of an attempt that another one follows to `LOG_DIR/rlaunch/attempt-N/`, with its `backups` older parts.
pub fn archive(log_dir: &Path, log: &str, attempt: u32, backups: u32) -> io::Result<()> {
    let folder = private_folder(records_folder(log_dir)?.join(format!("{ATTEMPT}{attempt}")))?;
    for n in 1..=backups {
        // There may be fewer parts.
        let _ = std::fs::rename(numbered(&log_dir.join(log), n), numbered(&folder.join(log), n));
    }
    std::fs::rename(log_dir.join(log), folder.join(log))
}

/// The same for all ranks of a plan whose streams share one log.
pub fn archive_all(log_dir: &Path, plan: &Plan, attempt: u32, backups: u32) {
    for rank in &plan.ranks {
        if let OutputPlan::Combined(log) = &rank.output {
            // If it cannot be moved, the next attempt appends to it.
            let _ = archive(log_dir, log, attempt, backups);
        }
    }
}

const ATTEMPT: &str = "attempt-";

/// Moves the attempt folders of an earlier job to `LOG_DIR/rlaunch/earlier-N/` (1 is the oldest job), or removes them if
/// logs are overwritten.
pub fn archive_attempts(log_dir: &Path, overwrite: bool) -> Result<(), SpecError> {
    let own = log_dir.join(RECORDS);
    records_folder(log_dir).and_then(|own| move_attempts(&own, overwrite)).map_err(|error| unusable(&own, &error))
}

fn move_attempts(own: &Path, overwrite: bool) -> io::Result<()> {
    let mut attempts = Vec::new();
    for entry in own.read_dir()? {
        let entry = entry?;
        let number = entry.file_name().to_str().and_then(|n| n.strip_prefix(ATTEMPT)?.parse::<u32>().ok());
        if number.is_some() && entry.file_type()?.is_dir() {
            attempts.push(entry);
        }
    }
    // Another job that starts in this folder may have moved it first.
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

/// Removes the result of an earlier job in this folder.
pub fn remove_result(log_dir: &Path) -> Result<(), SpecError> {
    let own = log_dir.join(RECORDS);
    // A link is refused later, when the folder is created. Its target is not the launcher's.
    if own.is_symlink() {
        return Ok(());
    }
    let path = own.join(RESULT);
    match std::fs::remove_file(&path) {
        Err(error) if !matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            Err(unusable(&path, &error))
        }
        _ => Ok(()),
    }
}

/// The file with the result of a job.
pub const RESULT: &str = "result.json";

/// The name of an older part of a log; 1 is the newest.
pub fn numbered(log: &Path, n: u32) -> PathBuf {
    PathBuf::from(format!("{}.{n}", log.display()))
}

/// Replaces a small file atomically. A link is replaced, not followed.
pub fn replace(path: &Path, text: &str) -> io::Result<()> {
    replace_with_mode(path, text, 0o600)
}

/// The same with this mode, less the bits of the umask.
pub fn replace_with_mode(path: &Path, text: &str, mode: u32) -> io::Result<()> {
    let temporary = PathBuf::from(format!("{}.{}", path.display(), random::alphanumeric(12)));
    let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(&temporary)?;
    let replaced = file.write_all(text.as_bytes()).and_then(|()| std::fs::rename(&temporary, path));
    if replaced.is_err() {
        let _ = std::fs::remove_file(&temporary);
    }
    replaced
}

/// Overwrites an existing file. Does not wait for the reader of a FIFO.
pub fn overwrite(path: &Path, text: &str) -> io::Result<()> {
    let opened = OpenOptions::new().write(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    if opened.metadata()?.is_file() {
        opened.set_len(0)?;
    }
    (&opened).write_all(text.as_bytes())
}

/// A job's id as the beginning of a file name, which may have 255 bytes (NAME_MAX): a long one ends in its hash.
pub fn job_name(job_id: &str) -> Cow<'_, str> {
    const MOST: usize = 200;
    const KEPT: usize = 180;
    let job_id: Cow<'_, str> = if job_id.contains('/') { job_id.replace('/', "-").into() } else { job_id.into() };
    if job_id.len() <= MOST {
        return job_id;
    }
    let hash = Sha256::digest(job_id.as_bytes());
    let hash: String = hash.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    let end = (0..=KEPT).rev().find(|end| job_id.is_char_boundary(*end)).unwrap_or_default();
    format!("{}-{hash}", &job_id[..end]).into()
}

/// Writes `{job_id}.{pod}.log`, which lists the ranks and their endpoints.
pub fn write_pod_log(plan: &Plan, folder: &Path, overwrite: bool) -> io::Result<()> {
    let mut file = open(&folder.join(format!("{}.{}.log", job_name(&plan.job_id), plan.pod.name)), overwrite)?;
    for (local_rank, one) in plan.ranks.iter().enumerate() {
        let endpoint = one.endpoint.as_ref().map_or(String::new(), |endpoint| format!(" endpoint {endpoint}"));
        writeln!(file, "{} {} local_rank {local_rank}{endpoint}", one.role, one.rank)?;
    }
    Ok(())
}

/// Writes the files with lists that were too long for the environment.
pub fn write_env_overflow(plan: &Plan) -> io::Result<()> {
    for EnvOverflowFile { path, vars } in plan.ranks.iter().filter_map(|r| r.env_overflow.as_ref()) {
        let map: serde_json::Map<_, _> = vars.iter().map(|(n, v)| (n.clone(), (**v).into())).collect();
        replace(Path::new(path), &serde_json::Value::Object(map).to_string())?;
    }
    Ok(())
}

/// How much of a log's end is searched for the cause of a failure.
pub const TAIL_BYTES: u64 = 64 * 1024;

/// The last `most` bytes of a log after `start`, from the beginning of a line. If the log has been truncated below
/// `start`, the last bytes of all of it.
pub fn tail(path: &Path, start: u64, most: u64) -> Vec<u8> {
    tail_until(path, start, u64::MAX, most)
}

/// The same of the bytes before `end`.
pub fn tail_until(path: &Path, start: u64, end: u64, most: u64) -> Vec<u8> {
    use std::io::{Read, Seek, SeekFrom};
    let read = || -> io::Result<Vec<u8>> {
        let mut file = File::open(path)?;
        let end = file.metadata()?.len().min(end);
        let start = if start > end { 0 } else { start };
        let from = end.saturating_sub(most).max(start);
        file.seek(SeekFrom::Start(from))?;
        let mut bytes = Vec::new();
        file.take(end.saturating_sub(from)).read_to_end(&mut bytes)?;
        if from > start
            && let Some(newline) = bytes.iter().position(|b| *b == b'\n').filter(|i| i + 1 < bytes.len())
        {
            bytes.drain(..=newline);
        }
        Ok(bytes)
    };
    read().unwrap_or_default()
}
