//! The house rules, checked on the source text: floors, purity, `unsafe`, heads, sizes, names.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // A test fails by panicking.

use std::fs;
use std::path::{Path, PathBuf};

/// A folder of `src` and its floor. A module uses strictly lower floors only.
const FLOORS: [(&str, u8); 12] = [
    ("model", 0),
    ("dialect", 1),
    ("spec", 2),
    ("plan", 3),
    ("supervise", 4),
    ("log", 4),
    ("sys", 5),
    ("probe", 5),
    ("rendezvous", 5),
    ("run", 6),
    ("cli", 7),
    ("python", 8),
];

/// Up to this floor: no clock, no environment, no files, no network, no threads.
const LAST_PURE_FLOOR: u8 = 4;
const IMPURE: [&str; 9] = [
    "std::env",
    "std::fs",
    "std::net",
    "std::thread",
    "std::process",
    "Instant",
    "SystemTime",
    "std::io",
    "nix::unistd",
];

fn sources() -> Vec<(PathBuf, String)> {
    fn walk(folder: &Path, found: &mut Vec<(PathBuf, String)>) {
        for entry in fs::read_dir(folder).unwrap().flatten() {
            let path = entry.path();
            if path.is_dir() {
                walk(&path, found);
            } else if path.extension().is_some_and(|e| e == "rs") {
                found.push((path.clone(), fs::read_to_string(&path).unwrap()));
            }
        }
    }
    let mut found = Vec::new();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    walk(&root, &mut found);
    for (path, _) in &mut found {
        *path = path.strip_prefix(&root).unwrap().to_path_buf();
    }
    assert!(found.len() > 30, "the source was not found");
    found
}

fn floor(path: &Path) -> Option<(&'static str, u8)> {
    let folder = path.components().next()?.as_os_str().to_str()?.to_owned();
    FLOORS.into_iter().find(|(name, _)| *name == folder)
}

/// The source without comments, and without the tests at its end.
fn code(text: &str) -> String {
    let text = text.split("#[cfg(test)]").next().unwrap();
    text.lines().map(|l| l.split("//").next().unwrap()).collect::<Vec<_>>().join("\n")
}

#[test]
fn every_folder_has_a_floor() {
    for (path, _) in sources() {
        assert!(floor(&path).is_some() || path == Path::new("lib.rs"), "{} stands on no floor", path.display());
    }
}

#[test]
fn modules_use_strictly_lower_floors() {
    for (path, text) in sources() {
        let Some((own, level)) = floor(&path) else { continue };
        for (other, other_level) in FLOORS {
            let uses = code(&text).contains(&format!("crate::{other}"));
            assert!(!uses || other == own || other_level < level, "{} uses {other}", path.display());
        }
    }
}

#[test]
fn lower_floors_are_pure() {
    for (path, text) in sources() {
        if floor(&path).is_none_or(|(_, level)| level > LAST_PURE_FLOOR) {
            continue;
        }
        for word in IMPURE {
            assert!(!code(&text).contains(word), "{} uses {word}", path.display());
        }
    }
}

#[test]
fn unsafe_is_in_sys_alone() {
    for (path, text) in sources() {
        if floor(&path).is_none_or(|(name, _)| name != "sys") {
            assert!(!code(&text).contains("unsafe"), "{} has unsafe code", path.display());
        }
    }
}

#[test]
fn files_begin_with_what_they_are_for_and_stay_small() {
    for (path, text) in sources() {
        assert!(text.starts_with("//! "), "{} does not say what it is for", path.display());
        let lines = text.lines().count();
        assert!(lines <= 500, "{} has {lines} lines", path.display());
        let name = path.file_stem().unwrap().to_str().unwrap();
        assert!(!["utils", "util", "helpers", "misc", "common"].contains(&name), "{} says nothing", path.display());
    }
}
