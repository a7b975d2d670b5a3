//! What a launcher changes in the environment of a rank.

use std::borrow::Cow;
use std::sync::Arc;

/// The name of a variable: most are known beforehand.
pub type Name = Cow<'static, str>;

/// An ordered list of changes to an environment: names to set (in order, the last write of a name
/// wins in place) and names to take away. Values are shared: a list of all endpoints is there once, however
/// many ranks are told it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EnvPatch {
    set: Vec<(Name, Arc<str>)>,
    unset: Vec<Name>,
}

impl EnvPatch {
    /// No change.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets `name`; a name that was set before keeps its place and takes the new value.
    pub fn set(&mut self, name: impl Into<Name>, value: impl Into<Arc<str>>) -> &mut Self {
        let (name, value) = (name.into(), value.into());
        if !self.unset.is_empty() {
            self.unset.retain(|n| *n != name);
        }
        match self.set.iter_mut().find(|(n, _)| *n == name) {
            Some(slot) => slot.1 = value,
            None => self.set.push((name, value)),
        }
        self
    }

    /// Takes `name` away from the environment.
    pub fn unset(&mut self, name: impl Into<Name>) -> &mut Self {
        let name = name.into();
        self.set.retain(|(n, _)| *n != name);
        if !self.unset.contains(&name) {
            self.unset.push(name);
        }
        self
    }

    /// Makes the changes of another patch too.
    pub fn extend(&mut self, other: &EnvPatch) -> &mut Self {
        for name in &other.unset {
            self.unset(name.clone());
        }
        for (name, value) in &other.set {
            self.set(name.clone(), value.clone());
        }
        self
    }

    /// The value that this patch sets for `name`.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.set.iter().find(|(n, _)| n == name).map(|(_, v)| &**v)
    }

    /// The same, shared.
    pub fn shared(&self, name: &str) -> Option<Arc<str>> {
        self.set.iter().find(|(n, _)| n == name).map(|(_, v)| v.clone())
    }

    /// The variables that are set, in order.
    pub fn vars(&self) -> &[(Name, Arc<str>)] {
        &self.set
    }

    /// The names that are taken away.
    pub fn removed(&self) -> &[Name] {
        &self.unset
    }

    /// `base` with this patch on it: survivors in their old order, then what is set, in order.
    pub fn apply(&self, base: &[(Vec<u8>, Vec<u8>)]) -> Vec<(Vec<u8>, Vec<u8>)> {
        let touched = |name: &[u8]| {
            self.unset.iter().any(|n| n.as_bytes() == name) || self.set.iter().any(|(n, _)| n.as_bytes() == name)
        };
        let kept = base.iter().filter(|(name, _)| !touched(name)).cloned();
        let set = self.set.iter().map(|(n, v)| (n.as_bytes().to_vec(), v.as_bytes().to_vec()));
        kept.chain(set).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_patch_keeps_order_and_the_last_write_wins() {
        let mut patch = EnvPatch::new();
        patch.set("B", "1").set("A", "2").set("B", "3").unset("C");
        assert_eq!(patch.vars(), [("B".into(), "3".into()), ("A".into(), "2".into())]);
        let pair = |n: &str, v: &str| (n.as_bytes().to_vec(), v.as_bytes().to_vec());
        let base = [pair("C", "x"), pair("D", "y"), pair("A", "old")];
        assert_eq!(patch.apply(&base), [pair("D", "y"), pair("B", "3"), pair("A", "2")]);
    }
}
