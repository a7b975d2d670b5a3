//! The command line of `rlaunch`.

use crate::model::exit::signal_number;
use crate::report::wording;
use clap::{CommandFactory, Parser, Subcommand};
use clap_complete::Shell;
use std::ffi::OsString;
use std::path::PathBuf;

/// The name of the command.
pub(super) const PROGRAM: &str = "rlaunch";

const JOB: &str = "The launcher's process id, the job's id or its log folder [default: the only job that runs]";

/// Starts distributed training jobs, and looks into those that run or have ended.
#[derive(Debug, Parser)]
#[command(name = PROGRAM, version, max_term_width = wording::COLUMNS, disable_help_subcommand = true)]
#[command(
    after_help = "Jobs are those of this user on this machine. Exit status: 0; 1 if there is no such job or its launcher \
    refuses; 2 for an invalid command line. `launch` and `run` have the exit status of their job."
)]
pub(super) struct Request {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Start a job like `python -m paddle.distributed.launch`; the same as `python -m rlaunch`
    #[command(disable_help_flag = true)]
    Launch {
        /// Its options, the script and the script's arguments
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<OsString>,
    },
    /// Start a job like `torchrun`; the same as `python -m rlaunch.run`
    #[command(disable_help_flag = true)]
    Run {
        /// Its options, the script and the script's arguments
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<OsString>,
    },
    /// List the jobs that run
    Ps {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Show a job's ranks on all nodes: state, process id, CPU, memory, last output
    Status {
        #[arg(help = JOB)]
        job: Option<String>,
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
    /// Show a job's ranks live in the terminal, with their stacks and logs, and stop it from there; ? lists the keys
    Top {
        #[arg(help = JOB)]
        job: Option<String>,
        /// Only this machine's ranks, not those of the job's other nodes
        #[arg(long, alias = "this_node")]
        this_node: bool,
    },
    /// Show where each rank of all nodes is: Python stacks, equal ones once, and the rank that the others wait for
    Stacks {
        #[arg(help = JOB)]
        job: Option<String>,
        /// Print JSON
        #[arg(long)]
        json: bool,
        /// Only this machine's ranks, not those of the job's other nodes
        #[arg(long, alias = "this_node")]
        this_node: bool,
    },
    /// Show the last lines of the ranks' logs
    Logs {
        #[arg(help = JOB)]
        job: Option<String>,
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
        #[arg(help = JOB)]
        job: Option<String>,
        /// Only this rank; may be repeated
        #[arg(long, short)]
        rank: Vec<usize>,
    },
    /// Stop a job as SIGTERM does, and wait for its end
    Stop {
        #[arg(help = JOB)]
        job: Option<String>,
        /// Seconds between SIGTERM and SIGKILL, at most the job's own
        #[arg(long = "grace_period", alias = "grace-period", value_name = "SECONDS", value_parser = parse_seconds)]
        grace_period: Option<f64>,
        /// Do not wait for the end
        #[arg(long, alias = "no_wait")]
        no_wait: bool,
    },
    /// Restart all ranks of a job, on all its nodes, and wait until they run; counts as no restart of --max_restart
    Restart {
        #[arg(help = JOB)]
        job: Option<String>,
        /// Seconds between SIGTERM and SIGKILL, at most the job's own
        #[arg(long = "grace_period", alias = "grace-period", value_name = "SECONDS", value_parser = parse_seconds)]
        grace_period: Option<f64>,
        /// Do not wait until the ranks run again
        #[arg(long, alias = "no_wait")]
        no_wait: bool,
    },
    /// Write a page about a job that has ended or runs: outcome, timeline, ranks, logs
    Report {
        /// The job's log folder
        #[arg(value_name = "LOG_DIR")]
        folder: PathBuf,
        /// The HTML file; - for stdout [default: LOG_DIR/rlaunch/report.html]
        #[arg(long, short, value_name = "FILE")]
        output: Option<PathBuf>,
        /// Write a Chrome trace too, for Perfetto; - for stdout
        #[arg(long, value_name = "FILE")]
        trace: Option<PathBuf>,
    },
    /// Print the script that completes this command in a shell
    Completion {
        /// The shell
        shell: Shell,
    },
}

fn parse_seconds(text: &str) -> Result<f64, String> {
    let seconds = text.parse().ok().filter(|seconds: &f64| seconds.is_finite() && *seconds >= 0.0);
    seconds.ok_or_else(|| "give a number of seconds, 0 or more".to_owned())
}

fn parse_signal(text: &str) -> Result<i32, String> {
    signal_number(text).ok_or_else(|| format!("{text} is no signal; give a name such as USR1, or a number"))
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
