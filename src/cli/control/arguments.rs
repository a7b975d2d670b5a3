//! The command line of `rlaunch`.

use crate::cli::common::command_line::CommandLineError;
use crate::cli::{paddle, torchrun};
use crate::model::exit::signal_number;
use crate::report::wording;
use crate::spec::rendezvous::MAX_NODES;
use clap::{Args, CommandFactory, Parser, Subcommand, value_parser};
use clap_complete::Shell;
use std::borrow::Cow;
use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

/// The name of the command.
pub(super) const PROGRAM: &str = "rlaunch";

const JOB_OF_HERE: &str =
    "The launcher's process id, the job's id, its log folder or its script [default: the job that runs of this folder]";
const JOB: &str =
    "The launcher's process id, the job's id, its log folder or its script [default: the job of this folder]";

const AFTER_HELP: &str = "\
Examples:
  rlaunch run --nproc-per-node 2 train.py         # instead of torchrun
  rlaunch launch --nproc_per_node 2 train.py      # paddle.distributed.launch
  rlaunch stacks                                  # where does my job hang?
  rlaunch doctor                                  # is this machine ready?

More help:
  rlaunch COMMAND --help   The arguments of a command
  rlaunch --help all       Those of all commands

Jobs are those of this user on this machine. Exit status: 0; 1 if there is no
such job, its launcher refuses, or `doctor` finds an error; 2 for an invalid
command line. `launch` and `run` have the exit status of their job.";

/// Starts distributed training jobs, and looks into those that run or have ended.
#[derive(Debug, Parser)]
#[command(name = PROGRAM, version, max_term_width = wording::COLUMNS, disable_help_subcommand = true)]
#[command(after_help = AFTER_HELP)]
pub(super) struct Request {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Start a job like `paddle.distributed.launch` does
    #[command(disable_help_flag = true)]
    Launch {
        /// Its options, the script and the script's arguments
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<OsString>,
    },
    /// Start a job like `torchrun` does
    #[command(disable_help_flag = true)]
    Run {
        /// Its options, the script and the script's arguments
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<OsString>,
    },
    /// List the jobs that run, and those that have ended
    Ps {
        /// Also the last jobs that have ended
        #[arg(long, short)]
        all: bool,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Show a job's ranks: state, process id, CPU, memory, last output
    ///
    /// Includes the ranks of all nodes.
    Status {
        #[command(flatten)]
        job: JobName,
        /// Print JSON
        #[arg(long, conflicts_with = "watch")]
        json: bool,
        /// Show it again every 2 s until the job ends
        #[arg(long, short)]
        watch: bool,
        /// Only this machine's ranks, not those of the job's other nodes
        #[arg(long, alias = "this_node")]
        this_node: bool,
    },
    /// Show a job's ranks, their stacks and logs live; ? lists the keys
    ///
    /// A key stops the job.
    Top {
        #[command(flatten)]
        job: JobName,
        /// Only this machine's ranks, not those of the job's other nodes
        #[arg(long, alias = "this_node")]
        this_node: bool,
    },
    /// Show where each rank is, and the rank that the others wait for
    ///
    /// These are the Python stacks of the ranks of all nodes. Equal stacks are shown once.
    Stacks {
        #[command(flatten)]
        job: JobName,
        /// Print JSON
        #[arg(long)]
        json: bool,
        /// Only this machine's ranks, not those of the job's other nodes
        #[arg(long, alias = "this_node")]
        this_node: bool,
    },
    /// Show the last lines of the ranks' logs
    Logs {
        #[command(flatten)]
        job: JobName,
        /// Only this rank; may be repeated
        #[arg(long, short)]
        rank: Vec<usize>,
        /// Number of lines of each rank
        #[arg(long, short = 'n', default_value_t = 20)]
        lines: usize,
        /// Show new lines as they come, until the job ends
        #[arg(long, short)]
        follow: bool,
    },
    /// Send a signal to the ranks' own processes
    Signal {
        /// Name or number, such as USR1
        #[arg(value_parser = parse_signal)]
        signal: i32,
        #[arg(help = JOB_OF_HERE)]
        job: Option<OsString>,
        /// Only this rank; may be repeated
        #[arg(long, short)]
        rank: Vec<usize>,
    },
    /// Stop a job as SIGTERM does, and wait for its end
    Stop(RankEnd),
    /// Tell a job that it is to stop soon, and wait for its end
    ///
    /// Ranks that call rlaunch.should_stop stop at one step, on all nodes. Other jobs are stopped as by SIGTERM.
    Preempt {
        #[arg(help = JOB_OF_HERE)]
        job: Option<OsString>,
        /// Return at once
        #[arg(long, alias = "no_wait")]
        no_wait: bool,
    },
    /// Restart all ranks of a job, and wait until they run
    ///
    /// The ranks are those of all nodes. This does not count as a restart of --max_restart.
    Restart(RankEnd),
    /// Write an HTML page about a job: outcome, timeline, ranks, logs
    ///
    /// Works for ended and for running jobs.
    Report {
        #[command(flatten)]
        job: JobName,
        /// The HTML file; - for stdout [default: LOG_DIR/rlaunch/report.html]
        #[arg(long, short, value_name = "FILE")]
        output: Option<PathBuf>,
        /// Write a Chrome trace too, for Perfetto; - for stdout
        #[arg(long, value_name = "FILE")]
        trace: Option<PathBuf>,
    },
    /// Check this machine before a job, and say what to do
    ///
    /// Looks at limits, folders, GPUs, frameworks, names, ports and variables, and changes nothing. Exit status: 1 if there
    /// is an error, or with --strict a warning; 0 otherwise.
    Doctor {
        /// Log folder to check (for rlaunch-run: its --log-dir) [default: PADDLE_LOG_DIR, or ./log]
        #[arg(long = "log_dir", alias = "log-dir", value_name = "DIR")]
        log_dir: Option<PathBuf>,
        /// The job's --master or --rdzv-endpoint, in addition to PADDLE_MASTER, PET_RDZV_ENDPOINT and MASTER_ADDR
        #[arg(long, value_name = "HOST:PORT")]
        master: Option<String>,
        /// Number of nodes that run this command at once: they rendezvous at --master, as a job would, name differences between
        /// them, and try whether they can connect to each other
        #[arg(long, alias = "nnodes", value_name = "N", requires = "master", value_parser = value_parser!(u32).range(2..=MAX_NODES as i64))]
        nodes: Option<u32>,
        /// Exit with 1 if there is a warning, too: memory of a GPU in use, a small /dev/shm and the like
        #[arg(long)]
        strict: bool,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Print the script that completes this command in a shell
    Completion {
        /// The shell
        shell: Shell,
    },
}

/// The job that a command looks at.
#[derive(Debug, Args)]
pub(super) struct JobName {
    #[arg(help = JOB)]
    job: Option<OsString>,
    /// The job's log folder, or the one above (--log-dir of rlaunch-run)
    #[arg(long = "log_dir", alias = "log-dir", value_name = "FOLDER", conflicts_with = "job")]
    log_dir: Option<PathBuf>,
}

impl JobName {
    pub fn name(&self) -> Option<Cow<'_, OsStr>> {
        // No id or script has the form of an absolute path.
        let folder =
            || self.log_dir.as_ref().map(|folder| std::path::absolute(folder).unwrap_or_else(|_| folder.clone()));
        self.job.as_deref().map(Cow::Borrowed).or_else(|| folder().map(|folder| Cow::Owned(folder.into())))
    }
}

/// How the ranks of a job are asked to end.
#[derive(Debug, Args)]
pub(super) struct RankEnd {
    #[arg(help = JOB_OF_HERE)]
    pub job: Option<OsString>,
    /// Seconds between SIGTERM and SIGKILL, at most the job's own
    #[arg(long = "grace_period", alias = "grace-period", value_name = "SECONDS", value_parser = parse_seconds)]
    pub grace_period: Option<f64>,
    /// Return at once
    #[arg(long, alias = "no_wait")]
    pub no_wait: bool,
}

fn parse_seconds(text: &str) -> Result<f64, String> {
    let seconds = text.parse().ok().filter(|seconds: &f64| seconds.is_finite() && *seconds >= 0.0);
    seconds.ok_or_else(|| "give a number of seconds, 0 or more".to_owned())
}

fn parse_signal(text: &str) -> Result<i32, String> {
    signal_number(text).ok_or_else(|| format!("{text} is no signal; give a name such as USR1, or a number"))
}

/// The help of a command, or of `all`.
pub(super) fn help(name: &str) -> Result<String, CommandLineError> {
    let request = Request::command();
    let names: Vec<&str> = request.get_subcommands().map(clap::Command::get_name).collect();
    match name {
        "all" => {
            let text = |name| match name {
                "launch" => paddle::parse::help(Some("all")),
                "run" => torchrun::parse::help(Some("all")),
                name => help(name),
            };
            Ok(names.into_iter().map(text).collect::<Result<Vec<_>, _>>()?.join("\n"))
        }
        "launch" => paddle::parse::help(None),
        "run" => torchrun::parse::help(None),
        // clap gives the help as an error.
        _ if names.contains(&name) => {
            Ok(Request::try_parse_from([PROGRAM, name, "--help"])
                .map_or_else(|help| help.to_string(), |_| String::new()))
        }
        _ => {
            let topics = std::iter::once("all").chain(names).map(str::to_owned).collect();
            Err(CommandLineError::UnknownTopic { topic: name.to_owned(), topics })
        }
    }
}

/// The word for `--help`.
pub(super) const HELP: &str = "help";

/// The command whose help a command line asks for: `--help stop`, `--help=stop`, `help stop`.
pub(super) fn asked_help(args: &[OsString]) -> Option<&str> {
    let (first, rest) = args.split_first()?;
    match first.to_str()? {
        "-h" | "--help" | HELP => rest.first()?.to_str().filter(|name| !name.starts_with('-')),
        first => first.strip_prefix("--help="),
    }
}

/// The script that completes the command in this shell.
pub(super) fn completion(shell: Shell) -> String {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Request::command(), PROGRAM, &mut script);
    String::from_utf8_lossy(&script).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Request::command().debug_assert();
    }
}
