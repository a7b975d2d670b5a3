//! The fingerprint of a node: versions of what its ranks run, which nodes exchange at the rendezvous. Only differences are reported.

use std::cmp::Reverse;
use std::collections::BTreeMap;

/// The values of a node by the names of their fields. A field that is missing is unknown, and is not compared.
pub type Fingerprint = BTreeMap<String, String>;

/// The value of a field that was looked for and is not there.
pub const NOT_THERE: &str = "none";

/// A field of a fingerprint.
#[derive(Clone, Copy, Debug)]
struct Field {
    /// Its name in the record of a node.
    name: &'static str,
    /// Its name in messages.
    label: &'static str,
    /// The word of `--require_same` that includes it.
    word: &'static str,
    /// What to do where nodes that have to agree differ.
    remedy: &'static str,
}

/// All fields. A record has no others.
const FIELDS: [Field; 6] = [
    field("python", "Python", "python", "use one version of Python on all nodes"),
    field("torch", "torch", "framework", "install one version of torch on all nodes"),
    field("paddle", "Paddle", "framework", "install one version of Paddle on all nodes"),
    field("jax", "jax", "framework", "install one version of jax on all nodes"),
    field("git", "git commit", "git", "check out one commit on all nodes"),
    field("driver", "NVIDIA driver", "driver", "install one version of the driver on all nodes"),
];

/// The words of `--require_same`.
pub const WORDS: [&str; 4] = ["python", "framework", "git", "driver"];

/// How many values of a field are shown, and how many nodes that have the same are named.
const MAX_SHOWN: usize = 4;

const fn field(name: &'static str, label: &'static str, word: &'static str, remedy: &'static str) -> Field {
    Field { name, label, word, remedy }
}

/// Whether a record may have a field of this name.
pub fn is_field(name: &str) -> bool {
    FIELDS.iter().any(|field| field.name == name)
}

/// The fields that have to be the same by these words of `--require_same`, which are separated by commas.
fn required(words: &str) -> impl Iterator<Item = Field> {
    FIELDS.into_iter().filter(move |field| words.split(',').any(|word| word == field.word))
}

/// The first word of `--require_same` of which this node has no value at all.
pub fn find_unknown<'a>(words: &'a str, own: &Fingerprint) -> Option<&'a str> {
    let is_known = |field: Field| own.get(field.name).is_some_and(|value| value != NOT_THERE);
    words.split(',').find(|word| !word.is_empty() && !required(word).any(is_known))
}

/// Why a node may not join the first one, if they differ in what has to be the same. Each with the name of its host.
pub fn required_difference(words: &str, own: (&str, &Fingerprint), first: (&str, &Fingerprint)) -> Option<String> {
    let value = |node: &Fingerprint, field: Field| node.get(field.name).map_or(NOT_THERE, String::as_str).to_owned();
    let field = required(words).find(|field| value(own.1, *field) != value(first.1, *field))?;
    let Field { label, word, remedy, .. } = field;
    Some(format!(
        "--require_same {word}: {label} is {} on {} and {} on {}, the first node; {remedy}, or leave {word} out",
        value(own.1, field),
        own.0,
        value(first.1, field),
        first.0
    ))
}

/// One line for each field in which these nodes differ. `nodes`: hosts and fingerprints in the order of the nodes' numbers.
pub fn differences(nodes: &[(&str, &Fingerprint)]) -> Vec<String> {
    FIELDS.iter().filter_map(|field| difference(field, nodes)).collect()
}

/// `torch: 2.15.0 on 3 nodes, 2.14.1 on host-b (node 3)`; `None`: all that know the field agree.
fn difference(field: &Field, nodes: &[(&str, &Fingerprint)]) -> Option<String> {
    let mut by_value: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    for (number, (_, fingerprint)) in nodes.iter().enumerate() {
        if let Some(value) = fingerprint.get(field.name) {
            by_value.entry(value).or_default().push(number);
        }
    }
    if by_value.len() < 2 {
        return None;
    }
    let mut values: Vec<(&str, Vec<usize>)> = by_value.into_iter().collect();
    // The most frequent first, and among equals that of the first node.
    values.sort_by_key(|(_, on)| (Reverse(on.len()), on.first().copied()));
    let name = |number: &usize| format!("{} (node {number})", nodes[*number].0);
    let mut parts: Vec<String> = Vec::new();
    for (at, (value, on)) in values.iter().take(MAX_SHOWN).enumerate() {
        // The nodes that differ from most are those to look at.
        let is_usual = at == 0 && on.len() > 1;
        let those = match on.len() {
            count if is_usual || count > MAX_SHOWN => format!("{count} nodes"),
            _ => on.iter().map(name).collect::<Vec<_>>().join(" and "),
        };
        parts.push(format!("{value} on {those}"));
    }
    let rest = values.get(MAX_SHOWN..).unwrap_or_default();
    if !rest.is_empty() {
        let on: usize = rest.iter().map(|(_, on)| on.len()).sum();
        parts.push(format!("{} more on {on} other node(s)", rest.len()));
    }
    Some(format!("{}: {}", field.label, parts.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fingerprint(fields: &[(&str, &str)]) -> Fingerprint {
        fields.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    fn lines(field: &str, values: &[Option<&str>]) -> Vec<String> {
        let of = |value: &Option<&str>| value.map_or_else(Fingerprint::new, |value| fingerprint(&[(field, value)]));
        let all: Vec<(String, Fingerprint)> =
            values.iter().enumerate().map(|(number, value)| (format!("host-{number}"), of(value))).collect();
        differences(&all.iter().map(|(host, own)| (host.as_str(), own)).collect::<Vec<_>>())
    }

    #[test]
    fn nodes_that_agree_or_do_not_know_report_nothing() {
        for values in [&[][..], &[Some("1")], &[Some("1"), Some("1")], &[Some("1"), None], &[None, None]] {
            assert_eq!(lines("torch", values), Vec::<String>::new(), "{values:?}");
        }
        assert_eq!(lines("other", &[Some("1"), Some("2")]), Vec::<String>::new(), "no field");
    }

    #[test]
    fn a_difference_names_the_nodes_that_differ_from_most() {
        for (field, values, line) in [
            (
                "torch",
                &["2.15.0", "2.15.0", "2.15.0", "2.14.1"][..],
                "torch: 2.15.0 on 3 nodes, 2.14.1 on host-3 (node 3)",
            ),
            ("git", &["b", "a"], "git commit: b on host-0 (node 0), a on host-1 (node 1)"),
            ("git", &["a", "b", "b"], "git commit: b on 2 nodes, a on host-0 (node 0)"),
            (
                "python",
                &["3.12", "none", "3.12", "none"],
                "Python: 3.12 on 2 nodes, none on host-1 (node 1) and host-3 (node 3)",
            ),
        ] {
            let values: Vec<Option<&str>> = values.iter().map(|value| Some(*value)).collect();
            assert_eq!(lines(field, &values), [line]);
        }
    }

    #[test]
    fn a_line_stays_short_however_many_nodes_and_values_there_are() {
        let values: Vec<String> = (0..1000).map(|number| format!("{}", 6_u32.max(number))).collect();
        let values: Vec<Option<&str>> = values.iter().map(|value| Some(value.as_str())).collect();
        let found = lines("driver", &values);
        assert_eq!(
            found,
            ["NVIDIA driver: 6 on 7 nodes, 7 on host-7 (node 7), 8 on host-8 (node 8), 9 on host-9 (node 9), \
              990 more on 990 other node(s)"]
        );
        let halves: Vec<Option<&str>> = (0..12).map(|number| Some(if number < 6 { "1" } else { "2" })).collect();
        assert_eq!(lines("jax", &halves), ["jax: 1 on 6 nodes, 2 on 6 nodes"]);
    }

    #[test]
    fn only_required_fields_refuse_and_the_reason_names_both_sides() {
        let first = fingerprint(&[("python", "3.12.1"), ("torch", "2.15.0"), ("git", "aaa")]);
        let own = fingerprint(&[("python", "3.12.1"), ("torch", "2.14.1"), ("git", "bbb")]);
        let why = |words| required_difference(words, ("b", &own), ("a", &first));
        assert_eq!((why(""), why("python"), why("driver"), why("frame")), (None, None, None, None));
        assert_eq!(
            why("git").as_deref(),
            Some(
                "--require_same git: git commit is bbb on b and aaa on a, the first node; \
                 check out one commit on all nodes, or leave git out"
            )
        );
        assert!(why("python,framework,git").is_some_and(|why| why.starts_with("--require_same framework: torch is")));
        let without = Fingerprint::new();
        let why = required_difference("git", ("c", &without), ("a", &first));
        assert!(why.is_some_and(|why| why.contains("is none on c and aaa on a")));
    }

    #[test]
    fn a_required_field_without_a_value_is_found() {
        let own = fingerprint(&[("python", "3.12"), ("torch", "none"), ("paddle", "3.3"), ("git", "none")]);
        for (words, unknown) in [
            ("", None),
            ("python", None),
            ("python,framework", None),
            ("python,git", Some("git")),
            ("driver", Some("driver")),
        ] {
            assert_eq!(find_unknown(words, &own), unknown, "{words}");
        }
    }

    #[test]
    fn each_word_requires_a_field() {
        assert!(WORDS.iter().all(|word| required(word).next().is_some()));
        assert!(FIELDS.iter().all(|field| WORDS.contains(&field.word) && is_field(field.name)));
        assert!(!is_field("rlaunch"));
    }
}
