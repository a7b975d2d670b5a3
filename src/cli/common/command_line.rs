//! What both command lines share: clap arguments from an option table, errors, and the nearest option name.

use crate::spec::options::{Opt, OptKind};
use crate::spec::shown;
use clap::{Arg, Command};

/// Why a command line cannot be parsed. One line each.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CommandLineError {
    /// A shortened name stands for several options.
    #[error("ambiguous option: {name} could match {}", .candidates.join(", "))]
    Ambiguous {
        /// As written, with its dashes.
        name: String,
        /// The options, with their dashes.
        candidates: Vec<String>,
    },
    /// There is no such option.
    #[error("unknown option {name}; {hint}")]
    UnknownOption {
        /// As written, with its dashes.
        name: String,
        /// What may have been meant.
        hint: String,
    },
    /// An option lacks its value.
    #[error("option {option} needs a value{detail}; write {option}=value")]
    MissingValue {
        /// With its dashes.
        option: String,
        /// torchrun's words for it, which scripts match; may be empty.
        detail: &'static str,
    },
    /// A flag has a value.
    #[error("option {option} takes no value{}", .value.as_ref().map_or(String::new(), |value| format!(": {value}")))]
    UnexpectedValue {
        /// With its dashes.
        option: String,
        /// The argument, where it is known.
        value: Option<String>,
    },
    /// A value is not text.
    #[error("option {option}: its value {value} is not UTF-8")]
    ValueNotUtf8 {
        /// With its dashes.
        option: String,
        /// As far as it is text.
        value: String,
    },
    /// A shell for which there is no completion.
    #[error(
        "option --print-completion: invalid choice: '{}'; rlaunch completes its command line in bash, zsh and fish",
        shown(.shell)
    )]
    UnknownShell {
        /// As written.
        shell: String,
    },
    /// There is no script.
    #[error(
        "the following arguments are required: training_script, training_script_args; for example: {example} train.py"
    )]
    NoScript {
        /// A command without the script.
        example: &'static str,
    },
    /// Another error that clap found.
    #[error("{0}")]
    Clap(String),
}

/// The command with these options under these headings. `finish` adds what only one command line has.
pub fn with_options(
    mut command: Command,
    options: &'static [Opt],
    headings: &[(&'static str, &'static str)],
    finish: impl Fn(&'static Opt, Arg) -> Arg,
) -> Command {
    for opt in options {
        if let Some((heading, _)) = headings.iter().find(|(_, first)| *first == opt.name) {
            command = command.next_help_heading(*heading);
        }
        let mut arg = Arg::new(opt.name).long(opt.name).help(help(opt));
        if let Some(short) = opt.short {
            arg = arg.short(short);
        }
        if has_optional_value(opt) {
            arg = arg.num_args(0..=1).require_equals(true).default_missing_value("table").value_name("FORM");
        } else {
            arg = match opt.kind {
                OptKind::Flag => arg.action(clap::ArgAction::SetTrue),
                OptKind::Int | OptKind::Seconds => arg.value_name("N"),
                OptKind::Bool => arg.value_name("BOOL"),
                OptKind::Text => arg.value_name("TEXT"),
            };
        }
        command = command.arg(finish(opt, arg));
    }
    command
}

/// Whether an option may stand without a value, and takes one only behind `=`.
pub fn has_optional_value(opt: &Opt) -> bool {
    matches!(opt.name, "dry_run" | "dry-run")
}

fn help(opt: &Opt) -> String {
    let mut text = opt.help.to_owned();
    if let Some(default) = opt.default.filter(|default| !default.is_empty()) {
        text.push_str(&format!(" [default: {default}]"));
    }
    if !opt.env.is_empty() {
        text.push_str(&format!(" [env: {}]", opt.env.join(", ")));
    }
    text
}

/// The option whose name is most like this one, if any is similar; never a shortened name.
pub fn nearest(name: &str, names: impl Iterator<Item = &'static str>) -> Option<&'static str> {
    let plain = |name: &str| name.trim_start_matches('-').replace('-', "_");
    let wanted = plain(name);
    // A name that is part of another is nearer than one that only begins alike.
    let similarity = |option: &&'static str| {
        let option = plain(option);
        strsim::jaro_winkler(&wanted, &option) + f64::from(option.contains(&wanted))
    };
    names.filter(|option| similarity(option) > 0.8).max_by(|a, b| similarity(a).total_cmp(&similarity(b)))
}
