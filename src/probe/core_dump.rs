//! Where the kernel has put the core file of a process: kernel.core_pattern (core(5)).

use std::path::{Path, PathBuf};
use std::time::SystemTime;

const PATTERN: &str = "/proc/sys/kernel/core_pattern";
const USES_PID: &str = "/proc/sys/kernel/core_uses_pid";

/// Where the core file of a process is, for people. `folder`: its working directory; `started`: it wrote no older file.
pub fn describe_core(pid: u32, folder: &Path, started: SystemTime) -> Option<String> {
    let pattern = std::fs::read_to_string(PATTERN).ok()?;
    let uses_pid = std::fs::read_to_string(USES_PID).is_ok_and(|text| text.trim() != "0");
    describe(pattern.trim_end(), uses_pid, pid, folder, started)
}

fn describe(pattern: &str, uses_pid: bool, pid: u32, folder: &Path, started: SystemTime) -> Option<String> {
    if let Some(command) = pattern.strip_prefix('|') {
        let program = command.split_whitespace().next()?;
        // How systems without core files are set up.
        if matches!(program.rsplit('/').next(), Some("false" | "true")) {
            return None;
        }
        return Some(match program.contains("systemd-coredump") {
            true => format!("its core file: coredumpctl debug {pid}"),
            false => format!("its core file went to {program} (kernel.core_pattern)"),
        });
    }
    // The socket of a program that takes core files (Linux 6.16).
    if pattern.starts_with('@') {
        return Some(format!("its core file went to the socket {pattern} (kernel.core_pattern)"));
    }
    let file = find(pattern, uses_pid, pid, folder, started);
    Some(match file {
        Some(file) => format!("its core file: {}", file.display()),
        None => format!("it has written a core file as {pattern} (kernel.core_pattern)"),
    })
}

/// The newest file that the pattern may mean.
fn find(pattern: &str, uses_pid: bool, pid: u32, folder: &Path, started: SystemTime) -> Option<PathBuf> {
    let at = pattern.rfind('/').map_or(0, |slash| slash + 1);
    let (parent, name) = pattern.split_at(at);
    // "%" in a folder's name, and the like, are left to people.
    if parent.contains('%') {
        return None;
    }
    let suffix = if uses_pid && !name.contains("%p") { ".%p" } else { "" };
    let pieces = pieces(&format!("{name}{suffix}"), pid);
    let entries = std::fs::read_dir(folder.join(parent)).ok()?.filter_map(Result::ok);
    let written = |entry: &std::fs::DirEntry| {
        let metadata = entry.metadata().ok().filter(|metadata| metadata.is_file() && metadata.len() > 0)?;
        metadata.modified().ok()
    };
    let cores = entries.filter(|entry| entry.file_name().to_str().is_some_and(|name| matches(&pieces, name)));
    let dated = cores.filter_map(|entry| Some((written(&entry).filter(|at| *at >= started)?, entry.path())));
    dated.max().map(|(_, file)| file)
}

/// The texts of a file's name between the parts of unknown length.
fn pieces(name: &str, pid: u32) -> Vec<String> {
    let mut pieces = vec![String::new()];
    let mut characters = name.chars();
    while let Some(one) = characters.next() {
        let known = match (one, characters.clone().next()) {
            ('%', Some('p')) => pid.to_string(),
            ('%', Some('%')) => "%".to_owned(),
            ('%', _) => {
                characters.next();
                pieces.push(String::new());
                continue;
            }
            _ => one.to_string(),
        };
        if one == '%' {
            characters.next();
        }
        if let Some(last) = pieces.last_mut() {
            *last += &known;
        }
    }
    pieces
}

fn matches(pieces: &[String], name: &str) -> bool {
    let Some((first, rest)) = pieces.split_first() else { return false };
    let Some(mut left) = name.strip_prefix(first.as_str()) else { return false };
    let Some((last, between)) = rest.split_last() else { return left.is_empty() };
    for piece in between {
        let Some(at) = left.find(piece.as_str()) else { return false };
        left = &left[at + piece.len()..];
    }
    left.ends_with(last.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_matched_by_what_is_known_of_them() {
        let matched = |pattern: &str, name: &str| matches(&pieces(pattern, 42), name);
        assert!(matched("core", "core"));
        assert!(!matched("core", "core.42"));
        assert!(matched("core.%p", "core.42"));
        assert!(!matched("core.%p", "core.421"));
        assert!(matched("core-%e-%p-%t", "core-python3-42-1790000000"));
        assert!(!matched("core-%e-%p-%t", "core-python3-43-1790000000"));
        assert!(matched("100%%.%h", "100%.host"));
        assert!(matched("%", ""));
    }

    #[test]
    fn a_program_that_takes_core_files_is_named() {
        let described = |pattern| describe(pattern, false, 42, Path::new("/"), SystemTime::UNIX_EPOCH);
        let coredumpctl = described("|/usr/lib/systemd/systemd-coredump %P %u");
        assert_eq!(coredumpctl.as_deref(), Some("its core file: coredumpctl debug 42"));
        let apport = described("|/usr/share/apport/apport -p%p");
        assert_eq!(apport.as_deref(), Some("its core file went to /usr/share/apport/apport (kernel.core_pattern)"));
        assert_eq!(described("|/bin/false"), None);
        let unknown = described("/cores/%h/core");
        assert_eq!(unknown.as_deref(), Some("it has written a core file as /cores/%h/core (kernel.core_pattern)"));
    }
}
