//! Access to `/proc/PID` by number, after proof that /proc belongs to the PID namespace of this process. Under
//! `unshare --pid` without `--mount-proc` it does not, and a number read from it is that of a stranger here.

mod held_threads;
pub mod namespace;
pub mod reader;
pub mod snapshot;
pub mod stat;
pub mod status;

use std::fs::{File, ReadDir};
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicI32, Ordering};
use thiserror::Error;

/// Why processes are not looked up in /proc.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ProcfsUnusable {
    /// It is not mounted, or does not show this process.
    #[error("/proc is not mounted")]
    Missing,
    /// It shows the processes of another PID namespace.
    #[error("/proc is that of another PID namespace (`unshare --pid` without `--mount-proc`?)")]
    Foreign,
}

/// The process that has proven last that /proc is its own. A process that was forked from it proves that anew.
static PROVEN_BY: AtomicI32 = AtomicI32::new(0);

fn this() -> i32 {
    std::process::id() as i32
}

/// Checks that /proc belongs to the PID namespace of this process.
pub fn verify() -> Result<(), ProcfsUnusable> {
    let link = std::fs::read_link("/proc/self").map_err(|_| ProcfsUnusable::Missing)?;
    let status = std::fs::read("/proc/self/status").map_err(|_| ProcfsUnusable::Missing)?;
    let proven = judge(&link, &String::from_utf8_lossy(&status), this());
    PROVEN_BY.store(if proven.is_ok() { this() } else { 0 }, Ordering::Relaxed);
    proven
}

/// `link` and `status`: /proc/self and /proc/self/status. The number alone could be the same in both namespaces. NSpid has
/// one number for each namespace from that of /proc down to that of the process (proc_pid_status(5)).
fn judge(link: &Path, status: &str, pid: i32) -> Result<(), ProcfsUnusable> {
    let is_this = |text: &str| text.parse() == Ok(pid);
    let mut numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:")).map(str::split_whitespace);
    // A kernel without PID namespaces has no such line.
    let is_only =
        numbers.as_mut().is_none_or(|numbers| numbers.next().is_some_and(is_this) && numbers.next().is_none());
    if link.to_str().is_some_and(is_this) && is_only { Ok(()) } else { Err(ProcfsUnusable::Foreign) }
}

/// Whether numbers in /proc are those of this process's PID namespace.
pub fn is_own() -> bool {
    PROVEN_BY.load(Ordering::Relaxed) == this() || verify().is_ok()
}

fn proven() -> io::Result<()> {
    if is_own() { Ok(()) } else { Err(io::ErrorKind::Unsupported.into()) }
}

/// Reads `/proc/PID/NAME`.
pub fn read(pid: i32, name: &str) -> io::Result<Vec<u8>> {
    proven()?;
    std::fs::read(format!("/proc/{pid}/{name}"))
}

/// The file name of the program that a process runs; `None` if this process may not see it (ptrace(2), "Ptrace access mode checking").
pub fn program(pid: i32) -> Option<String> {
    proven().ok()?;
    let path = std::fs::read_link(format!("/proc/{pid}/exe")).ok()?;
    let name = path.file_name()?.to_str()?;
    // Since an update, maybe (proc_pid_exe(5)).
    Some(name.strip_suffix(" (deleted)").unwrap_or(name).to_owned())
}

/// Reads a short file `/proc/PID/NAME` by one read(2), which returns all of it: half the system calls of `read`.
fn read_short(pid: i32, name: &str) -> io::Result<Vec<u8>> {
    proven()?;
    let mut bytes = vec![0; 1024];
    let length = File::open(format!("/proc/{pid}/{name}"))?.read(&mut bytes)?;
    bytes.truncate(length);
    Ok(bytes)
}

/// Lists `/proc/PID/NAME`.
pub fn list(pid: i32, name: &str) -> io::Result<ReadDir> {
    proven()?;
    std::fs::read_dir(format!("/proc/{pid}/{name}"))
}

/// Fails if this process cannot open the two files at once that a list of processes takes: without descriptors or memory all
/// lists are empty. A missing /proc is another matter (`verify`).
pub fn check_descriptors() -> io::Result<()> {
    let opened = File::open("/proc").and_then(|folder| Ok((folder, File::open("/proc/self/stat")?)));
    match opened {
        Err(error) if matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM)) => Err(error),
        _ => Ok(()),
    }
}

/// All process ids that /proc lists.
pub fn pids() -> Vec<i32> {
    let listed = proven().and_then(|()| std::fs::read_dir("/proc"));
    let number = |name: &[u8]| std::str::from_utf8(name).ok()?.parse().ok();
    listed.into_iter().flatten().flatten().filter_map(|entry| number(entry.file_name().as_bytes())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tests_run_with_their_own_proc() {
        assert_eq!(verify(), Ok(()));
        assert!(is_own() && pids().contains(&this()) && read(this(), "stat").is_ok());
    }

    #[test]
    fn an_equal_number_is_no_proof() {
        let judge = |link: &str, status: &str| judge(Path::new(link), status, 7);
        assert_eq!(judge("7", "Name:\tx\nNSpid:\t7\nNSpgid:\t7\n"), Ok(()));
        assert_eq!(judge("7", "Name:\tx\nPid:\t7\n"), Ok(()), "a kernel without PID namespaces");
        for (link, status) in [("1234", "NSpid:\t1234\t7\n"), ("7", "NSpid:\t7\t7\n"), ("7", "NSpid:\n"), ("x", "")] {
            assert_eq!(judge(link, status), Err(ProcfsUnusable::Foreign), "{link} {status}");
        }
    }
}
