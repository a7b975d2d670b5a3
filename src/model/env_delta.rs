//! Env delta: the changes that a launcher makes to the environment of a rank.

use std::borrow::Cow;
use std::sync::Arc;

/// Name of a variable; most are static.
pub type VarName = Cow<'static, str>;

/// Ordered changes to an environment: variables to set and names to remove. If a name is set twice, it keeps its
/// place and takes the last value. Values are shared, so that a list of all endpoints is in memory once for all ranks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EnvDelta {
    set: Vec<(VarName, Arc<str>)>,
    unset: Vec<VarName>,
}

impl EnvDelta {
    /// No change.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets `name`. A name that is already set keeps its place and takes the new value.
    pub fn set(&mut self, name: impl Into<VarName>, value: impl Into<Arc<str>>) -> &mut Self {
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

    /// Removes `name` from the environment.
    pub fn unset(&mut self, name: impl Into<VarName>) -> &mut Self {
        let name = name.into();
        self.set.retain(|(n, _)| *n != name);
        if !self.unset.contains(&name) {
            self.unset.push(name);
        }
        self
    }

    /// Adds the changes of another delta.
    pub fn extend(&mut self, other: &EnvDelta) -> &mut Self {
        for name in &other.unset {
            self.unset(name.clone());
        }
        for (name, value) in &other.set {
            self.set(name.clone(), value.clone());
        }
        self
    }

    /// The value that this delta sets for `name`.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.set.iter().find(|(n, _)| n == name).map(|(_, v)| &**v)
    }

    /// The same value, shared.
    pub fn shared(&self, name: &str) -> Option<Arc<str>> {
        self.set.iter().find(|(n, _)| n == name).map(|(_, v)| v.clone())
    }

    /// The variables that are set, in order.
    pub fn vars(&self) -> &[(VarName, Arc<str>)] {
        &self.set
    }

    /// The names that are removed.
    pub fn removed(&self) -> &[VarName] {
        &self.unset
    }

    /// Applies the changes to `base`: unchanged variables in their old order, then the variables that are set.
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
    fn a_delta_keeps_order_and_the_last_value_wins() {
        let mut delta = EnvDelta::new();
        delta.set("B", "1").set("A", "2").set("B", "3").unset("C");
        assert_eq!(delta.vars(), [("B".into(), "3".into()), ("A".into(), "2".into())]);
        let pair = |n: &str, v: &str| (n.as_bytes().to_vec(), v.as_bytes().to_vec());
        let base = [pair("C", "x"), pair("D", "y"), pair("A", "old")];
        assert_eq!(delta.apply(&base), [pair("D", "y"), pair("B", "3"), pair("A", "2")]);
    }
}
