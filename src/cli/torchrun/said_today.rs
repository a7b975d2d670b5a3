//! Messages that a user needs once a day: a file in the cache of the user says on which day each was printed last.

use crate::spec::options::EnvVars;
use crate::sys::clock;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Returns true if the message on OMP_NUM_THREADS was printed today, to this user on any machine with this home, and notes
/// that it is printed now. A user without a cache gets it each time.
pub fn omp(vars: &EnvVars) -> bool {
    let Some(folder) = cache(vars) else { return false };
    let today = clock::local_seconds(clock::wall()).chars().take("2026-11-21".len()).collect::<String>();
    note(&folder, &folder.join("omp_num_threads"), &today).unwrap_or(false)
}

/// Returns true if `file` has this text; writes it otherwise.
fn note(folder: &Path, file: &Path, today: &str) -> io::Result<bool> {
    if fs::read_to_string(file).is_ok_and(|day| day == today) {
        return Ok(true);
    }
    fs::create_dir_all(folder)?;
    fs::write(file, today)?;
    Ok(false)
}

/// The folder of rlaunch in the user's cache (XDG Base Directory Specification).
fn cache(vars: &EnvVars) -> Option<PathBuf> {
    let absolute = |name: &str| vars.get(name).map(PathBuf::from).filter(|path| path.is_absolute());
    absolute("XDG_CACHE_HOME").or_else(|| Some(absolute("HOME")?.join(".cache"))).map(|cache| cache.join("rlaunch"))
}
