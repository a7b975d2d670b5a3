//! What both command lines share: clap arguments from an option table, errors, and the nearest option name.

use crate::spec::options::{Opt, OptGroup, OptKind};
use crate::spec::paddle::options as paddle;
use crate::spec::shown;
use crate::spec::torchrun::options as torchrun;
use clap::{Arg, Command};
use std::collections::BTreeMap;
use std::ffi::OsString;

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
    /// Spaces stand around the `=` of an option.
    #[error("option {option}: there is a space beside its =; write {option}={}", shown(.value))]
    SpacedValue {
        /// With its dashes.
        option: String,
        /// The value that was meant.
        value: String,
    },
    /// A dash of a text in place of two hyphens.
    #[error("{} begins with a long dash, as documents have it, and not with two hyphens; write {}", shown(.given), shown(.option))]
    LongDash {
        /// As written.
        given: String,
        /// The option, with two hyphens.
        option: String,
    },
    /// Quotes around an option and its value.
    #[error("option {option}: quotes hold it and its value together; write {option} {}", shown(.value))]
    QuotedOption {
        /// With its dashes.
        option: String,
        /// Its value.
        value: String,
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
    /// The help has no such topic.
    #[error("option --help: there is no topic '{}'; the topics are {}", shown(.topic), .topics.join(", "))]
    UnknownTopic {
        /// As written.
        topic: String,
        /// The topics that there are.
        topics: Vec<String>,
    },
    /// There is no script.
    #[error(
        "the following arguments are required: training_script, training_script_args (which may be none); for example: {example} train.py"
    )]
    NoScript {
        /// A command without the script.
        example: &'static str,
    },
    /// Another error that clap found.
    #[error("{0}")]
    Clap(String),
}

/// The command with these options in these groups, alphabetical within each. `finish` adds what only one command line has.
pub fn with_options(
    mut command: Command,
    options: &'static [Opt],
    groups: &[OptGroup],
    finish: impl Fn(&'static Opt, Arg) -> Arg,
) -> Command {
    for opt in options {
        if let Some(group) = groups.iter().find(|group| group.first == opt.name) {
            command = command.next_help_heading(group.heading);
        }
        // clap sorts arguments whose order is the same by their names.
        let mut arg = Arg::new(opt.name).long(opt.name).display_order(0).help(help(opt));
        if let Some(short) = opt.short {
            arg = arg.short(short);
        }
        if let Some((value, name)) = optional_value(opt) {
            arg = arg.num_args(0..=1).require_equals(true).default_missing_value(value).value_name(name);
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

/// The value of an option that may stand without one, and takes one only behind `=`; and that value's name.
fn optional_value(opt: &Opt) -> Option<(&'static str, &'static str)> {
    match opt.name {
        "dry_run" | "dry-run" => Some(("table", "FORM")),
        "help" => Some(("", "TOPIC")),
        _ => None,
    }
}

/// Whether an option may stand without a value, and takes one only behind `=`.
pub fn has_optional_value(opt: &Opt) -> bool {
    optional_value(opt).is_some()
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

/// The options of both front ends by a name, with `_` in place of `-`.
fn launchers_options(name: &str) -> impl Iterator<Item = &'static Opt> {
    let is_name = move |of: &str| of.replace('-', "_") == name;
    let has = move |opt: &&Opt| is_name(opt.name) || opt.aliases.iter().any(|alias| is_name(alias));
    paddle::OPTIONS.iter().chain(torchrun::OPTIONS).filter(has)
}

/// The name of an option as it is given, with `_` in place of `-`.
fn given_name(arg: &str) -> Option<String> {
    Some(arg.strip_prefix("--")?.split('=').next()?.replace('-', "_"))
}

/// Returns true for an option that scripts hardly ever have: it is about nodes and ranks, or no other launcher has it.
fn is_launchers_own(name: &str) -> bool {
    const COMMON: [&str; 8] =
        ["nproc_per_node", "nnodes", "master", "standalone", "rdzv_backend", "rdzv_endpoint", "rdzv_id", "rdzv_conf"];
    let is_ours = |opt: &Opt| !paddle::PADDLES.contains(&opt.name) && !torchrun::is_torchs(opt.name);
    let mut options = launchers_options(name).peekable();
    COMMON.contains(&name) || (name.contains('_') && options.peek().is_some() && options.all(is_ours))
}

/// The warnings about arguments that are accepted, but are hardly meant so. `flags`: the launcher's options; `rest`: the script
/// and its arguments.
pub fn doubtful_arguments(
    flags: &BTreeMap<&'static str, String>,
    rest: &[OsString],
) -> impl Iterator<Item = String> + use<> {
    // bash expands it at the beginning of a word alone.
    let tilde = flags.iter().find(|(_, value)| value.starts_with("~/")).map(|(name, value)| {
        format!("--{name} {value}: a folder named ~ is meant here, as shells do not expand ~ after =; write --{name} {value}")
    });
    misplaced_option(flags, rest).into_iter().chain(tilde)
}

/// The warning about a launcher's option among the script's arguments, unless the launcher has it too.
fn misplaced_option(flags: &BTreeMap<&'static str, String>, rest: &[OsString]) -> Option<String> {
    let is_misplaced = |arg: &&OsString| {
        arg.to_str()
            .and_then(given_name)
            .is_some_and(|name| is_launchers_own(&name) && !flags.keys().any(|flag| flag.replace('-', "_") == name))
    };
    let (script, args) = rest.split_first()?;
    // A script that is a launcher itself: torchrun, torch.distributed.run, paddle.distributed.launch.
    if script.to_str().is_some_and(|script| script.ends_with("run") || script.ends_with("launch")) {
        return None;
    }
    let arg = args.iter().find(is_misplaced)?.to_str()?;
    let option = arg.split('=').next()?;
    Some(format!(
        "the script receives {option}, as it follows the script; options of the launcher go before the script"
    ))
}

/// The hint about a launcher's option that the script refused. `lines`: the end of a failed rank's output.
pub fn refused_option(lines: &[String]) -> Option<String> {
    // argparse; click, typer and absl.
    const REFUSALS: [&str; 4] =
        ["unrecognized arguments: ", "No such option: ", "No such option ", "Unknown command line flag "];
    let refused = lines.iter().rev().find_map(|line| REFUSALS.iter().find_map(|refusal| line.split_once(refusal)))?.1;
    let mut words = refused.split_whitespace().map(|word| word.trim_matches(|c| matches!(c, '\'' | '"' | '.' | ',')));
    let option = words.find(|word| given_name(word).is_some_and(|name| launchers_options(&name).next().is_some()))?;
    let option = option.split('=').next()?;
    Some(format!("{option} is an option of the launcher: write it before the script"))
}

/// The error about an option that stands with its value in one argument, if this is one.
pub fn quoted_option(arg: &str) -> Option<CommandLineError> {
    let (option, value) = arg.split_once(' ')?;
    given_name(option).filter(|name| !option.contains('=') && launchers_options(name).next().is_some())?;
    Some(CommandLineError::QuotedOption { option: option.to_owned(), value: value.trim().to_owned() })
}

/// Refuses what a copied command line has in place of an option. `rest`: the script and its arguments.
pub fn check_copied(
    flags: &BTreeMap<&'static str, String>,
    aliases: &BTreeMap<&'static str, &'static str>,
    rest: &[OsString],
) -> Result<(), CommandLineError> {
    let script = rest.first().and_then(|script| script.to_str()).unwrap_or("");
    if let Some((name, _)) = flags.iter().find(|(_, value)| *value == "=") {
        let option = format!("--{}", aliases.get(name).unwrap_or(name));
        return Err(CommandLineError::SpacedValue { option, value: script.to_owned() });
    }
    if let Some(error) = quoted_option(script) {
        return Err(error);
    }
    let is_long_dash = |c: char| matches!(c, '\u{2012}'..='\u{2015}' | '\u{2212}');
    if script.starts_with(is_long_dash) {
        let name = script.trim_start_matches(|c| is_long_dash(c) || c == '-');
        return Err(CommandLineError::LongDash { given: script.to_owned(), option: format!("--{name}") });
    }
    Ok(())
}

/// The option whose name is most like this one, if any is similar; never a shortened name.
pub fn nearest(name: &str, names: impl Iterator<Item = &'static str>) -> Option<&'static str> {
    let plain = |name: &str| name.trim_start_matches('-').replace('-', "_");
    let wanted = plain(name);
    // mpirun's and srun's short names.
    let wanted = if matches!(&*wanted, "n" | "np") { "nproc_per_node".to_owned() } else { wanted };
    // A name that is part of another is nearer than one that only begins alike.
    let similarity = |option: &&'static str| {
        let option = plain(option);
        strsim::jaro_winkler(&wanted, &option) + f64::from(option.contains(&wanted))
    };
    names.filter(|option| similarity(option) > 0.8).max_by(|a, b| similarity(a).total_cmp(&similarity(b)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_launchers_option_behind_the_script_is_found() {
        let found = |flag: Option<&'static str>, line: &str| {
            let flags = flag.map(|flag| (flag, "2".to_owned())).into_iter().collect();
            misplaced_option(&flags, &line.split(' ').map(OsString::from).collect::<Vec<_>>()).is_some()
        };
        for (flag, line, expected) in [
            (None, "t.py --nproc_per_node 2", true),
            (None, "t.py x --rdzv-endpoint=a:1", true),
            (Some("nnodes"), "t.py --nproc-per-node=2", true),
            (Some("nproc-per-node"), "t.py --nproc_per_node=2", false),
            (None, "t.py --gpus 2 nnodes -nnodes --nnodes_max=2", false),
            (None, "t.py --hang-timeout 20", true),
            (None, "t.py --on_hang=abort", true),
            (None, "t.py --log_dir x --devices 0 --max-restarts 2 --frameworks torch", false),
            (None, "torch.distributed.run --nproc_per_node 2 t.py", false),
            (None, "paddle.distributed.launch --nnodes 2 t.py", false),
        ] {
            assert_eq!(found(flag, line), expected, "{flag:?} {line}");
        }
    }

    #[test]
    fn an_option_that_the_script_refused_is_the_launchers() {
        for (line, option) in [
            ("t.py: error: unrecognized arguments: --gpus 0,1", Some("--gpus")),
            ("t.py: error: unrecognized arguments: x --bar --log-dir=x", Some("--log-dir")),
            ("t.py: error: unrecognized arguments: --max_restarts 1", Some("--max_restarts")),
            ("Error: No such option: --nnodes", Some("--nnodes")),
            ("Error: No such option '--nnodes'.", Some("--nnodes")),
            ("t.py: error: unrecognized arguments: --bar gpus", None),
            ("ValueError: --gpus", None),
        ] {
            let hint = refused_option(&["usage: t.py".to_owned(), line.to_owned()]);
            assert_eq!(hint.as_deref().map(|hint| hint.split(' ').next().unwrap()), option, "{line}");
        }
    }

    #[test]
    fn a_copied_command_line_is_refused_where_it_lost_its_form() {
        let check = |value: &str, script: &str| {
            check_copied(&[("log_dir", value.to_owned())].into(), &BTreeMap::new(), &[script.into()])
        };
        let spaced = |value: &str| {
            Err(CommandLineError::SpacedValue { option: "--log_dir".to_owned(), value: value.to_owned() })
        };
        assert_eq!(check("=", "./logs"), spaced("./logs"));
        // torchrun's own parser accepts it.
        assert_eq!(check("=./logs", "t.py"), Ok(()));
        assert_eq!(check("a=b", "t.py"), Ok(()));
        for given in ["–gpus", "—gpus", "−−gpus", "–-gpus"] {
            let dash = CommandLineError::LongDash { given: given.to_owned(), option: "--gpus".to_owned() };
            assert_eq!(check("x", given), Err(dash));
        }
    }
}
