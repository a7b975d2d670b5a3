//! The part of the crate `regex` that `py-spy` and `remoteprocess` use, on the smallest engine of `regex-automata`.
//!
//! `regex` has several engines for speed, and tables for all of Unicode. Nothing here searches more than the version of an
//! interpreter, a path or a line of /proc, so in a wheel they would be weight alone.

pub use regex_automata::nfa::thompson::BuildError as Error;

/// Regular expressions on text.
pub struct Regex(bytes::Regex);

impl Regex {
    /// Compiles a pattern.
    pub fn new(pattern: &str) -> Result<Self, Error> {
        bytes::Regex::new(pattern).map(Self)
    }

    /// Whether the pattern is anywhere in the text.
    pub fn is_match(&self, text: &str) -> bool {
        self.0.captures(text.as_bytes()).is_some()
    }

    /// The first match with its groups.
    pub fn captures<'t>(&self, text: &'t str) -> Option<Captures<'t>> {
        let found = self.0.captures(text.as_bytes())?;
        Some(Captures { text, found })
    }
}

/// The groups of a match in a text.
pub struct Captures<'t> {
    text: &'t str,
    found: bytes::Captures<'t>,
}

impl<'t> Captures<'t> {
    /// A group, `None` if it took no part.
    pub fn get(&self, index: usize) -> Option<Match<'t>> {
        self.found.range(index).and_then(|range| self.text.get(range)).map(Match)
    }
}

/// The text of a group.
pub struct Match<'t>(&'t str);

impl<'t> Match<'t> {
    /// The text.
    pub fn as_str(&self) -> &'t str {
        self.0
    }
}

/// Regular expressions on bytes.
pub mod bytes {
    use std::ops::{Index, Range};

    use regex_automata::nfa::thompson::pikevm::PikeVM;
    use regex_automata::util::{captures, syntax};

    use super::Error;

    /// A compiled pattern.
    pub struct Regex(PikeVM);

    impl Regex {
        /// Compiles a pattern.
        pub fn new(pattern: &str) -> Result<Self, Error> {
            // With it, a pattern that matches other bytes than text would be an error.
            let any_bytes = syntax::Config::new().utf8(false);
            PikeVM::builder().syntax(any_bytes).build(pattern).map(Self)
        }

        /// The first match with its groups.
        pub fn captures<'t>(&self, bytes: &'t [u8]) -> Option<Captures<'t>> {
            let mut groups = self.0.create_captures();
            self.0.captures(&mut self.0.create_cache(), bytes, &mut groups);
            groups.is_match().then_some(Captures { bytes, groups })
        }

        /// The matches with their groups. Callers take the first one.
        pub fn captures_iter<'t>(&self, bytes: &'t [u8]) -> impl Iterator<Item = Captures<'t>> {
            self.captures(bytes).into_iter()
        }
    }

    /// The groups of a match in bytes.
    pub struct Captures<'t> {
        bytes: &'t [u8],
        groups: captures::Captures,
    }

    impl<'t> Captures<'t> {
        /// A group, `None` if it took no part.
        pub fn get(&self, index: usize) -> Option<Match<'t>> {
            self.range(index).and_then(|range| self.bytes.get(range)).map(Match)
        }

        pub(crate) fn range(&self, index: usize) -> Option<Range<usize>> {
            self.groups.get_group(index).map(|span| span.range())
        }
    }

    impl Index<usize> for Captures<'_> {
        type Output = [u8];

        fn index(&self, index: usize) -> &[u8] {
            let range = self.range(index).unwrap_or_default();
            &self.bytes[range]
        }
    }

    /// The bytes of a group.
    pub struct Match<'t>(&'t [u8]);

    impl<'t> Match<'t> {
        /// The bytes.
        pub fn as_bytes(&self) -> &'t [u8] {
            self.0
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_of_a_version() {
        let version = bytes::Regex::new(r"((2|3)\.(\d{1,2})\.(\d{1,2}))((a|b|c|rc)\d{1,2})? (.{1,64})").unwrap();
        let found = version.captures_iter(b"\xff\0Python 3.14.0rc1 (main, \xff)").next().unwrap();
        assert_eq!((&found[3], &found[4]), (&b"14"[..], &b"0"[..]));
        assert_eq!(found.get(5).unwrap().as_bytes(), b"rc1");
        assert!(version.captures(b"3.x").is_none());
        let parent = bytes::Regex::new(r"(?-u)^\d+ \(.+\) \w (\d+)").unwrap();
        assert_eq!(parent.captures(b"7 (\xff) )) S 41 7").unwrap().get(1).unwrap().as_bytes(), b"41");
    }

    #[test]
    fn lines_of_text() {
        let line = Regex::new(r#"^\s*/\* "(.+\..+)":([0-9]+)"#).unwrap();
        let found = line.captures(r#"  /* "a.pyx":12"#).unwrap();
        assert_eq!((found.get(1).unwrap().as_str(), found.get(2).unwrap().as_str()), ("a.pyx", "12"));
        assert!(found.get(3).is_none());
        assert!(Regex::new(r"/libpython\d.\d\d?(m|d|u)?.so").unwrap().is_match("/usr/lib/libpython3.11.so.1.0"));
    }
}
