//! Sets of CPUs, in the form of the kernel's lists: `0-3,8,10-11` (cpuset(7), "List format").

use std::collections::BTreeSet;
use std::fmt;

/// Logical CPUs by their numbers. Linux is built for at most 8192 of them.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CpuSet(BTreeSet<u16>);

impl CpuSet {
    /// Parses a list. Blanks around its elements and a newline at its end are accepted; an empty list is the empty
    /// set. `None` if it is not a list.
    pub fn parse(text: &str) -> Option<Self> {
        let mut cpus = BTreeSet::new();
        for element in text.split(',').map(str::trim).filter(|element| !element.is_empty()) {
            let (first, last) = element.split_once('-').unwrap_or((element, element));
            let (first, last) = (number(first)?, number(last)?);
            if first > last {
                return None;
            }
            cpus.extend(first..=last);
        }
        Some(Self(cpus))
    }

    /// CPUs that are in both sets.
    pub fn intersect(&self, other: &Self) -> Self {
        Self(self.0.intersection(&other.0).copied().collect())
    }

    /// Number of CPUs.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether the set is empty.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The CPU with the lowest number.
    pub fn first(&self) -> Option<u16> {
        self.0.first().copied()
    }

    /// CPUs in ascending order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = u16> {
        self.0.iter().copied()
    }
}

fn number(text: &str) -> Option<u16> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok())?
}

impl FromIterator<u16> for CpuSet {
    fn from_iter<I: IntoIterator<Item = u16>>(cpus: I) -> Self {
        Self(cpus.into_iter().collect())
    }
}

impl Extend<u16> for CpuSet {
    fn extend<I: IntoIterator<Item = u16>>(&mut self, cpus: I) {
        self.0.extend(cpus);
    }
}

impl fmt::Display for CpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut cpus = self.iter().peekable();
        let mut comma = "";
        while let Some(first) = cpus.next() {
            let mut last = first;
            while let Some(next) = cpus.next_if(|next| Some(*next) == last.checked_add(1)) {
                last = next;
            }
            write!(f, "{comma}{first}")?;
            if last > first {
                write!(f, "-{last}")?;
            }
            comma = ",";
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn parse_reads_what_display_writes(cpus in prop::collection::btree_set(prop_oneof![0..80u16, any::<u16>()], 0..60)) {
            let set = CpuSet(cpus);
            prop_assert_eq!(CpuSet::parse(&set.to_string()), Some(set.clone()));
            prop_assert_eq!(set.iter().collect::<CpuSet>(), set);
        }

        #[test]
        fn any_text_is_parsed_or_rejected(text in "[0-9,\\- \n]{0,24}|.{0,24}") {
            if let Some(set) = CpuSet::parse(&text) {
                prop_assert_eq!(CpuSet::parse(&set.to_string()), Some(set));
            }
        }

        #[test]
        fn the_intersection_has_what_both_have(a in prop::collection::btree_set(0..50u16, 0..40), b in prop::collection::btree_set(0..50u16, 0..40)) {
            let both = CpuSet(a.clone()).intersect(&CpuSet(b.clone()));
            for cpu in 0..50 {
                prop_assert_eq!(both.iter().any(|c| c == cpu), a.contains(&cpu) && b.contains(&cpu));
            }
        }
    }

    #[test]
    fn lists_are_as_the_kernel_writes_them() {
        let shown = |text| CpuSet::parse(text).map(|set| (set.to_string(), set.len()));
        assert_eq!(shown("0-3,8,10-11\n"), Some(("0-3,8,10-11".into(), 7)));
        assert_eq!(shown("1,0, 2"), Some(("0-2".into(), 3)));
        assert_eq!(shown("65534-65535"), Some(("65534-65535".into(), 2)));
        assert_eq!(shown("\n"), Some((String::new(), 0)));
        for text in ["a", "3-1", "1-", "-1", "1-2-3", "65536", "0-4294967295", "+1", "1;2", "--"] {
            assert_eq!(CpuSet::parse(text), None, "{text}");
        }
    }
}
