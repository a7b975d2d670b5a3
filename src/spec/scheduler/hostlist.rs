//! Expands Slurm's lists of hosts, such as `tux[1-3,07-09],a[1-2]b[3-4],plain`.
//! Contract: `scontrol show hostnames` of Slurm 22.05 (scontrol(1)), except that brackets must match and that a suffix may
//! follow them.

use thiserror::Error;

/// Maximum number of hosts. Slurm allows as many in one range.
pub const MOST: usize = 65_536;

/// Maximum length of a host name (RFC 1035).
const LONGEST: usize = 255;

/// An invalid list of hosts.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum HostListError {
    /// The list is empty.
    #[error("has no host")]
    Empty,
    /// A bracket is missing.
    #[error("has brackets that do not match")]
    Brackets,
    /// The list has more hosts than `MOST`.
    #[error("has more than {MOST} hosts")]
    TooMany,
    /// A host name is longer than `LONGEST`.
    #[error("has a name of more than {LONGEST} characters")]
    TooLong,
    /// A host name has this character.
    #[error("has {} in a host name", .0.escape_debug())]
    Character(char),
    /// This text in brackets is not a range.
    #[error("has '{}' in brackets, which is not a range of numbers", crate::spec::shown(.0))]
    Range(String),
}

/// The hosts of a list, in its order, with repetitions.
pub fn expand(list: &str) -> Result<Vec<String>, HostListError> {
    let mut hosts = Vec::new();
    for item in items(list)?.into_iter().filter(|item| !item.is_empty()) {
        hosts.extend(expand_item(item, MOST - hosts.len())?);
    }
    if hosts.is_empty() { Err(HostListError::Empty) } else { Ok(hosts) }
}

/// Splits a list at the commas outside of brackets.
fn items(list: &str) -> Result<Vec<&str>, HostListError> {
    let (mut items, mut from, mut inside) = (Vec::new(), 0, false);
    for (at, c) in list.char_indices() {
        match c {
            '[' | ']' if inside == (c == '[') => return Err(HostListError::Brackets),
            '[' | ']' => inside = !inside,
            ',' if !inside => {
                items.push(&list[from..at]);
                from = at + 1;
            }
            _ => {}
        }
    }
    items.push(&list[from..]);
    if inside { Err(HostListError::Brackets) } else { Ok(items) }
}

/// The hosts of one item, at most `most`; the numbers of the last brackets change fastest.
fn expand_item(item: &str, most: usize) -> Result<Vec<String>, HostListError> {
    let mut names = vec![String::new()];
    for (i, piece) in item.split(['[', ']']).enumerate() {
        // Every second piece was in brackets.
        let choices = if i % 2 == 1 { numbers(piece)? } else { vec![plain(piece)?.to_owned()] };
        if names.len() * choices.len() > most {
            return Err(HostListError::TooMany);
        }
        names = names.iter().flat_map(|name| choices.iter().map(move |choice| format!("{name}{choice}"))).collect();
        if names.iter().any(|name| name.len() > LONGEST) {
            return Err(HostListError::TooLong);
        }
    }
    Ok(names)
}

fn plain(piece: &str) -> Result<&str, HostListError> {
    match piece.chars().find(|c| !c.is_ascii_alphanumeric() && !"-_.".contains(*c)) {
        Some(c) => Err(HostListError::Character(c)),
        None => Ok(piece),
    }
}

/// Expands `1-3,07-09`: each number is padded to the width of the first one of its range.
fn numbers(text: &str) -> Result<Vec<String>, HostListError> {
    let mut all = Vec::new();
    for range in text.split(',') {
        let wrong = || HostListError::Range(range.to_owned());
        let (low, high) = range.split_once('-').unwrap_or((range, range));
        // `parse` also accepts +1.
        let read = |text: &str| text.parse::<u64>().ok().filter(|_| text.bytes().all(|byte| byte.is_ascii_digit()));
        let (first, last) = read(low).zip(read(high)).filter(|(first, last)| first <= last).ok_or_else(wrong)?;
        if last - first >= (MOST - all.len()) as u64 {
            return Err(HostListError::TooMany);
        }
        let width = low.len();
        if width > LONGEST {
            return Err(HostListError::TooLong);
        }
        all.extend((first..=last).map(|number| format!("{number:0width$}")));
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // A test fails by panicking.
    use super::*;
    use proptest::prelude::*;

    /// A prefix, how many digits its numbers have at least, and ranges: the first, and how many more.
    type Group = (String, usize, Vec<(u16, u8)>);

    /// A list in brackets, and the hosts that it names.
    fn compressed(groups: &[Group]) -> (String, Vec<String>) {
        let (mut items, mut hosts) = (Vec::new(), Vec::new());
        for (prefix, width, ranges) in groups {
            let ends = ranges.iter().map(|(first, more)| (*first, first.saturating_add((*more).into())));
            let range = |(first, last): (u16, u16)| match first == last {
                true => format!("{first:0width$}"),
                false => format!("{first:0width$}-{last:0width$}"),
            };
            items.push(format!("{prefix}[{}]", ends.clone().map(range).collect::<Vec<_>>().join(",")));
            hosts.extend(ends.flat_map(|(first, last)| (first..=last).map(|n| format!("{prefix}{n:0width$}"))));
        }
        (items.join(","), hosts)
    }

    proptest! {
        #[test]
        fn compressed_lists_expand_to_their_hosts(
            groups in prop::collection::vec(("[a-z][a-z0-9-]{0,5}", 1..7usize, prop::collection::vec((any::<u16>(), 0..9u8), 1..4)), 1..4),
        ) {
            let (list, hosts) = compressed(&groups);
            prop_assert_eq!(expand(&list), Ok(hosts));
        }

        #[test]
        fn any_text_gives_a_bounded_result(list in r"([a-c.-]|[0-9]{1,6}|\[|\]|,|-|\[[0-9]{1,3}-[0-9]{1,6}\]|\PC){0,20}") {
            match expand(&list) {
                Ok(hosts) => {
                    prop_assert!((1..=MOST).contains(&hosts.len()));
                    prop_assert!(hosts.iter().all(|host| (1..=LONGEST).contains(&host.len())), "{hosts:?}");
                }
                Err(why) => prop_assert!(!why.to_string().contains('\n')),
            }
        }
    }

    #[test]
    fn as_scontrol_show_hostnames_has_it() {
        for (list, hosts) in [
            // The example of scontrol(1), and what its 22.05 answers.
            ("tux[1-3]", "tux1 tux2 tux3"),
            ("tux[1-3,07-09],a[1-2]b[3-4],plain", "tux1 tux2 tux3 tux07 tux08 tux09 a1b3 a1b4 a2b3 a2b4 plain"),
            ("rack[0-1]node[0-1]", "rack0node0 rack0node1 rack1node0 rack1node1"),
            ("a[08-11]", "a08 a09 a10 a11"),
            ("a[8-11]", "a8 a9 a10 a11"),
            ("a[001-3]", "a001 a002 a003"),
            ("a[9-010]", "a9 a10"),
            ("a[1-2][3-4]", "a13 a14 a23 a24"),
            ("n[1,1]", "n1 n1"),
            (",a,,b", "a b"),
            ("a1-2", "a1-2"),
            // Beyond it.
            ("gpu[1-2]-ib.local", "gpu1-ib.local gpu2-ib.local"),
        ] {
            assert_eq!(expand(list).unwrap().join(" "), hosts, "{list}");
        }
    }

    #[test]
    fn invalid_lists_are_refused() {
        for (list, why) in [
            ("", "has no host"),
            (",", "has no host"),
            ("a[3-1]", "has '3-1' in brackets, which is not a range of numbers"),
            ("a[x-y]", "has 'x-y' in brackets, which is not a range of numbers"),
            ("a[]", "has '' in brackets, which is not a range of numbers"),
            ("a[1,]", "has '' in brackets, which is not a range of numbers"),
            ("a[1-2-3]", "has '1-2-3' in brackets, which is not a range of numbers"),
            ("a[+1]", "has '+1' in brackets, which is not a range of numbers"),
            ("a[1", "has brackets that do not match"),
            ("a]", "has brackets that do not match"),
            ("a[1[2]]", "has brackets that do not match"),
            ("a [1]", "has   in a host name"),
            ("a[1-70000]", "has more than 65536 hosts"),
            ("a[0-65535],b", "has more than 65536 hosts"),
            ("a[1-999]b[1-999]", "has more than 65536 hosts"),
            ("a[1-18446744073709551615]", "has more than 65536 hosts"),
        ] {
            assert_eq!(expand(list).unwrap_err().to_string(), why, "{list}");
        }
        assert!(expand(&"a".repeat(256)).is_err());
        assert_eq!(expand("a[0-65535]").unwrap().len(), MOST);
    }
}
