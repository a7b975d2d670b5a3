//! The command line, built from the table of options. As argparse reads it: names may be cut short
//! as long as they stay unique, `--opt=value` works, the last of several wins, and everything after
//! the script is the script's.

use super::{command, exit_code};
use crate::spec::options::{HEADINGS, Kind, OPTIONS};
use crate::spec::shown;
use clap::Command;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use std::collections::BTreeMap;
use std::ffi::OsString;

/// What a command line says.
#[derive(Debug, PartialEq, Eq)]
pub enum Parsed {
    /// Options by name, and the script with its arguments.
    Job(BTreeMap<&'static str, String>, Vec<OsString>),
    /// Text to print on stdout before a good end: help, version.
    Print(String),
    /// One line for stderr; the status is `exit_code::USAGE`.
    Refused(String),
}

/// The options of `paddle.distributed.launch`, where a name that is cut short stands for the one that begins so. It
/// keeps to that here, whatever else begins so by now.
const PADDLES: [&str; 32] = [
    "help",
    "master",
    "legacy",
    "rank",
    "log_level",
    "log_overwrite",
    "sort_ip",
    "enable_gpu_log",
    "nnodes",
    "nproc_per_node",
    "log_dir",
    "run_mode",
    "job_id",
    "devices",
    "gpus",
    "npus",
    "xpus",
    "host",
    "ips",
    "start_port",
    "auto_parallel_config",
    "auto_cluster_config",
    "auto_tuner_json",
    "servers",
    "trainers",
    "trainer_num",
    "server_num",
    "gloo_port",
    "with_gloo",
    "max_restart",
    "elastic_level",
    "elastic_timeout",
];

/// The beginnings of `name` that are no other option's, if it is one of Paddle's.
fn beginnings(name: &'static str) -> impl Iterator<Item = &'static str> {
    let names = || OPTIONS.iter().flat_map(|opt| std::iter::once(&opt.name).chain(opt.aliases));
    let ends = if PADDLES.contains(&name) { 1..name.len() } else { 0..0 };
    ends.map(|end| &name[..end]).filter(move |cut| {
        let others = PADDLES.iter().filter(|other| other.starts_with(cut));
        others.count() == 1 && names().all(|other| other != cut)
    })
}

/// The options of the launcher for clap.
pub fn command() -> Command {
    let command = Command::new("rlaunch")
        .bin_name("python -m rlaunch")
        .version(env!("CARGO_PKG_VERSION"))
        .about("Starts and supervises this machine's share of the processes of a distributed training job.")
        .override_usage("python -m rlaunch [OPTIONS] training_script [ARGS]...")
        .after_help(exit_code::HELP)
        .infer_long_args(true)
        .args_override_self(true)
        // Makes the first word that is no option, and all after it, the script's.
        .allow_external_subcommands(true)
        .external_subcommand_value_parser(clap::value_parser!(OsString))
        .disable_help_subcommand(true);
    command::with_options(command, OPTIONS, HEADINGS, |opt, mut arg| {
        if opt.name.contains('_') {
            arg = arg.alias(opt.name.replace('_', "-"));
        }
        arg.visible_aliases(opt.aliases.iter().copied())
            .aliases(std::iter::once(opt.name).chain(opt.aliases.iter().copied()).flat_map(beginnings))
            .allow_negative_numbers(opt.kind != Kind::Flag)
    })
}

/// Reads a command line, without its program name.
pub fn parse(args: &[OsString]) -> Parsed {
    let matches = match command().no_binary_name(true).try_get_matches_from(args) {
        Ok(matches) => matches,
        Err(error) => return refuse(&error),
    };
    let mut flags = BTreeMap::new();
    for opt in OPTIONS {
        let given = matches.value_source(opt.name) == Some(clap::parser::ValueSource::CommandLine);
        let text = match opt.kind {
            Kind::Flag => matches.get_flag(opt.name).then(|| "true".to_owned()),
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
    Parsed::Job(flags, rest)
}

/// clap's error as one line with a way out.
fn refuse(error: &clap::Error) -> Parsed {
    if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) {
        return Parsed::Print(error.to_string());
    }
    let text = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.clone()),
        Some(ContextValue::Strings(list)) => Some(list.join(", ")),
        _ => None,
    };
    let arg = text(ContextKind::InvalidArg).unwrap_or_default();
    let name = shown(arg.split([' ', '=']).next().unwrap_or(""));
    Parsed::Refused(match error.kind() {
        ErrorKind::UnknownArgument => match candidates(&name) {
            list if list.len() > 1 => format!("ambiguous option: {name} could match {}", list.join(", ")),
            _ => {
                let near = nearest(&name).map_or_else(
                    || "see python -m rlaunch --help; options of the script go after it".to_owned(),
                    |near| format!("did you mean --{near}? Options of the script go after it"),
                );
                format!("unknown option {name}; {near}")
            }
        },
        ErrorKind::InvalidValue | ErrorKind::NoEquals | ErrorKind::TooFewValues | ErrorKind::WrongNumberOfValues => {
            format!("option {name} needs a value; write {name}=value")
        }
        ErrorKind::TooManyValues => format!("option {name} takes no value"),
        _ => error.to_string().lines().next().unwrap_or("").trim_start_matches("error: ").to_owned(),
    })
}

/// The option whose name is most like this one.
fn nearest(name: &str) -> Option<&'static str> {
    command::nearest(name, OPTIONS.iter().flat_map(|opt| std::iter::once(&opt.name).chain(opt.aliases)).copied())
}

/// The options that a name cut short could stand for.
fn candidates(name: &str) -> Vec<String> {
    let cut = name.trim_start_matches('-');
    let names = OPTIONS.iter().flat_map(|o| std::iter::once(&o.name).chain(o.aliases));
    names.filter(|n| !cut.is_empty() && n.starts_with(cut)).map(|n| format!("--{n}")).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::panic)] // A test fails by panicking.
    use super::*;

    fn job(line: &str) -> (BTreeMap<&'static str, String>, Vec<OsString>) {
        let args: Vec<OsString> = line.split(' ').filter(|w| !w.is_empty()).map(OsString::from).collect();
        match parse(&args) {
            Parsed::Job(flags, rest) => (flags, rest),
            other => panic!("{line}: {other:?}"),
        }
    }

    fn refused(line: &str) -> String {
        let args: Vec<OsString> = line.split(' ').filter(|w| !w.is_empty()).map(OsString::from).collect();
        match parse(&args) {
            Parsed::Refused(text) => text,
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
        assert_eq!(refused("--serv 2 t.py"), "ambiguous option: --serv could match --servers, --server_num");
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
