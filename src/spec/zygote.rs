//! `--zygote`: which modules one process imports for all ranks, which are then forked from it.

use super::options::Values;
use super::{SpecError, shown};

/// What is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Zygote {
    /// The modules, in the order in which they are imported; at least one.
    pub modules: Vec<String>,
    /// Whether every rank imports for itself where a fork would be unsafe, or an import fails.
    pub auto: bool,
}

/// The word that asks for the fall-back; alone it stands for the door's framework as well.
const AUTO: &str = "auto";

const HINT: &str = "give modules joined by commas, such as torch, paddle or my.package; auto among them lets every rank \
                    import for itself where that is not possible";

/// Reads and checks it: `torch`, `auto`, `my.models,auto`. An empty place is as good as none. `framework`: what `auto`
/// alone stands for.
pub fn check(values: &Values, framework: &str) -> Result<Option<Zygote>, SpecError> {
    let words = values.text("zygote").unwrap_or("").split(',').map(str::trim).filter(|word| !word.is_empty());
    read(words, framework).map_err(|why| values.error("zygote", &why, HINT))
}

/// The same for the `preload` of `spawn`: its words, and the framework that none and `auto` alone stand for.
///
/// The error is text for people.
pub fn preload(words: &[String], framework: &str) -> Result<Zygote, String> {
    let read =
        read(words.iter().map(|word| word.trim()), framework).map_err(|why| format!("preload: {why}; {HINT}"))?;
    Ok(read.unwrap_or_else(|| Zygote { modules: vec![framework.to_owned()], auto: false }))
}

fn read<'a>(words: impl Iterator<Item = &'a str>, framework: &str) -> Result<Option<Zygote>, String> {
    let (mut modules, mut auto) = (Vec::new(), false);
    for word in words {
        match word {
            AUTO => auto = true,
            _ if !is_module(word) => return Err(format!("'{}' is no name of a module", shown(word))),
            _ if modules.iter().any(|module| module == word) => {}
            _ => modules.push(word.to_owned()),
        }
    }
    if auto && modules.is_empty() {
        modules.push(framework.to_owned());
    }
    Ok((!modules.is_empty()).then_some(Zygote { modules, auto }))
}

/// Identifiers joined by dots, roughly as Python has them: the import decides.
fn is_module(text: &str) -> bool {
    let is_first = |c: char| c == '_' || c.is_alphabetic();
    text.split('.').all(|part| part.starts_with(is_first) && part.chars().all(|c| is_first(c) || c.is_numeric()))
}

impl Zygote {
    /// `torch`, `torch and my.models`: what is imported, for people.
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
    use super::super::options::{Vars, merge};
    use super::*;

    fn asked(text: &str) -> Result<Option<(String, bool)>, String> {
        let flags = [("zygote", text.to_owned())].into();
        let read = check(&merge(&flags, &Vars::new()), "paddle").map_err(|error| error.to_string())?;
        Ok(read.map(|zygote| (zygote.names(), zygote.auto)))
    }

    #[test]
    fn modules_are_named_once_and_auto_is_none() {
        let made = |names: &str, auto| Ok(Some((names.to_owned(), auto)));
        assert_eq!(asked("torch"), made("torch", false));
        assert_eq!(asked(" torch, my.own_1,é,torch "), made("torch, my.own_1 and é", false));
        assert_eq!(asked("torch,auto"), made("torch", true));
        assert_eq!(asked("auto"), made("paddle", true));
        assert_eq!([asked(""), asked(" , ")], [Ok(None), Ok(None)]);
    }

    #[test]
    fn what_no_import_could_name_is_refused_with_the_way_out() {
        for bad in ["a-b", "1a", "a..b", ".a", "a.", "train.py/", "a b", "a.1"] {
            let error = asked(&format!("torch,{bad}")).unwrap_err();
            let start = format!("--zygote torch,{bad}: '{bad}' is no name of a module; give modules joined by commas");
            assert!(error.starts_with(&start), "{error}");
        }
    }

    #[test]
    fn preload_is_read_by_the_same_rule_and_never_none() {
        let read = |words: &[&str]| preload(&words.iter().map(|w| (*w).to_owned()).collect::<Vec<_>>(), "paddle");
        let made = |modules: &[&str], auto| {
            Ok(Zygote { modules: modules.iter().map(|name| (*name).to_owned()).collect(), auto })
        };
        assert_eq!([read(&[]), read(&["auto"])], [made(&["paddle"], false), made(&["paddle"], true)]);
        assert_eq!(read(&[" torch", "auto", "my.own", "torch"]), made(&["torch", "my.own"], true));
        for bad in ["", "a-b"] {
            let error = read(&["torch", bad]).unwrap_err();
            assert!(error.starts_with(&format!("preload: '{bad}' is no name of a module; give modules")), "{error}");
        }
    }
}
