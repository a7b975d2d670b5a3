//! One name means one type: no two public types of the crate share a name.

use super::{Source, assert_none, rust_sources};
use std::collections::BTreeMap;

fn public_types(source: &Source) -> Vec<String> {
    let name = |line: &str| {
        let declared = line.strip_prefix("pub ").or_else(|| line.strip_prefix("pub(crate) "))?;
        let mut words = declared.split(|c: char| !c.is_alphanumeric() && c != '_');
        ["struct", "enum", "trait", "type"].contains(&words.next()?).then(|| words.next().map(str::to_owned))?
    };
    source.code().lines().filter_map(name).collect()
}

fn shared_names(sources: &[Source]) -> Vec<String> {
    let mut files: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for source in sources {
        for name in public_types(source) {
            files.entry(name).or_default().push(source.path.display().to_string());
        }
    }
    let shared = files.into_iter().filter(|(_, files)| files.len() > 1);
    shared.map(|(name, files)| format!("{name} is defined in {}", files.join(" and "))).collect()
}

#[test]
fn no_two_public_types_share_a_name() {
    let sources = rust_sources();
    assert!(sources.iter().flat_map(public_types).count() > 100, "no types were found");
    assert_none(&shared_names(&sources));
}

#[test]
fn a_seeded_second_type_is_found() {
    let first = Source::seeded("run/report.rs", "pub struct Report {\n}");
    let second = Source::seeded("supervise/report.rs", "pub enum Report<T> {\n}");
    assert_eq!(shared_names(&[first, second]).len(), 1);
}
