//! `--preload`: the modules that one process imports before it forks all ranks.

use crate::spec::error::{SpecError, shown};
use crate::spec::options::OptValues;
use thiserror::Error;

/// A checked request to preload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PreloadSpec {
    /// The modules in import order; at least one.
    pub modules: Vec<String>,
    /// Whether ranks import for themselves if a fork would be unsafe or an import fails.
    pub auto: bool,
}

/// The item that allows the fall-back; alone it also means the front end's framework.
const AUTO: &str = "auto";

const HINT: &str = "give modules separated by commas, such as torch, paddle or my.package; with auto among them, every rank \
                    imports for itself where that is not possible";

/// Reads and checks the option, such as `torch`, `auto` or `my.models,auto`. Empty items are skipped. `framework`: the
/// module that `auto` alone means.
pub fn check(values: &OptValues, framework: &str) -> Result<Option<PreloadSpec>, SpecError> {
    let words = values.text("preload").unwrap_or("").split(',').map(str::trim).filter(|word| !word.is_empty());
    read(words, framework).map_err(|why| values.error("preload", &why.to_string(), HINT))
}

/// The same for the items of the `preload` of `spawn`. `framework`: the module that no item and `auto` alone mean.
pub fn check_items(items: &[String], framework: &str) -> Result<PreloadSpec, SpecError> {
    let read = read(items.iter().map(|item| item.trim()), framework);
    let read = read.map_err(|why| SpecError::new("preload", "", why.to_string(), HINT))?;
    Ok(read.unwrap_or_else(|| PreloadSpec { modules: vec![framework.to_owned()], auto: false }))
}

/// An item that Python cannot import.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("'{}' is not the name of a module", shown(.0))]
struct NotAModuleError(String);

fn read<'a>(items: impl Iterator<Item = &'a str>, framework: &str) -> Result<Option<PreloadSpec>, NotAModuleError> {
    let (mut modules, mut auto) = (Vec::new(), false);
    for item in items {
        match item {
            AUTO => auto = true,
            _ if !is_module(item) => return Err(NotAModuleError(item.to_owned())),
            _ if modules.iter().any(|module| module == item) => {}
            _ => modules.push(item.to_owned()),
        }
    }
    if auto && modules.is_empty() {
        modules.push(framework.to_owned());
    }
    Ok((!modules.is_empty()).then_some(PreloadSpec { modules, auto }))
}

/// Whether a text is dotted identifiers, approximately by Python's rules; the import decides.
fn is_module(text: &str) -> bool {
    let is_first = |c: char| c == '_' || c.is_alphabetic();
    text.split('.').all(|part| part.starts_with(is_first) && part.chars().all(|c| is_first(c) || c.is_numeric()))
}

impl PreloadSpec {
    /// The modules for a message: `torch`, `torch and my.models`.
    pub fn names(&self) -> String {
        match self.modules.split_last() {
            Some((last, [])) => last.clone(),
            Some((last, others)) => format!("{} and {last}", others.join(", ")),
            None => String::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::options::EnvVars;
    use crate::spec::paddle::options::merge;

    fn asked(text: &str) -> Result<Option<(String, bool)>, String> {
        let flags = [("preload", text.to_owned())].into();
        let read = check(&merge(&flags, &EnvVars::new()), "paddle").map_err(|error| error.to_string())?;
        Ok(read.map(|spec| (spec.names(), spec.auto)))
    }

    #[test]
    fn modules_are_unique_and_auto_is_not_a_module() {
        let made = |names: &str, auto| Ok(Some((names.to_owned(), auto)));
        assert_eq!(asked("torch"), made("torch", false));
        assert_eq!(asked(" torch, my.own_1,é,torch "), made("torch, my.own_1 and é", false));
        assert_eq!(asked("torch,auto"), made("torch", true));
        assert_eq!(asked("auto"), made("paddle", true));
        assert_eq!([asked(""), asked(" , ")], [Ok(None), Ok(None)]);
    }

    #[test]
    fn invalid_module_names_are_refused() {
        for bad in ["a-b", "1a", "a..b", ".a", "a.", "train.py/", "a b", "a.1"] {
            let error = asked(&format!("torch,{bad}")).unwrap_err();
            let start =
                format!("--preload torch,{bad}: '{bad}' is not the name of a module; give modules separated by commas");
            assert!(error.starts_with(&start), "{error}");
        }
    }

    #[test]
    fn items_of_spawn_follow_the_same_rules() {
        let read = |words: &[&str]| check_items(&words.iter().map(|w| (*w).to_owned()).collect::<Vec<_>>(), "paddle");
        let made = |modules: &[&str], auto| {
            Ok(PreloadSpec { modules: modules.iter().map(|name| (*name).to_owned()).collect(), auto })
        };
        assert_eq!([read(&[]), read(&["auto"])], [made(&["paddle"], false), made(&["paddle"], true)]);
        assert_eq!(read(&[" torch", "auto", "my.own", "torch"]), made(&["torch", "my.own"], true));
        for bad in ["", "a-b"] {
            let error = read(&["torch", bad]).unwrap_err().to_string();
            assert!(
                error.starts_with(&format!("preload: '{bad}' is not the name of a module; give modules")),
                "{error}"
            );
        }
    }
}
