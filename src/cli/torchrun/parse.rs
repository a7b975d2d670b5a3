//! Parses the command line of `python -m rlaunch.run` as torchrun's argparse does.

use crate::cli::common::argparse::ArgparseParser;
use crate::cli::common::command_line::{self, CommandLineError};
use crate::cli::common::exit_code;
use crate::cli::common::help::{self, HELP, Help};
use crate::report::wording;
use crate::spec::options::{Opt, OptKind, opt};
use crate::spec::paddle;
use crate::spec::torchrun::options::{GROUPS, OPTIONS, is_torchs};
use clap::builder::PossibleValuesParser;
use clap::{Arg, Command, ValueHint};
use clap_complete::{Shell, generate};
use std::collections::BTreeMap;
use std::ffi::OsString;

/// The help on one screen.
const SCREEN: &str = "\
Starts a distributed training job, like torchrun.

Usage: rlaunch-run [OPTIONS] SCRIPT [ARGS]...
       python -m rlaunch.run [OPTIONS] SCRIPT [ARGS]...

Most used options:
      --nproc-per-node N        Number of ranks on this node: a number, gpu, cpu
                                or auto [default: 1]
  -m, --module                  Run the script as a module, like python -m
      --standalone              Run on this node alone, with a free port
      --nnodes N                Number of nodes, or MIN:MAX for an elastic job
                                [default: 1:1]
      --node-rank N             Number of this node, from 0, for a static
                                rendezvous [default: 0]
      --rdzv-backend BACKEND    static, c10d, etcd or etcd-v2 [default: static]
      --rdzv-endpoint ADDRESS   host:port of node 0, of the node that serves the
                                rendezvous, or of etcd
      --max-restarts N          Number of times that all ranks are restarted
                                after a failure [default: 0]
      --log-dir FOLDER          Folder in which each run creates its log folder
  -t, --tee STREAMS             Streams to write to log files and the console:
                                1 stdout, 2 stderr, 3 both [default: 0]

Examples:
  rlaunch-run --nproc-per-node 2 train.py --epochs 3
  rlaunch-run --nproc-per-node 2 --max-restarts 3 --tee 3 train.py
  rlaunch-run --nnodes 2 --rdzv-backend c10d --rdzv-endpoint gpu1:29500 train.py

More help:
  --help all       All options and the exit statuses
  --help TOPIC     TOPIC: job, nodes, logs, restarts, hangs, security or exit
  rlaunch --help   Commands for running jobs: ps, status, stacks, logs, stop
";

/// A parsed command line.
#[derive(Debug, PartialEq, Eq)]
pub enum TorchrunArgs {
    /// A job.
    Job {
        /// Options by name.
        flags: BTreeMap<&'static str, String>,
        /// The script and its arguments.
        rest: Vec<OsString>,
    },
    /// Text for stdout: help, version, completion.
    Print(String),
}

/// The name of the console script, which shells complete.
const PROGRAM: &str = "rlaunch-run";

/// The error of a command line without a script.
pub const NO_SCRIPT: CommandLineError =
    CommandLineError::NoScript { example: "python -m rlaunch.run --nproc-per-node 2" };

/// Options that every program has; torchrun has no `--version`.
const OWN: &[Opt] = &[HELP, opt("version", OptKind::Flag, &[], None, "Print rlaunch's version")];

/// What to give instead of an option of `python -m rlaunch`, or of an old one of torch.
fn instead(name: &str, nearest: Option<&str>) -> Option<String> {
    let name = name.replace('-', "_");
    let ours = match name.as_str() {
        "use_env" => return Some("ranks always read their number from the environment; leave it out".to_owned()),
        "devices" | "gpus" => "--nproc-per-node, and CUDA_VISIBLE_DEVICES for the devices",
        "xpus" | "npus" => "--nproc-per-node, and the variable that chooses the devices",
        "rank" => "--node-rank",
        "job_id" => "--rdzv-id",
        "ips" => "--nnodes, --node-rank and --master-addr",
        "console_ranks" => "--local-ranks-filter",
        name if nearest.is_none() && paddle::options::OPTIONS.iter().any(|opt| opt.name == name) => {
            return Some("it is an option of python -m rlaunch alone".to_owned());
        }
        _ => return None,
    };
    Some(format!("it is an option of python -m rlaunch; give {ours}"))
}

/// Parses a command line, without its program name.
pub fn parse(args: &[OsString]) -> Result<TorchrunArgs, CommandLineError> {
    let parser = ArgparseParser {
        options: OPTIONS.iter().chain(OWN).collect(),
        is_preferred: |name| is_torchs(name) || name == "help",
        has_optional_value: command_line::has_optional_value,
        stops_at: |name| matches!(name, "help" | "version" | "print-completion"),
        instead,
    };
    let parsed = parser.parse(args)?;
    Ok(match parsed.stopped_at {
        None => TorchrunArgs::Job { flags: parsed.options, rest: parsed.rest },
        Some("print-completion") => TorchrunArgs::Print(completion(&parsed.options["print-completion"])?),
        Some("version") => TorchrunArgs::Print(format!("rlaunch {}\n", env!("CARGO_PKG_VERSION"))),
        Some(name) => {
            let topic = help::asked_topic(&parsed.options[name], &parsed.rest, GROUPS);
            TorchrunArgs::Print(help(topic.as_deref())?)
        }
    })
}

/// The command line, also for the docs.
pub fn command() -> Command {
    let command = Command::new(PROGRAM)
        .about("Starts and supervises this machine's share of the processes of a distributed training job, as torchrun does.")
        .override_usage("python -m rlaunch.run [OPTIONS] training_script [ARGS]...")
        .after_help(format!("{}\n  1        anything but 0 and 2, with --exit-code-compat", exit_code::HELP))
        .max_term_width(wording::COLUMNS)
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
    let command = command_line::with_options(command, OWN, &[], |opt, arg| match opt.kind {
        OptKind::Flag => arg,
        // The topics of the help, which shells complete.
        _ => arg.value_parser(PossibleValuesParser::new(help::topics(GROUPS))),
    });
    command_line::with_options(command, OPTIONS, GROUPS, |opt, arg| match opt.choices {
        [] if opt.kind == OptKind::Flag => arg,
        [] if opt.name == "log-dir" => arg.value_hint(ValueHint::DirPath),
        // The value is no file name.
        [] => arg.value_hint(ValueHint::Other),
        choices => arg.value_parser(PossibleValuesParser::new(choices)).value_name("CHOICE"),
    })
}

/// The help for a topic; `None`: one screen.
pub fn help(topic: Option<&str>) -> Result<String, CommandLineError> {
    Help { screen: SCREEN, groups: GROUPS, command: command() }.text(topic)
}

/// The script that completes the command line in this shell.
pub fn completion(shell: &str) -> Result<String, CommandLineError> {
    let shell = match shell {
        "bash" => Shell::Bash,
        "zsh" => Shell::Zsh,
        "fish" => Shell::Fish,
        other => return Err(CommandLineError::UnknownShell { shell: other.to_owned() }),
    };
    let mut script = Vec::new();
    generate(shell, &mut command(), PROGRAM, &mut script);
    Ok(String::from_utf8_lossy(&script).into_owned())
}
