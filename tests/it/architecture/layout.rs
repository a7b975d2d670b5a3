//! Files start with what they are for and stay short; folders stay small; no file is a dumping ground.

use super::{Source, assert_none, read, rust_sources};
use std::collections::BTreeMap;

const MOST_LINES: usize = 500;
/// `mod.rs` and `__init__.py` are not counted.
const MOST_FILES: usize = 12;
const DUMPING_GROUNDS: [&str; 5] = ["utils", "util", "helpers", "misc", "common"];

fn long_files(sources: &[Source]) -> Vec<String> {
    let lines = |source: &Source| (source.path.display().to_string(), source.text.lines().count());
    let long = sources.iter().map(lines).filter(|(_, lines)| *lines > MOST_LINES);
    long.map(|(path, lines)| format!("{path} has {lines} lines; the limit is {MOST_LINES}")).collect()
}

fn large_folders(sources: &[Source]) -> Vec<String> {
    let mut folders: BTreeMap<_, usize> = BTreeMap::new();
    for source in sources {
        if !source.path.ends_with("mod.rs") && !source.path.ends_with("__init__.py") {
            *folders.entry(source.path.parent()).or_default() += 1;
        }
    }
    let large = folders.into_iter().filter(|(_, files)| *files > MOST_FILES);
    large.map(|(folder, files)| format!("{folder:?} has {files} files; the limit is {MOST_FILES}")).collect()
}

fn unexplained(sources: &[Source]) -> Vec<String> {
    let has_head = |source: &&Source| !source.text.starts_with("//! ");
    sources.iter().filter(has_head).map(|source| format!("{} has no module doc", source.path.display())).collect()
}

fn dumping_grounds(sources: &[Source]) -> Vec<String> {
    let is_one =
        |source: &&Source| DUMPING_GROUNDS.iter().any(|name| source.path.file_stem().is_some_and(|s| s == *name));
    let found = sources.iter().filter(is_one);
    found.map(|source| format!("{}: the name does not say what is in it", source.path.display())).collect()
}

#[test]
fn rust_files_are_explained_and_short_and_folders_small() {
    let sources = rust_sources();
    assert_none(
        &[long_files(&sources), large_folders(&sources), unexplained(&sources), dumping_grounds(&sources)].concat(),
    );
}

#[test]
fn python_files_are_short_and_folders_small() {
    let sources = read("python", &["py"]);
    assert_none(&[long_files(&sources), large_folders(&sources), dumping_grounds(&sources)].concat());
}

#[test]
fn test_files_are_short_and_folders_small() {
    for kind in ["rs", "py"] {
        let sources = read("tests", &[kind]);
        assert_none(&[long_files(&sources), large_folders(&sources)].concat());
    }
}

#[test]
fn a_seeded_violation_of_each_layout_rule_is_found() {
    let long = Source::seeded("run/long.rs", &"//! Long.\n".repeat(MOST_LINES + 1));
    assert_eq!(long_files(&[long]).len(), 1);
    let many: Vec<_> = (0..=MOST_FILES).map(|n| Source::seeded(&format!("run/file{n}.rs"), "//! One.")).collect();
    assert_eq!(large_folders(&many).len(), 1);
    assert_eq!(unexplained(&[Source::seeded("run/plain.rs", "use std::fs;")]).len(), 1);
    assert_eq!(dumping_grounds(&[Source::seeded("run/utils.rs", "//! All sorts.")]).len(), 1);
}
