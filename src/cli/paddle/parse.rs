//! Parses the command line of `python -m rlaunch` as Paddle's argparse does. Names may be shortened while they stay unique,
//! `--opt=value` works, the last of several wins, and everything after the script belongs to the script.

use crate::cli::common::command_line::{self, CommandLineError};
use crate::cli::common::exit_code;
use crate::cli::common::help::{self, HELP, Help};
use crate::report::wording;
use crate::spec::options::{Opt, OptKind};
use crate::spec::paddle::options::{GROUPS, OPTIONS, PADDLES};
use crate::spec::shown;
use crate::spec::torchrun::options::is_torchs;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, Command};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;

/// The help on one screen.
const SCREEN: &str = "\
Starts a distributed training job, like python -m paddle.distributed.launch.

Usage: python -m rlaunch [OPTIONS] SCRIPT [ARGS]...
       rlaunch launch [OPTIONS] SCRIPT [ARGS]...

Most used options:
      --nproc_per_node N     Number of ranks on this node
                             [default: one per device, else 1]
      --devices IDS          Visible devices, such as 0,1 (the same: --gpus)
  -m, --module               Run the script as a module, like python -m
      --frameworks NAMES     Frameworks whose variables the ranks receive:
                             paddle, torch, jax [default: paddle]
      --log_dir FOLDER       Folder of the ranks' log files [default: log]
      --console_ranks RANKS  Ranks whose output the console shows: 0,3, first,
                             all or none [default: first]
      --max_restart N        Number of times that all ranks are restarted after
                             a failure [default: 0]
      --nnodes N             Number of nodes, or MIN:MAX for an elastic job
                             [default: 1]
      --master ADDRESS       Address of the rendezvous: ip:port of one node, or
                             etcd://ip:port
      --dry_run              Print the plan and start nothing

Examples:
  python -m rlaunch --nproc_per_node 2 train.py --epochs 3
  python -m rlaunch --gpus 0,1 train.py
  python -m rlaunch --nnodes 2 --master 10.0.0.1:6768 train.py

More help:
  --help all       All options and the exit statuses
  --help TOPIC     TOPIC: job, logs, hangs, restarts, nodes, security, servers,
                   legacy or exit
  rlaunch --help   Commands for running jobs: ps, status, stacks, logs, stop
";

/// A parsed command line.
#[derive(Debug, PartialEq, Eq)]
pub enum PaddleArgs {
    /// A job.
    Job {
        /// Options by name.
        flags: BTreeMap<&'static str, String>,
        /// The script and its arguments.
        rest: Vec<OsString>,
        /// The options that were given by another of their names.
        aliases: BTreeMap<&'static str, &'static str>,
    },
    /// Text for stdout: help, version.
    Print(String),
}

/// The names of an option that the help shows.
fn names(opt: &'static Opt) -> impl Iterator<Item = &'static str> {
    std::iter::once(opt.name).chain(opt.aliases.iter().copied())
}

/// The name of an option as it was given; its value may be no UTF-8.
fn given_name(arg: &OsString) -> Option<&str> {
    let name = arg.as_bytes().strip_prefix(b"--")?.split(|byte| *byte == b'=').next()?;
    std::str::from_utf8(name).ok()
}

/// Abbreviations of Paddle's launcher that clap would find ambiguous, with the name that each stands for: they keep their
/// meaning. Only those that are among `args`: all of them would cost each start a millisecond.
fn abbreviations(args: &[OsString]) -> BTreeMap<&'static str, &'static str> {
    let given: BTreeSet<&str> = args.iter().filter_map(given_name).collect();
    let is_name = |cut: &str| OPTIONS.iter().any(|opt| names(opt).any(|name| name == cut));
    let mut meanings = BTreeMap::new();
    for cut in PADDLES.into_iter().flat_map(|name| (1..name.len()).map(move |end| &name[..end])) {
        let mut found = PADDLES.into_iter().filter(|name| name.starts_with(cut));
        if let (true, Some(name), None) = (given.contains(cut) && !is_name(cut), found.next(), found.next()) {
            meanings.insert(cut, name);
        }
    }
    meanings
}

/// The options of the launcher for clap, with the abbreviations that `args` use.
fn command(args: &[OsString]) -> Command {
    let command = Command::new("rlaunch")
        .bin_name("python -m rlaunch")
        .version(env!("CARGO_PKG_VERSION"))
        .about("Starts and supervises this machine's share of the processes of a distributed training job.")
        .override_usage("python -m rlaunch [OPTIONS] training_script [ARGS]...")
        .after_help(exit_code::HELP)
        .max_term_width(wording::COLUMNS)
        .infer_long_args(true)
        .args_override_self(true)
        // The first argument that is no option, and all after it, belong to the script.
        .allow_external_subcommands(true)
        .external_subcommand_value_parser(clap::value_parser!(OsString))
        .disable_help_flag(true)
        .disable_help_subcommand(true);
    let abbreviations = abbreviations(args);
    let finish = |name: &'static str, arg: Arg| {
        let arg = if name.contains('_') { arg.alias(name.replace('_', "-")) } else { arg };
        arg.aliases(abbreviations.iter().filter(|(_, meaning)| **meaning == name).map(|(cut, _)| *cut))
    };
    let command =
        command_line::with_options(command, std::slice::from_ref(&HELP), &[], |opt, arg| finish(opt.name, arg));
    command_line::with_options(command, OPTIONS, GROUPS, |opt, arg| {
        let arg = opt.aliases.iter().fold(finish(opt.name, arg), |arg, alias| finish(alias, arg));
        arg.visible_aliases(opt.aliases.iter().copied()).allow_negative_numbers(opt.kind != OptKind::Flag)
    })
}

/// The help for a topic; `None`: one screen.
pub fn help(topic: Option<&str>) -> Result<String, CommandLineError> {
    Help { screen: SCREEN, groups: GROUPS, command: command(&[]) }.text(topic)
}

/// Whether an argument asks for the help, unless it is a value or belongs to the script.
fn may_ask_for_help(arg: &OsString) -> bool {
    match arg.as_bytes() {
        [b'-', b'-', ..] => given_name(arg).is_some_and(|name| name.len() > 1 && HELP.name.starts_with(name)),
        [b'-', letters @ ..] => letters.contains(&b'h'),
        _ => false,
    }
}

/// The help, if a command line asks for it.
fn asked_help(args: &[OsString]) -> Result<Option<PaddleArgs>, CommandLineError> {
    let Some(at) = args.iter().position(may_ask_for_help) else { return Ok(None) };
    // What stands behind it may be unreadable.
    let (until, rest) = args.split_at(at + 1);
    let matches = match command(until).no_binary_name(true).try_get_matches_from(until) {
        Ok(matches) => matches,
        Err(error) => return convert_error(&error).map(Some),
    };
    let Some(value) = matches.get_one::<String>(HELP.name) else { return Ok(None) };
    help(help::asked_topic(value, rest, GROUPS).as_deref()).map(|text| Some(PaddleArgs::Print(text)))
}

/// The command line, for the docs.
pub fn reference() -> Command {
    command(&[])
}

/// Parses a command line, without its program name.
pub fn parse(args: &[OsString]) -> Result<PaddleArgs, CommandLineError> {
    if let Some(help) = asked_help(args)? {
        return Ok(help);
    }
    let matches = match command(args).no_binary_name(true).try_get_matches_from(args) {
        Ok(matches) => matches,
        Err(error) => return convert_error(&error),
    };
    let mut flags = BTreeMap::new();
    for opt in OPTIONS {
        let given = matches.value_source(opt.name) == Some(clap::parser::ValueSource::CommandLine);
        let text = match opt.kind {
            OptKind::Flag => matches.get_flag(opt.name).then(|| "true".to_owned()),
            _ => matches.get_one::<String>(opt.name).cloned(),
        };
        if let (true, Some(text)) = (given, text) {
            flags.insert(opt.name, text);
        }
    }
    let rest = match matches.subcommand() {
        Some((script, args)) => {
            let args = args.get_many::<OsString>("").into_iter().flatten().cloned();
            std::iter::once(script.into()).chain(args).collect()
        }
        None => Vec::new(),
    };
    let aliases = given_aliases(&args[..args.len().saturating_sub(rest.len())]);
    Ok(PaddleArgs::Job { flags, rest, aliases })
}

/// The options that these arguments give by an alias, with it. clap does not tell which one was given.
fn given_aliases(args: &[OsString]) -> BTreeMap<&'static str, &'static str> {
    let mut aliases = BTreeMap::new();
    for given in args.iter().filter_map(given_name).map(|name| name.replace('-', "_")) {
        for opt in OPTIONS.iter().filter(|opt| !opt.aliases.is_empty()) {
            match names(opt).find(|name| name.starts_with(&given)) {
                Some(name) if name == opt.name => aliases.remove(opt.name),
                Some(alias) => aliases.insert(opt.name, alias),
                None => continue,
            };
        }
    }
    aliases
}

/// clap's error, or the text that it wants printed.
fn convert_error(error: &clap::Error) -> Result<PaddleArgs, CommandLineError> {
    if error.kind() == ErrorKind::DisplayVersion {
        return Ok(PaddleArgs::Print(error.to_string()));
    }
    let text = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.clone()),
        Some(ContextValue::Strings(list)) => Some(list.join(", ")),
        _ => None,
    };
    let arg = text(ContextKind::InvalidArg).unwrap_or_default();
    let name = shown(arg.split([' ', '=']).next().unwrap_or(""));
    Err(match error.kind() {
        ErrorKind::UnknownArgument if let Some(error) = command_line::quoted_option(&arg) => error,
        ErrorKind::UnknownArgument => match candidates(&name) {
            candidates if candidates.len() > 1 => CommandLineError::Ambiguous { name, candidates },
            _ => {
                let torchs = name.trim_start_matches('-').replace('_', "-");
                let hint = match (instead(&torchs), nearest(&name)) {
                    (Some(ours), _) => {
                        format!("it is an option of torchrun; give {ours}, or use python -m rlaunch.run")
                    }
                    (None, Some(nearest)) => format!("did you mean --{nearest}? Options of the script go after it"),
                    (None, None) if is_torchs(&torchs) => {
                        "it is an option of torchrun; python -m rlaunch.run replaces that".to_owned()
                    }
                    (None, None) => "see python -m rlaunch --help all; options of the script go after it".to_owned(),
                };
                CommandLineError::UnknownOption { name, hint }
            }
        },
        ErrorKind::InvalidValue | ErrorKind::NoEquals | ErrorKind::TooFewValues | ErrorKind::WrongNumberOfValues => {
            CommandLineError::MissingValue { option: name, detail: "" }
        }
        ErrorKind::TooManyValues => CommandLineError::UnexpectedValue { option: name, value: None },
        _ => {
            let text = error.to_string();
            CommandLineError::Clap(text.lines().next().unwrap_or("").trim_start_matches("error: ").to_owned())
        }
    })
}

/// What to give instead of an option of torchrun.
fn instead(name: &str) -> Option<&'static str> {
    Some(match name {
        "node-rank" => "--rank",
        "rdzv-endpoint" => "--master",
        "rdzv-id" => "--job_id",
        "local-ranks-filter" => "--console_ranks",
        "master-addr" | "master-port" => "--master ADDRESS:PORT",
        _ => return None,
    })
}

/// The option whose name is most similar to this one.
fn nearest(name: &str) -> Option<&'static str> {
    command_line::nearest(name, OPTIONS.iter().flat_map(names))
}

/// The options that a shortened name could stand for.
fn candidates(name: &str) -> Vec<String> {
    let cut = name.strip_prefix("--").unwrap_or_default();
    OPTIONS.iter().flat_map(names).filter(|n| !cut.is_empty() && n.starts_with(cut)).map(|n| format!("--{n}")).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::panic)] // A test fails by panicking.
    use super::*;

    fn job(line: &str) -> (BTreeMap<&'static str, String>, Vec<OsString>) {
        let args: Vec<OsString> = line.split(' ').filter(|w| !w.is_empty()).map(OsString::from).collect();
        match parse(&args) {
            Ok(PaddleArgs::Job { flags, rest, .. }) => (flags, rest),
            other => panic!("{line}: {other:?}"),
        }
    }

    fn refused(line: &str) -> String {
        let args: Vec<OsString> = line.split(' ').filter(|w| !w.is_empty()).map(OsString::from).collect();
        match parse(&args) {
            Err(error) => error.to_string(),
            other => panic!("{line}: {other:?}"),
        }
    }

    #[test]
    fn options_may_be_cut_short_spelt_with_dashes_and_repeated() {
        for line in
            ["--nproc_per_node 2", "--nproc_per_node=2", "--nproc-per-node 2", "--nproc 2", "--nproc 1 --nproc=2"]
        {
            let (flags, rest) = job(&format!("{line} train.py"));
            assert_eq!(flags.get("nproc_per_node").map(String::as_str), Some("2"), "{line}");
            assert_eq!(rest, ["train.py"]);
        }
        assert_eq!(job("--nnode=2 t.py").0["nnodes"], "2");
        // Unique in Paddle, and still that option beside --enable_auto_mapping, --heter_workers and --dry_run.
        assert_eq!(job("--enable 0 t.py").0["enable_gpu_log"], "0");
        assert_eq!(job("--ho a t.py").0["host"], "a");
        assert_eq!(job("--d 0 t.py").0["devices"], "0");
        assert_eq!(job("--rank -1 t.py").0["rank"], "-1");
        for name in ["gpus", "xpus", "npus", "devices", "gpu"] {
            assert_eq!(job(&format!("--{name} 0,1 t.py")).0["devices"], "0,1");
        }
        assert_eq!(job("--dry_run t.py"), (BTreeMap::from([("dry_run", "table".into())]), vec!["t.py".into()]));
        assert_eq!(job("--dry_run=json t.py").0["dry_run"], "json");
        assert_eq!(job("--log_dir= t.py").0["log_dir"], "");
        assert_eq!(
            job("-m pkg.mod -m x"),
            (BTreeMap::from([("module", "true".into())]), vec!["pkg.mod".into(), "-m".into(), "x".into()])
        );
    }

    #[test]
    fn everything_after_the_script_is_the_scripts() {
        let (flags, rest) = job("--job_id a t.py --job_id b --help -- --nope=1 -x");
        assert_eq!(flags["job_id"], "a");
        assert_eq!(rest, ["t.py", "--job_id", "b", "--help", "--", "--nope=1", "-x"]);
    }

    #[test]
    fn what_cannot_be_read_is_refused_in_one_line() {
        assert_eq!(
            refused("--serv 2 t.py"),
            "ambiguous option: --serv could match --servers, --server_num, --server_timeout"
        );
        assert!(
            refused("--nproc_pre_node 2 t.py").contains("--nproc_per_node"),
            "{}",
            refused("--nproc_pre_node 2 t.py")
        );
        for (typed, meant) in [("--gpu_log", "--enable_gpu_log"), ("--logdir", "--log_dir")] {
            assert!(refused(&format!("{typed} t.py")).contains(&format!("did you mean {meant}?")), "{typed}");
        }
        assert!(refused("--zzz t.py").starts_with("unknown option --zzz;"));
        assert!(refused("--job_id").starts_with("option --job_id needs a value"), "{}", refused("--job_id"));
        for line in ["--serv 2 t.py", "--zzz t.py", "--job_id", "--no_python=1 t.py"] {
            assert_eq!(refused(line).lines().count(), 1, "{line}");
        }
    }
}
