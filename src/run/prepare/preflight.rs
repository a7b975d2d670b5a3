//! Checks before ranks start: the program, the script, lengths of arguments, limits of open files.

use crate::probe::memory;
use crate::rendezvous::torch_store::StoreLimits;
use crate::run::output::log_files::plain;
use crate::spec::{Script, SpecError};
use crate::sys::process::limits;
use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, AtFlags};
use nix::unistd::{AccessFlags, access, faccessat};
use std::ffi::{OsStr, OsString};
use std::fs::OpenOptions;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Whether execve may run a file: by the effective ids and the capabilities of this process, unlike access(2).
fn may_execute(path: &Path) -> nix::Result<()> {
    match faccessat(AT_FDCWD, path, AccessFlags::X_OK, AtFlags::AT_EACCESS) {
        // A sandbox denies faccessat2(2), of which it does not know.
        Err(Errno::EPERM | Errno::ENOSYS) => access(path, AccessFlags::X_OK),
        result => result,
    }
}

/// Finds the program of a command line as a shell does, and checks that it is executable. `field`: what names it.
pub fn find_program(field: &str, name: &OsStr, path: Option<&OsStr>) -> Result<PathBuf, SpecError> {
    let error = |why: &str, hint: &str| Err(SpecError::new(field, name.to_string_lossy(), why, hint));
    let executable = |p: &Path| p.is_file() && may_execute(p).is_ok();
    if name.as_encoded_bytes().contains(&b'/') {
        let found = PathBuf::from(name);
        return match () {
            () if executable(&found) => Ok(found),
            () if !found.exists() => error("does not exist", "give the path of a program or of a .py file"),
            () => error("cannot be executed", "chmod +x it, or name it *.py to have Python run it"),
        };
    }
    let path = path.map_or(b"/usr/local/bin:/usr/bin:/bin".as_slice(), OsStr::as_bytes);
    for folder in path.split(|b| *b == b':') {
        let found = Path::new(OsStr::from_bytes(if folder.is_empty() { b"." } else { folder })).join(name);
        if executable(&found) {
            return Ok(found);
        }
    }
    if name.as_encoded_bytes().contains(&b' ') {
        return error("is not a program in PATH", "it has to be the name or path of one program, without arguments");
    }
    error("is not a program in PATH", "give its path (./ for this folder), or a .py file for Python to run")
}

/// The longest first line of a script that Linux reads (execve(2)).
const MAX_FIRST_LINE: usize = 256;

/// Checks that the interpreter of a program exists, if it is a script (`#!`). A rank would find out only when it starts.
pub fn check_interpreter(program: &Path) -> Result<(), SpecError> {
    let mut head = [0; MAX_FIRST_LINE];
    let opened = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(program);
    // Not every program that can be executed can be read.
    let Ok(length) = opened.and_then(|mut file| file.read(&mut head)) else { return Ok(()) };
    let Some(line) = head[..length].strip_prefix(b"#!") else { return Ok(()) };
    let line = line.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let mut words = line.split(|byte| b" \t".contains(byte)).filter(|word| !word.is_empty());
    let Some(interpreter) = words.next().map(|word| Path::new(OsStr::from_bytes(word))) else { return Ok(()) };
    match may_execute(interpreter) {
        Ok(()) => Ok(()),
        Err(error) => Err(SpecError::new(
            "training_script",
            program.to_string_lossy(),
            format!("cannot be started by its interpreter {}: {}", interpreter.display(), error.desc()),
            "correct its first line",
        )),
    }
}

/// Checks a script that Python will run.
pub fn check_script(script: &Script) -> Result<(), SpecError> {
    let (Script::File(name) | Script::Python(name)) = script else { return Ok(()) };
    if !script.runs_in_python() {
        return if Path::new(name).is_dir() { Err(directory(name)) } else { Ok(()) };
    }
    let refuse = |why: String, hint: &str| Err(SpecError::new("training_script", name.to_string_lossy(), why, hint));
    // O_NONBLOCK: does not wait for the writer of a FIFO.
    match OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(name) {
        Ok(file) if file.metadata().is_ok_and(|m| m.is_dir()) => Err(directory(name)),
        Ok(_) => Ok(()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            refuse("does not exist".into(), "check the path; options of the launcher go before the script")
        }
        Err(error) => refuse(format!("cannot be read: {}", plain(&error)), "check its permissions"),
    }
}

fn directory(name: &OsStr) -> SpecError {
    SpecError::new(
        "training_script",
        name.to_string_lossy(),
        "is a directory",
        "name the script in it, or use --module for a package",
    )
}

/// Size limit in bytes of files that the launcher reads.
const MAX_FILE_SIZE: u64 = 64 << 20;

/// Reads a file that the option or variable `field` names. Does not wait for the writer of a FIFO.
pub fn read(field: &str, path: &str) -> Result<String, SpecError> {
    let read = || -> io::Result<String> {
        let opened = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
        if !opened.metadata()?.is_file() {
            return Err(io::Error::other("it is not a regular file"));
        }
        let mut text = String::new();
        opened.take(MAX_FILE_SIZE).read_to_string(&mut text)?;
        Ok(text)
    };
    read().map_err(|error| {
        let why = format!("cannot be read: {}", plain(&error));
        SpecError::new(field, path, why, "check the path")
    })
}

/// Checks that execve accepts each argument: it refuses strings of 128 KiB or more.
pub fn check_lengths(argv: &[OsString]) -> Result<(), SpecError> {
    match argv.iter().enumerate().find(|(_, arg)| arg.len() >= limits::MAX_ARG_STRLEN) {
        None => Ok(()),
        Some((index, arg)) => Err(SpecError::new(
            format!("argument {index} of the ranks' command"),
            arg.to_string_lossy(),
            format!("is {} bytes long; Linux accepts at most {}", arg.len(), limits::MAX_ARG_STRLEN - 1),
            "write it to a file and pass the path",
        )),
    }
}

/// Descriptors of the launcher for each rank: its pidfd, its lifeline, its port lease and the file for its exception.
pub const FDS_OF_LAUNCH: u64 = 4;
/// Descriptors of a program that calls `spawn` for each rank: its pidfd, its lifeline, its port lease, two for its results, and
/// with the fork server the pipe of its status and its sentinel.
pub const FDS_OF_SPAWN: u64 = 7;
/// Descriptors of the launcher for each torchrun worker: its pidfd, its lifeline, the file for its exception, a port lease for
/// Paddle's variables, and of each captured stream its pipe, the eventfd of its copier, and its log three times.
const FDS_OF_WORKER: u64 = 14;
const FDS_OF_LAUNCHER: u64 = 32;

fn needed(ranks: usize, each: u64) -> u64 {
    (ranks as u64).saturating_mul(each).saturating_add(FDS_OF_LAUNCHER + limits::open_now())
}

/// Open files that a launcher of this many ranks needs, with any front end.
pub fn files_needed(ranks: usize) -> u64 {
    needed(ranks, FDS_OF_WORKER)
}

/// Raises the soft limit of open files for `ranks` ranks with `each` descriptors. `field`: the option that sets their number.
/// Returns the previous soft limit, which the ranks should get back, if it was raised.
pub fn raise_file_limit(field: &str, ranks: usize, each: u64) -> Result<Option<u64>, SpecError> {
    let needed = needed(ranks, each);
    let (soft, hard) = limits::open_files();
    if limits::raise_open_files(needed) < needed {
        return Err(SpecError::new(
            field,
            ranks.to_string(),
            format!("needs {needed} open files, and the hard limit is {hard}"),
            "start fewer ranks, or raise the limit (ulimit -Hn)",
        ));
    }
    Ok((soft < needed).then_some(soft))
}

/// The same for workers with a store that the launcher serves. The number of its connections is unknown, so the limit is
/// raised to the hard limit.
pub fn raise_file_limit_for_store(field: &str, workers: usize) -> Result<Option<u64>, SpecError> {
    let before = raise_file_limit(field, workers, FDS_OF_WORKER)?;
    let (soft, hard) = limits::open_files();
    Ok(before.or((limits::raise_open_files(hard) > soft).then_some(soft)))
}

/// The limits of a store beside this number of workers, after the file limit has been raised.
pub fn store_limits(workers: usize) -> StoreLimits {
    let spare = limits::open_files().0.saturating_sub(needed(workers, FDS_OF_WORKER));
    StoreLimits::of(memory::total(Path::new("/")), spare)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_whose_interpreter_is_missing_is_refused() {
        let program = std::env::temp_dir().join(format!("rlaunch-interpreter-{}", std::process::id()));
        let checked = |text: &str| {
            std::fs::write(&program, text).unwrap();
            check_interpreter(&program).map_err(|error| error.to_string())
        };
        for text in ["#!/bin/sh\n", "#! /bin/sh -e\n", "#!/bin/sh", "#!\n", "", "\x7fELF #!/no\n"] {
            assert_eq!(checked(text), Ok(()), "{text:?}");
        }
        for text in ["#!/no/such\n", "#! /no/such -u\n", "#!\t/no/such", "#!/etc/passwd\n"] {
            let why = checked(text).unwrap_err();
            assert!(why.contains("interpreter /no/such: No such file") || why.contains("Permission denied"), "{why}");
        }
        std::fs::remove_file(&program).unwrap();
        assert_eq!(check_interpreter(&program), Ok(()), "another check names it");
    }
}
