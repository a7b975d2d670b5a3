//! The command line of `python -m rlaunch.run`, built from its table of options and read as torchrun's argparse reads it.

use super::argparse::Parser;
use super::{command, exit_code};
use crate::spec::options::{Kind, Opt, opt};
use crate::spec::shown;
use crate::spec::torchrun::options::{HEADINGS, OPTIONS, is_torchs};
use clap::builder::PossibleValuesParser;
use clap::{Arg, Command, ValueHint};
use clap_complete::{Shell, generate};
use std::collections::BTreeMap;
use std::ffi::OsString;

/// What a command line says.
#[derive(Debug, PartialEq, Eq)]
pub enum Parsed {
    /// Options by name, and the script with its arguments.
    Job(BTreeMap<&'static str, String>, Vec<OsString>),
    /// Text to print on stdout before a good end: help, version, completion.
    Print(String),
    /// One line for stderr; the status is `exit_code::USAGE`.
    Refused(String),
}

/// The name of the console script, which shells complete.
const PROGRAM: &str = "rlaunch-run";

/// What is said of a command line without a script.
pub const NO_SCRIPT: &str = "the following arguments are required: training_script, training_script_args; for example: \
                             python -m rlaunch.run --nproc-per-node 2 train.py";

/// What every program has; torchrun has no `--version`.
const OWN: &[Opt] = &[
    Opt { short: Some('h'), ..opt("help", Kind::Flag, &[], None, "Print this") },
    opt("version", Kind::Flag, &[], None, "Print rlaunch's version"),
];

/// Reads a command line, without its program name.
pub fn parse(args: &[OsString]) -> Parsed {
    let parser = Parser {
        options: OPTIONS.iter().chain(OWN).collect(),
        comes_first: |name| is_torchs(name) || name == "help",
        has_optional_value: command::has_optional_value,
        ends: |name| matches!(name, "help" | "version" | "print-completion"),
    };
    match parser.read(args) {
        Err(text) => Parsed::Refused(text),
        Ok(words) => match words.end {
            None => Parsed::Job(words.options, words.rest),
            Some("print-completion") => completion(&words.options["print-completion"]),
            Some("version") => Parsed::Print(format!("rlaunch {}\n", env!("CARGO_PKG_VERSION"))),
            Some(_) => Parsed::Print(help()),
        },
    }
}

fn command() -> Command {
    let command = Command::new(PROGRAM)
        .about("Starts and supervises this machine's share of the processes of a distributed training job, as torchrun does.")
        .override_usage("python -m rlaunch.run [OPTIONS] training_script [ARGS]...")
        .after_help(format!("{}\n  1        anything but 0 and 2, with --exit-code-compat", exit_code::HELP))
        .disable_help_flag(true)
        .disable_version_flag(true)
        .arg(Arg::new("training_script").value_hint(ValueHint::FilePath).help("What each rank runs"))
        .arg(
            Arg::new("training_script_args")
                .num_args(0..)
                .trailing_var_arg(true)
                .allow_hyphen_values(true)
                .value_hint(ValueHint::AnyPath)
                .help("Its arguments"),
        );
    let command = command::with_options(command, OWN, &[], |_, arg| arg);
    command::with_options(command, OPTIONS, HEADINGS, |opt, arg| match opt.choices {
        [] if opt.kind == Kind::Flag => arg,
        [] if opt.name == "log-dir" => arg.value_hint(ValueHint::DirPath),
        // No file's name.
        [] => arg.value_hint(ValueHint::Other),
        choices => arg.value_parser(PossibleValuesParser::new(choices)).value_name("CHOICE"),
    })
}

fn help() -> String {
    command().render_help().to_string()
}

/// What completes the command line in this shell.
pub fn completion(shell: &str) -> Parsed {
    let shell = match shell {
        "bash" => Shell::Bash,
        "zsh" => Shell::Zsh,
        "fish" => Shell::Fish,
        other => {
            let why = format!("option --print-completion: invalid choice: '{}'", shown(other));
            return Parsed::Refused(format!("{why}; rlaunch completes its command line in bash, zsh and fish"));
        }
    };
    let mut script = Vec::new();
    generate(shell, &mut command(), PROGRAM, &mut script);
    Parsed::Print(String::from_utf8_lossy(&script).into_owned())
}
