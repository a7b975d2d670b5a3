//! No two files import each other. A `mod.rs` that re-exports a child counts as importing it only by the child's own
//! imports of the `mod.rs`: a child that needs a type imports it from the file that defines it.

use super::{Source, assert_none, rust_sources};
use std::collections::{BTreeMap, BTreeSet};

type Module = Vec<String>;

/// The paths that a `use` tree names: `a::{b, c::d}` gives `a::b` and `a::c::d`.
fn leaves(tree: &str, prefix: &[String], found: &mut Vec<Module>) {
    let tree = tree.trim();
    if let Some(inner) = tree.strip_prefix('{').and_then(|rest| rest.strip_suffix('}')) {
        let (mut depth, mut start) = (0, 0);
        for (at, character) in inner.char_indices() {
            match character {
                '{' => depth += 1,
                '}' => depth -= 1,
                ',' if depth == 0 => {
                    leaves(&inner[start..at], prefix, found);
                    start = at + 1;
                }
                _ => {}
            }
        }
        leaves(&inner[start..], prefix, found);
    } else if let Some((first, rest)) = tree.split_once("::").filter(|(first, _)| !first.contains('{')) {
        leaves(rest, &[prefix, &[first.trim().to_owned()]].concat(), found);
    } else if !tree.is_empty() {
        let name = tree.split_whitespace().next().unwrap_or_default().to_owned();
        found.push([prefix, &[name]].concat());
    }
}

/// The paths that the code names: those of `use` items, and those that begin with `crate::` or `super::` elsewhere.
fn named_paths(code: &str) -> Vec<Module> {
    let mut found = Vec::new();
    for item in code.split(';') {
        let at =
            item.rfind("use ").filter(|at| item[..*at].chars().last().is_none_or(|c| c.is_whitespace() || c == ')'));
        if let Some(at) = at {
            leaves(&item[at + 4..].split_whitespace().collect::<Vec<_>>().join(" "), &[], &mut found);
        }
    }
    let is_part = |c: char| c.is_alphanumeric() || c == '_' || c == ':';
    for path in code.split(|c| !is_part(c)).filter(|path| path.starts_with("crate::") || path.starts_with("super::")) {
        found.push(path.split("::").map(str::to_owned).collect());
    }
    found
}

/// The file that a path leads to, seen from `module`.
fn target(path: &[String], module: &[String], files: &BTreeSet<Module>) -> Option<Module> {
    let mut path = path;
    let mut absolute = match path.first()?.as_str() {
        "crate" => Vec::new(),
        "self" | "super" => module.to_vec(),
        first => files.contains(&[module, &[first.to_owned()]].concat()).then(|| module.to_vec())?,
    };
    while let Some(first) = path.first().filter(|first| ["crate", "self", "super"].contains(&first.as_str())) {
        if first == "super" {
            absolute.pop();
        }
        path = &path[1..];
    }
    absolute.extend_from_slice(path);
    (1..=absolute.len()).rev().map(|n| absolute[..n].to_vec()).find(|prefix| files.contains(prefix))
}

fn circles(sources: &[Source]) -> Vec<String> {
    let files: BTreeSet<Module> = sources.iter().map(Source::module).collect();
    let mut imports: BTreeMap<Module, BTreeSet<Module>> = BTreeMap::new();
    for source in sources.iter().filter(|source| !source.module().is_empty()) {
        let module = source.module();
        let targets = named_paths(&source.code()).into_iter().filter_map(|path| target(&path, &module, &files));
        imports.insert(module.clone(), targets.filter(|target| *target != module).collect());
    }
    let mutual = |from: &Module, to: &Module| from < to && imports.get(to).is_some_and(|back| back.contains(from));
    let pairs = imports.iter().flat_map(|(from, targets)| targets.iter().map(move |to| (from, to)));
    let found = pairs.filter(|(from, to)| mutual(from, to));
    found.map(|(from, to)| format!("{} and {} import each other", from.join("/"), to.join("/"))).collect()
}

#[test]
fn no_two_files_import_each_other() {
    assert_none(&circles(&rust_sources()));
}

#[test]
fn seeded_circles_are_found() {
    let uses = [
        ("use crate::run::b::B;", "use crate::run::{a::A, c};"),
        ("use super::b;", "use std::fs;\nuse super::{\n    a::{A, C},\n};"),
        ("pub use super::b::B;", "fn f() { crate::run::a::g() }"),
    ];
    for (a, b) in uses {
        let sources = [Source::seeded("run/a.rs", a), Source::seeded("run/b.rs", b), Source::seeded("run/mod.rs", "")];
        assert_eq!(circles(&sources).len(), 1, "{a} {b}");
    }
    let child = Source::seeded("run/a.rs", "use super::Root;");
    let parent = Source::seeded("run/mod.rs", "pub mod a;\npub use a::A;\npub struct Root;");
    assert_eq!(circles(&[child, parent]).len(), 1);
}
