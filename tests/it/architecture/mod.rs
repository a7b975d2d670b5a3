//! Architecture rules, checked on the source text. Each rule is a function from sources to violations, and each is
//! also run on a source with a seeded violation, so that no check can pass by finding nothing.

mod circles;
mod floors;
mod layout;
mod names;
mod retired_words;

use std::fs;
use std::path::{Path, PathBuf};

/// A file: its path below the folder that was read, and its text.
struct Source {
    path: PathBuf,
    text: String,
}

impl Source {
    #[cfg(test)]
    fn seeded(path: &str, text: &str) -> Self {
        Self { path: path.into(), text: text.to_owned() }
    }

    /// The text without comments and without the tests at its end.
    fn code(&self) -> String {
        let text = self.text.split("#[cfg(test)]").next().unwrap_or_default();
        let without_comment = |line: &str| line.split("//").next().unwrap_or_default().to_owned();
        text.lines().map(without_comment).collect::<Vec<_>>().join("\n")
    }

    /// The module's path below the crate: `cli/common/startup.rs` and `cli/common/startup/mod.rs` are one.
    fn module(&self) -> Vec<String> {
        let mut module: Vec<String> =
            self.path.with_extension("").iter().map(|part| part.to_string_lossy().into_owned()).collect();
        if module.last().is_some_and(|name| name == "mod" || name == "lib") {
            module.pop();
        }
        module
    }
}

/// The files below a folder of the project whose extension is one of these.
fn read(folder: &str, extensions: &[&str]) -> Vec<Source> {
    fn walk(folder: &Path, extensions: &[&str], found: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(folder).unwrap().flatten() {
            let path = entry.path();
            if path.is_dir() {
                walk(&path, extensions, found);
            } else if path.extension().is_some_and(|e| extensions.iter().any(|wanted| e == *wanted)) {
                found.push(path);
            }
        }
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
    let mut found = Vec::new();
    walk(&root, extensions, &mut found);
    found.sort();
    let read = |path: PathBuf| Source {
        text: fs::read_to_string(&path).unwrap(),
        path: path.strip_prefix(&root).unwrap().to_path_buf(),
    };
    found.into_iter().map(read).collect()
}

fn rust_sources() -> Vec<Source> {
    let found = read("src", &["rs"]);
    assert!(found.len() > 30, "the source was not found");
    found
}

/// Fails with one line for each violation.
#[track_caller]
fn assert_none(violations: &[String]) {
    assert!(violations.is_empty(), "{} violations:\n{}", violations.len(), violations.join("\n"));
}
