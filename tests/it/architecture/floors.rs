//! Folders of `src/` are floors: a module uses strictly lower floors only, the lower floors are pure, and `unsafe` is in
//! `sys` alone.

use super::{Source, assert_none, rust_sources};
use std::path::Path;

/// A folder of `src` and its floor.
const FLOORS: [(&str, u8); 14] = [
    ("model", 0),
    ("framework", 1),
    ("spec", 2),
    ("plan", 3),
    ("supervise", 4),
    ("protocol", 4),
    ("report", 4),
    ("sys", 5),
    ("net", 6),
    ("probe", 6),
    ("rendezvous", 7),
    ("run", 8),
    ("cli", 9),
    ("python", 10),
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

fn floor(path: &Path) -> Option<(&'static str, u8)> {
    let folder = path.iter().next()?.to_str()?;
    FLOORS.into_iter().find(|(name, _)| *name == folder)
}

fn violations(sources: &[Source]) -> Vec<String> {
    let mut found = Vec::new();
    for source in sources {
        let (path, code) = (source.path.display(), source.code());
        let Some((own, level)) = floor(&source.path) else {
            if source.path != Path::new("lib.rs") {
                found.push(format!("{path} is on no floor"));
            }
            continue;
        };
        for (other, other_level) in FLOORS {
            if other != own && other_level >= level && code.contains(&format!("crate::{other}::")) {
                found.push(format!("{path} (floor {level}) uses {other} (floor {other_level})"));
            }
        }
        for word in IMPURE.into_iter().filter(|word| level <= LAST_PURE_FLOOR && code.contains(word)) {
            found.push(format!("{path} is on a pure floor and uses {word}"));
        }
        if own != "sys" && code.contains("unsafe") {
            found.push(format!("{path} has unsafe code"));
        }
        if own != "sys" && code.contains("fastrand::") {
            found.push(format!("{path} draws random numbers whose seed is not the kernel's; use sys::random"));
        }
    }
    found
}

#[test]
fn modules_use_lower_floors_and_the_lower_ones_are_pure() {
    assert_none(&violations(&rust_sources()));
}

#[test]
fn a_seeded_violation_of_each_floor_rule_is_found() {
    let seeded = [
        Source::seeded("plan/devices.rs", "use crate::run::engine;"),
        Source::seeded("supervise/stop.rs", "let now = Instant::now();"),
        Source::seeded("run/engine.rs", "unsafe { fork() }"),
        Source::seeded("run/engine.rs", "fastrand::alphanumeric()"),
        Source::seeded("extra/file.rs", ""),
    ];
    for source in seeded {
        assert_eq!(violations(&[source]).len(), 1);
    }
}
