//! Options as data: a row of an option table, the value of an option with its source, and the typed reads of values.

use crate::spec::error::SpecError;
use std::collections::BTreeMap;

/// The form of an option's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OptKind {
    /// Any text.
    Text,
    /// A whole number.
    Int,
    /// Seconds, also a fraction.
    Seconds,
    /// `y yes t true on 1` or `n no f false off 0`.
    Bool,
    /// No value.
    Flag,
}

/// A row of an option table.
#[derive(Debug)]
pub struct Opt {
    /// The name without dashes; `_` may also be written `-`.
    pub name: &'static str,
    /// Other names of the same option, shown in the help.
    pub aliases: &'static [&'static str],
    /// The one-letter name.
    pub short: Option<char>,
    /// The form of the value.
    pub kind: OptKind,
    /// The allowed values; empty if any value of its kind is allowed.
    pub choices: &'static [&'static str],
    /// The variables that set it; the last one that is set wins. They override the command line in Paddle's front end,
    /// and the command line overrides them in torchrun's.
    pub env: &'static [&'static str],
    /// The value if nothing sets it.
    pub default: Option<&'static str>,
    /// One line of help.
    pub help: &'static str,
}

/// A group of options in the help: those from `first` on in the order of the table, up to the next group.
#[derive(Debug)]
pub struct OptGroup {
    /// The word after `--help` that shows the group, among others of this topic.
    pub topic: &'static str,
    /// The heading. Groups with the same heading are shown as one.
    pub heading: &'static str,
    /// The name of the group's first option in the table.
    pub first: &'static str,
}

/// A group of options.
pub const fn group(topic: &'static str, heading: &'static str, first: &'static str) -> OptGroup {
    OptGroup { topic, heading, first }
}

/// `--dry_run`: the form in which the launcher prints the plan instead of starting it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DryRun {
    /// A table.
    Table,
    /// JSON.
    Json,
}

/// An option without aliases and choices.
pub const fn opt(
    name: &'static str,
    kind: OptKind,
    env: &'static [&'static str],
    default: Option<&'static str>,
    help: &'static str,
) -> Opt {
    Opt { name, aliases: &[], short: None, kind, choices: &[], env, default, help }
}

/// The source of a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ValueSource {
    /// The default of the table.
    Default,
    /// The command line.
    Flag,
    /// This variable.
    Env(&'static str),
}

/// A value and its source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OptValue {
    /// The text.
    pub text: String,
    /// The source.
    pub source: ValueSource,
}

/// Options whose values are never printed.
const SECRET: [&str; 4] = ["job_secret", "job-secret", "etcd_user", "etcd-user"];

/// The value of an option in a form that may be printed: a secret becomes `***`, and so do settings with a password.
pub fn printable<'a>(name: &str, text: &'a str) -> &'a str {
    let has_password = name == "rdzv-conf" && text.contains("password");
    if SECRET.contains(&name) || has_password { "***" } else { text }
}

/// An option that a scheduler sets: its name, its value and the scheduler's variable.
pub type SchedulerValue = (&'static str, String, &'static str);

/// All options that have a value, by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OptValues {
    map: BTreeMap<&'static str, OptValue>,
    /// Options that a variable overrides, with the variable and its value, in table order. Secrets are left out.
    pub overridden: Vec<(&'static str, &'static str, String)>,
    /// The other name (`gpus`) by which the command line gives an option (`devices`).
    pub aliases: BTreeMap<&'static str, &'static str>,
}

/// The variables of a process, by name.
pub type EnvVars = BTreeMap<String, String>;

/// Merges the layers of a table where a variable overrides the command line, which overrides the default. `counts`:
/// whether a variable with this text sets its option.
pub fn prefer_env(
    table: &'static [Opt],
    flags: &BTreeMap<&'static str, String>,
    vars: &EnvVars,
    counts: impl Fn(&str, &str) -> bool,
) -> OptValues {
    let mut values = OptValues::default();
    for opt in table {
        let set = |var| Some((var, vars.get(var).filter(|text| counts(var, text))?.clone()));
        let set: Vec<(&'static str, String)> = opt.env.iter().copied().filter_map(set).collect();
        if !SECRET.contains(&opt.name) {
            values.overridden.extend(set.iter().map(|(var, text)| (opt.name, *var, text.clone())));
        }
        let flag = || Some(OptValue { text: flags.get(opt.name)?.clone(), source: ValueSource::Flag });
        let env = set.last().map(|(var, text)| OptValue { text: text.clone(), source: ValueSource::Env(var) });
        values.put(opt, env.or_else(flag));
    }
    values
}

/// Merges the layers of a table where the command line overrides a variable, which overrides the default.
pub fn prefer_flags(table: &'static [Opt], flags: &BTreeMap<&'static str, String>, vars: &EnvVars) -> OptValues {
    let mut values = OptValues::default();
    for opt in table {
        let flag = flags.get(opt.name).map(|text| OptValue { text: text.clone(), source: ValueSource::Flag });
        let set = |var| Some(OptValue { text: vars.get(var)?.clone(), source: ValueSource::Env(var) });
        values.put(opt, flag.or_else(|| opt.env.iter().copied().rev().find_map(set)));
    }
    values
}

/// `y yes t true on 1` and `n no f false off 0`, in any case; `None` for anything else.
pub fn parse_bool(text: &str) -> Option<bool> {
    match text.to_ascii_lowercase().as_str() {
        "y" | "yes" | "t" | "true" | "on" | "1" => Some(true),
        "n" | "no" | "f" | "false" | "off" | "0" => Some(false),
        _ => None,
    }
}

impl OptValues {
    /// Sets an option to the value that was given, else to its default.
    fn put(&mut self, opt: &'static Opt, given: Option<OptValue>) {
        let default = || Some(OptValue { text: opt.default?.into(), source: ValueSource::Default });
        if let Some(value) = given.or_else(default) {
            self.map.insert(opt.name, value);
        }
    }

    /// Sets an option of this table to its default if its value is empty.
    pub fn replace_empty(&mut self, table: &'static [Opt], name: &str) {
        if self.text(name).is_some_and(|text| text.trim().is_empty()) {
            self.map.remove(name);
            table.iter().filter(|opt| opt.name == name).for_each(|opt| self.put(opt, None));
        }
    }

    /// Sets the options that a scheduler's variables give and the user does not.
    pub fn fill(&mut self, found: Vec<SchedulerValue>) {
        for (name, text, var) in found {
            if self.given(name).is_none() {
                self.map.insert(name, OptValue { text, source: ValueSource::Env(var) });
            }
        }
    }

    /// The text of an option, if it has one.
    pub fn text(&self, name: &str) -> Option<&str> {
        self.map.get(name).map(|v| v.text.as_str())
    }

    /// Whether the user gave this option anything but an empty text or 0.
    pub fn is_set(&self, name: &str) -> bool {
        self.given(name).is_some_and(|text| !matches!(text.trim(), "" | "0"))
    }

    /// The text of an option that the user gave, on the command line or in a variable.
    pub fn given(&self, name: &str) -> Option<&str> {
        self.map.get(name).filter(|v| v.source != ValueSource::Default).map(|v| v.text.as_str())
    }

    /// The text of an option whose value comes from the command line.
    pub fn on_command_line(&self, name: &str) -> Option<&str> {
        self.map.get(name).filter(|v| v.source == ValueSource::Flag).map(|v| v.text.as_str())
    }

    /// A whole number.
    pub fn int(&self, name: &str) -> Result<Option<i64>, SpecError> {
        let Some(text) = self.text(name) else { return Ok(None) };
        match text.trim().parse() {
            Ok(number) => Ok(Some(number)),
            Err(_) => Err(self.error(name, "is not a whole number", "give digits only")),
        }
    }

    /// Seconds, not negative.
    pub fn seconds(&self, name: &str) -> Result<Option<f64>, SpecError> {
        let Some(text) = self.text(name) else { return Ok(None) };
        match text.trim().parse::<f64>() {
            Ok(s) if s.is_finite() && (0.0..=1e9).contains(&s) => Ok(Some(s)),
            _ => Err(self.error(name, "is not a number of seconds", "give 0 or more")),
        }
    }

    /// Yes or no.
    pub fn bool(&self, name: &str) -> Result<Option<bool>, SpecError> {
        let Some(text) = self.text(name) else { return Ok(None) };
        match parse_bool(text) {
            Some(yes) => Ok(Some(yes)),
            None => {
                Err(self.error(name, "is neither true nor false", "give one of y yes t true on 1, n no f false off 0"))
            }
        }
    }

    /// The name of an option as the user gave it: the option, or the variable that overrides it.
    pub fn field(&self, name: &str) -> String {
        match self.map.get(name).map(|value| &value.source) {
            Some(ValueSource::Env(var)) => (*var).to_owned(),
            Some(ValueSource::Flag) => format!("--{}", self.aliases.get(name).unwrap_or(&name)),
            _ => format!("--{name}"),
        }
    }

    /// An error about an option, naming it as the user gave it.
    pub fn error(&self, name: &str, why: &str, hint: &str) -> SpecError {
        let value = self.text(name).map(|text| printable(name, text).to_owned());
        SpecError { value, ..SpecError::new(self.field(name), "", why, hint) }
    }

    /// All options with their values, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, &OptValue)> {
        self.map.iter().map(|(name, value)| (*name, value))
    }
}
