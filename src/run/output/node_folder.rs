//! The log folder of one node. Nodes with a shared file system have the same one by default: the first launcher that comes takes it, and
//! another one takes a folder in it. A lock shows that a launcher has a folder (flock(2); network file systems pass it to their server),
//! so nothing is left to be removed when launchers are killed.

use crate::run::output::log_files;
use crate::spec::SpecError;
use crate::sys::io::fd;
use std::fs::File;
use std::io::{self, ErrorKind, Read, Write};
use std::path::{Path, PathBuf};

/// A folder that no other node uses while this value exists.
#[derive(Debug)]
pub struct NodeFolder {
    /// Its path.
    pub path: PathBuf,
    /// The host whose launcher has the folder that was asked for; `None`: this one has it.
    pub taken_by: Option<String>,
    /// `None`: the file system has no locks.
    _lock: Option<File>,
}

/// The file that a launcher locks, with the name of its host.
const LOCK: &str = "node.lock";

/// Takes `log_dir`, or `log_dir/node-HOST` if another launcher has it, or if this host had that folder in an earlier job.
pub fn take(log_dir: &Path, host: &str) -> Result<NodeFolder, SpecError> {
    let own = log_dir.join(format!("node-{}", host.replace('/', "-")));
    let earlier = own.join(log_files::RECORDS).is_dir().then(|| own.clone());
    // Several launchers on one host.
    let numbered = (2..).map(|n| PathBuf::from(format!("{}.{n}", own.display())));
    let candidates = earlier.into_iter().chain([log_dir.to_owned(), own.clone()]).chain(numbered);
    let mut taken_by = None;
    for path in candidates {
        log_files::make_folder(&path)?;
        let records = path.join(log_files::RECORDS);
        let lock = log_files::records_folder(&path)
            .map_err(|error| log_files::unusable(&records, &error))
            .and_then(|records| lock(&records.join(LOCK), host))?;
        match lock {
            LockedFile::Locked(lock) => return Ok(NodeFolder { path, taken_by, _lock: Some(lock) }),
            LockedFile::Unsupported => return Ok(NodeFolder { path, taken_by, _lock: None }),
            LockedFile::TakenBy(other) if path == log_dir => taken_by = Some(other),
            LockedFile::TakenBy(_) => {}
        }
    }
    // Not reached: there is another name for each launcher.
    Ok(NodeFolder { path: log_dir.to_owned(), taken_by, _lock: None })
}

enum LockedFile {
    Locked(File),
    TakenBy(String),
    Unsupported,
}

fn lock(path: &Path, host: &str) -> Result<LockedFile, SpecError> {
    let mut file = log_files::open(path, false).map_err(|error| log_files::unusable(path, &error))?;
    match fd::try_lock(&file, false) {
        Ok(()) => {
            // Only for messages.
            let _ = file.set_len(0).and_then(|()| file.write_all(host.as_bytes()));
            Ok(LockedFile::Locked(file))
        }
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(LockedFile::TakenBy(read(path).unwrap_or_default())),
        Err(_) => Ok(LockedFile::Unsupported),
    }
}

fn read(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    File::open(path)?.take(256).read_to_string(&mut text)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_launcher_has_a_folder_and_the_same_one_again() {
        let folder = std::env::temp_dir().join(format!("rlaunch-node-folder-{}", std::process::id()));
        let take = |host| take(&folder, host).unwrap();
        let seen = |taken: &NodeFolder| {
            (taken.path.strip_prefix(&folder).unwrap().display().to_string(), taken.taken_by.clone())
        };
        for _ in 0..2 {
            let first = take("a");
            assert_eq!(seen(&first), (String::new(), None));
            let others = [take("b"), take("b"), take("c")].each_ref().map(seen);
            let other = |name: &str| (name.to_owned(), Some("a".to_owned()));
            assert_eq!(others.clone().map(|(path, _)| path), ["node-b", "node-b.2", "node-c"]);
            assert_eq!(others[1], other("node-b.2"));
            drop(first);
            // Those of the other launchers are free again as well.
        }
        let first = take("b");
        assert_eq!(seen(&first), ("node-b".to_owned(), None), "the order does not matter in the next job");
        assert_eq!(seen(&take("a")), (String::new(), None));
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
