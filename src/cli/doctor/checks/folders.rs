//! The log folder and /dev/shm: whether files can be created, and room.

use crate::cli::doctor::facts::{Facts, FolderFacts, FolderState};
use crate::cli::doctor::finding::{Finding, error, ok, unknown, warning};
use crate::probe::disk::DiskSpace;
use crate::probe::memory::size;

/// Logs of a job that prints much.
const LITTLE_FOR_LOGS: u64 = 1 << 30;
/// Batches of data loaders; Docker's /dev/shm of 64 MiB is too small.
const LITTLE_SHARED_MEMORY: u64 = 512 << 20;
/// What one data loader has in /dev/shm at a time.
const FULL_SHARED_MEMORY: u64 = 64 << 20;
/// Files of the logs and records of a job.
const FEW_FILES_LEFT: u64 = 1000;

pub(super) fn check(facts: &Facts) -> Vec<Finding> {
    vec![log_dir(&facts.log_dir), shared_memory(&facts.shared_memory)]
}

fn log_dir(facts: &FolderFacts) -> Finding {
    let path = facts.path.display();
    let another = "name another folder: --log_dir, or PADDLE_LOG_DIR";
    let (at, space, writable) = match &facts.state {
        FolderState::There { at, space, writable } => (at, space, writable),
        FolderState::Unusable(why) => return error("log_dir", format!("{path} cannot be used: {why}"), another),
        FolderState::Hangs => {
            let hint = format!("look at its server, or {another}");
            return error(
                "log_dir",
                format!("the file system of {path} does not answer: ranks that write there hang"),
                hint,
            );
        }
    };
    let kind = space.kind.map_or(String::new(), |kind| format!(" ({kind})"));
    let not_yet = if *at == facts.path { "" } else { "; the folder is created by the job" };
    if space.is_read_only {
        return error(
            "log_dir",
            format!("{} is mounted read-only{kind}: no log can be written", at.display()),
            another,
        );
    }
    if let Err(why) = writable {
        return error("log_dir", format!("no file can be created in {}: {why}", at.display()), another);
    }
    if space.total > 0 && space.left == 0 {
        return error(
            "log_dir",
            format!("the file system of {path} is full{kind}"),
            format!("remove old logs there, or {another}"),
        );
    }
    if space.files_left == Some(0) {
        let text = format!("the file system of {path} has no room for another file{kind} (inodes)");
        return error("log_dir", text, format!("remove small files there, or {another}"));
    }
    if space.total == 0 {
        return unknown("log_dir", format!("{path}: its file system{kind} does not say how large it is"));
    }
    if space.left < LITTLE_FOR_LOGS || space.files_left.is_some_and(|left| left < FEW_FILES_LEFT) {
        let files = space.files_left.map_or(String::new(), |left| format!(" and {left} files"));
        let text = format!(
            "{path} has room for {}{files}{kind}: ranks fail when they print into a full disk",
            size(space.left)
        );
        return warning("log_dir", text, format!("remove old logs there, or {another}"));
    }
    ok("log_dir", format!("{path}: {} free{kind}{not_yet}", size(space.left)))
}

fn shared_memory(facts: &FolderFacts) -> Finding {
    let means = "data loaders and NCCL pass data through it, and a rank dies of SIGBUS when it is full";
    let larger = "docker run --shm-size=16g or --ipc=host; in Kubernetes, mount an emptyDir with medium: Memory";
    let mount = "mount -t tmpfs -o mode=1777 shm /dev/shm";
    match &facts.state {
        FolderState::Hangs => unknown("/dev/shm", "it does not answer"),
        FolderState::Unusable(why) => error("/dev/shm", format!("{why}; {means}"), mount),
        FolderState::There { at, .. } if *at != facts.path => {
            error("/dev/shm", format!("does not exist; {means}"), mount)
        }
        FolderState::There { writable: Err(why), .. } => {
            error("/dev/shm", format!("no file can be created: {why}; {means}"), "chmod 1777 /dev/shm")
        }
        FolderState::There { space: DiskSpace { total, left, .. }, .. } => match (*total, *left) {
            (0, _) => ok("/dev/shm", "has no limit of its own"),
            (total, _) if total < LITTLE_SHARED_MEMORY => {
                warning("/dev/shm", format!("{} in all; {means}", size(total)), larger)
            }
            (total, left) if left < FULL_SHARED_MEMORY => warning(
                "/dev/shm",
                format!("{} of {} free; {means}", size(left), size(total)),
                "ls -l /dev/shm: remove the files that processes left behind which have ended",
            ),
            (total, left) => ok("/dev/shm", format!("{} of {} free", size(left), size(total))),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::super::sound::sound;
    use super::*;
    use crate::cli::doctor::finding::Level;
    use std::path::PathBuf;

    const GIB: u64 = 1 << 30;

    fn there(space: DiskSpace) -> FolderState {
        FolderState::There { at: "/x".into(), space, writable: Ok(()) }
    }

    fn space(total: u64, left: u64) -> DiskSpace {
        DiskSpace { total, left, kind: Some("ext4"), ..DiskSpace::default() }
    }

    fn of(check: fn(&FolderFacts) -> Finding, state: FolderState) -> (Level, String) {
        let found = check(&FolderFacts { path: PathBuf::from("/x"), state });
        (found.level, found.text)
    }

    #[test]
    fn a_log_folder_that_cannot_be_used_is_an_error() {
        assert_eq!(log_dir(&sound().log_dir).level, Level::Ok);
        for (state, level, part) in [
            (FolderState::Hangs, Level::Error, "does not answer"),
            (FolderState::Unusable("/x is not a folder".into()), Level::Error, "not a folder"),
            (there(space(GIB, 0)), Level::Error, "is full (ext4)"),
            (there(space(GIB, 3 << 20)), Level::Warning, "room for 3.0 MiB"),
            (there(DiskSpace { is_read_only: true, ..space(GIB, GIB) }), Level::Error, "read-only"),
            (there(DiskSpace { files_left: Some(0), ..space(GIB, GIB) }), Level::Error, "inodes"),
            (there(DiskSpace { files_left: Some(5), ..space(GIB, GIB) }), Level::Warning, "5 files"),
            (there(space(0, 0)), Level::Unknown, "how large"),
            (
                FolderState::There {
                    at: "/x".into(),
                    space: space(GIB, GIB),
                    writable: Err("Permission denied".into()),
                },
                Level::Error,
                "Permission denied",
            ),
        ] {
            let found = of(log_dir, state);
            assert!(found.0 == level && found.1.contains(part), "{found:?}");
        }
    }

    #[test]
    fn little_shared_memory_is_a_warning() {
        for (state, level, part) in [
            (FolderState::Hangs, Level::Unknown, "answer"),
            (
                FolderState::There { at: "/dev".into(), space: space(0, 0), writable: Ok(()) },
                Level::Error,
                "does not exist",
            ),
            (there(space(64 << 20, 64 << 20)), Level::Warning, "64.0 MiB in all"),
            (there(space(8 * GIB, 1 << 20)), Level::Warning, "1.0 MiB of 8.0 GiB free"),
            (there(space(8 * GIB, GIB)), Level::Ok, "1.0 GiB of 8.0 GiB free"),
            (there(space(0, 0)), Level::Ok, "no limit"),
        ] {
            let found = of(shared_memory, state);
            assert!(found.0 == level && found.1.contains(part), "{found:?}");
        }
    }
}
