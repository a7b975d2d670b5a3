//! Retired words: private language that was replaced by the field's terms, and must not come back. The check reads
//! identifiers, comments, texts and docs alike: `EtcdDesk`, `etcd_desk` and "the desk" all contain "desk".

use super::{Source, assert_none, read, rust_sources};

/// A word or phrase, and what to write instead.
const RETIRED: [(&str, &str); 37] = [
    ("anybody", "name the process: a client, a rank, a node"),
    ("birth", "start, fork request"),
    ("desk", "handler, session"),
    ("dialect", "framework"),
    ("dialects", "frameworks"),
    ("door", "front end"),
    ("doors", "front ends"),
    ("ended well", "exited successfully"),
    ("everybody", "name the processes"),
    ("hub", "event loop"),
    ("in the words of", "in the form of; Paddle's, torchrun's"),
    ("is told", "receives, is set to"),
    ("are told", "receive, are set to"),
    ("keeper", "lease keep-alive"),
    ("last words", "last lines, failure report"),
    ("ledger", "memory budget"),
    ("meeting", "rendezvous"),
    ("newborn", "forked rank"),
    ("nobody", "name the process: no client, no rank"),
    ("nursery", "spawner"),
    ("of itself", "by itself"),
    ("office", "leader"),
    ("older elastic", "legacy elastic"),
    ("older launcher", "legacy launcher"),
    ("older words", "legacy options"),
    ("parting", "node exit"),
    ("roll", "participants, node registry"),
    ("seal", "auth, MAC"),
    ("seat", "node state"),
    ("somebody", "name the process: another process, the user"),
    ("surroundings", "base environment"),
    ("taken for dead", "considered dead"),
    ("taken for lost", "considered lost"),
    ("tie", "rendezvous backend"),
    ("told", "env delta; set, sent, received"),
    ("verdictum", "outcome"),
    ("whoever", "name the process"),
];

/// Text that may contain a retired word, because a user's script or another project spells it so.
const ALLOWED: [&str; 6] = ["--dialect", "RLAUNCH_DIALECT", "GitHub", "\"dialect\"", "\"meeting\"", "\"told\""];

/// Files that may contain a word, because it is a public name there: an attribute of a report, an old option.
const PUBLIC_NAMES: [(&str, &str); 4] = [
    ("rlaunch/report.py", "told"),
    // The kernel's name (F_ADD_SEALS, fcntl(2)).
    ("sys/io/shared_words.rs", "seal"),
    // A variable of Hugging Face's.
    ("ecosystem/ecosystem_jobs.py", "hub"),
    ("python/launch/test_launch_api.py", "told"),
];

/// The words of a text, in lower case: identifiers are split at `_` and at capital letters.
fn words(line: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut word = String::new();
    let mut last_is_lower = false;
    for character in line.chars() {
        let begins = character.is_uppercase() && last_is_lower;
        if !character.is_alphabetic() || begins {
            words.push(std::mem::take(&mut word));
        }
        if character.is_alphabetic() {
            word.extend(character.to_lowercase());
        }
        last_is_lower = character.is_lowercase();
    }
    words.push(word);
    words.retain(|word| !word.is_empty());
    words
}

fn violations(folder: &str, sources: &[Source]) -> Vec<String> {
    let mut found = Vec::new();
    for source in sources {
        for (number, line) in source.text.lines().enumerate() {
            let line = ALLOWED.iter().fold(line.to_owned(), |line, allowed| line.replace(allowed, " "));
            let text = format!(" {} ", words(&line).join(" "));
            let is_public =
                |word: &str| PUBLIC_NAMES.iter().any(|(file, name)| source.path.ends_with(file) && *name == word);
            let retired = RETIRED.iter().filter(|(word, _)| text.contains(&format!(" {word} ")) && !is_public(word));
            for (word, instead) in retired {
                let at = format!("{folder}/{}:{}", source.path.display(), number + 1);
                found.push(format!("{at}: \"{word}\" is retired; write: {instead}"));
            }
        }
    }
    found
}

#[test]
fn the_source_has_no_retired_words() {
    assert_none(&violations("src", &rust_sources()));
}

#[test]
fn the_python_package_has_no_retired_words() {
    assert_none(&violations("python", &read("python", &["py", "pyi"])));
}

#[test]
fn the_docs_have_no_retired_words() {
    assert_none(&violations("docs", &read("docs", &["json", "md"])));
    assert_none(&violations("docs", &read("docs/theme", &["py"])));
    let mut sources = Vec::new();
    for entry in std::fs::read_dir(env!("CARGO_MANIFEST_DIR")).unwrap().flatten() {
        let path = std::path::PathBuf::from(entry.file_name());
        if path.extension().is_some_and(|extension| extension == "md") {
            sources.push(Source { text: std::fs::read_to_string(entry.path()).unwrap(), path });
        }
    }
    assert!(sources.len() > 3, "the pages at the root were not found");
    assert_none(&violations(".", &sources));
}

#[test]
fn the_tests_and_benches_have_no_retired_words() {
    for folder in ["tests", "benches", "examples"] {
        let mut sources = read(folder, &["md", "py", "rs"]);
        assert!(!sources.is_empty(), "no source was found in {folder}");
        sources.retain(|source| !source.path.ends_with("architecture/retired_words.rs"));
        assert_none(&violations(folder, &sources));
    }
}

#[test]
fn seeded_retired_words_are_found() {
    for text in ["struct EtcdDesk;", "fn etcd_desk() {}", "// Whoever comes later", "the older launcher", "HUB_SIZE"] {
        assert_eq!(violations("src", &[Source::seeded("run/a.rs", text)]).len(), 1, "{text}");
    }
    for text in ["a desktop", "rollback", "on GitHub", "unsealed"] {
        assert_eq!(violations("src", &[Source::seeded("run/a.rs", text)]), Vec::<String>::new(), "{text}");
    }
}
