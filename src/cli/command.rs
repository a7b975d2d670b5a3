//! What the command lines have in common: the options of a table as clap has them, for the help and for completion,
//! and the name that somebody may have meant.

use crate::spec::options::{Kind, Opt};
use clap::{Arg, Command};

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
                Kind::Flag => arg.action(clap::ArgAction::SetTrue),
                Kind::Int | Kind::Seconds => arg.value_name("N"),
                Kind::Bool => arg.value_name("BOOL"),
                Kind::Text => arg.value_name("TEXT"),
            };
        }
        command = command.arg(finish(opt, arg));
    }
    command
}

/// Whether it may stand alone, and has a value only behind `=`.
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

/// The option whose name is most like this one, if any is; never a name cut short.
pub fn nearest(name: &str, names: impl Iterator<Item = &'static str>) -> Option<&'static str> {
    let plain = |name: &str| name.trim_start_matches('-').replace('-', "_");
    let wanted = plain(name);
    // A name that is part of another is nearer than one that only begins like it.
    let alike = |option: &&'static str| {
        let option = plain(option);
        strsim::jaro_winkler(&wanted, &option) + f64::from(option.contains(&wanted))
    };
    names.filter(|option| alike(option) > 0.8).max_by(|a, b| alike(a).total_cmp(&alike(b)))
}
