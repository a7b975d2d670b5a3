//! The command `rlaunch`: `ps`, `status`, `logs`, `report` for all jobs, `top`, `stacks`, `signal`, `stop`, `restart` for those
//! that run, and `doctor` for this machine.

mod arguments;
mod client;
mod ended;
mod error;
mod follow_logs;
mod jobs;
mod nodes_json;
mod restart_job;
mod stacks_text;
mod status_table;
mod stop_job;
mod top;
mod write_report;

use crate::cli::common::exit_code;
use crate::cli::common::interpreter::Interpreter;
use crate::cli::common::message::{print_error, print_notice};
use crate::cli::common::startup::print_output;
use crate::cli::doctor::{self, DoctorOptions};
use crate::report::job_status::JobStatus;
use crate::run::control::message::ControlRequest;
use crate::run::control::node_answer::NodeQuestion;
use crate::run::control::rank_facts;
use crate::run::record::history;
use crate::sys::process::pidfd;
use arguments::{Command, RankEnd, Request};
use clap::error::ErrorKind;
use clap::{CommandFactory, Parser};
use client::{Answers, INTERVAL};
use ended::job_folder::JobFolder;
use ended::show;
use error::ControlError;
use jobs::find::{self, Found, Target};
use jobs::table;
use std::ffi::{OsStr, OsString};
use std::os::fd::AsFd;
use std::path::Path;

/// The command was not carried out: there is no such job, or its launcher refused.
const FAILED: i32 = 1;

/// The command line, for the docs.
pub fn command() -> clap::Command {
    Request::command()
}

/// Runs the command with these arguments, without the program's name, and returns its exit status.
pub fn main(args: &[OsString], interpreter: Interpreter) -> i32 {
    if let Some(name) = arguments::asked_help(args) {
        return match arguments::help(name) {
            Ok(text) => {
                print_output(&text);
                exit_code::OK
            }
            Err(error) => {
                print_error(&error.to_string());
                exit_code::USAGE
            }
        };
    }
    let words: &[OsString] = if args == [arguments::HELP] { &["--help".into()] } else { args };
    let words = std::iter::once(OsString::from(arguments::PROGRAM)).chain(words.iter().cloned());
    let request = match Request::try_parse_from(words) {
        Ok(request) => request,
        Err(error) => {
            // Help and the version go to stdout.
            let _ = error.print();
            if error.kind() == ErrorKind::InvalidSubcommand {
                print_notice(
                    "to start a script: `rlaunch launch SCRIPT`, or `rlaunch run SCRIPT` with torchrun's options",
                );
            }
            return if error.use_stderr() { exit_code::USAGE } else { exit_code::OK };
        }
    };
    let command = match request.command {
        Command::Doctor { log_dir, master, nodes, strict, json } => {
            let (log_dir, master) = (log_dir.as_deref(), master.as_deref());
            let options = DoctorOptions { log_dir, master, nodes, strict, json };
            return if doctor::run(options, interpreter) { exit_code::OK } else { FAILED };
        }
        command => command,
    };
    match carry_out(command) {
        Ok(()) => exit_code::OK,
        Err(error) => {
            print_error(&error.to_string());
            FAILED
        }
    }
}

fn carry_out(command: Command) -> Result<(), ControlError> {
    match command {
        Command::Ps { all, json } => list_jobs(all, json),
        Command::Status { job, json, watch, this_node } => {
            show_status(job.name().as_deref(), View { json, this_node }, watch)
        }
        Command::Top { job, this_node } => top::run(job.name().as_deref(), this_node),
        Command::Stacks { job, json, this_node } => show_stacks(job.name().as_deref(), View { json, this_node }),
        Command::Logs { job, rank, lines, follow } => match find::find(job.name().as_deref())? {
            Target::Running((client, _)) => follow_logs::show(client, &rank, lines, follow),
            Target::Ended(ended) => {
                let shown = ended.describe();
                let run = ended.run?;
                print_notice(&format!("{shown}; its logs are in {}", run.logs.display()));
                follow_logs::show_ended(&run, &rank, lines)
            }
        },
        Command::Signal { signal, rank, job } => send_signal(signal, &rank, job.as_deref()),
        Command::Stop(RankEnd { job, grace_period, no_wait }) => {
            let request = ControlRequest::Stop { grace_period };
            stop_job::stop(find::find_to_change(job.as_deref())?.0, request, !no_wait)
        }
        Command::Preempt { job, no_wait } => {
            stop_job::stop(find::find_to_change(job.as_deref())?.0, ControlRequest::Preempt, !no_wait)
        }
        Command::Restart(RankEnd { job, grace_period, no_wait }) => {
            restart_job::restart(find::find_to_change(job.as_deref())?.0, grace_period, !no_wait)
        }
        Command::Report { job, output, trace } => {
            for path in write_report::write(&find_run(job.name().as_deref())?, output.as_deref(), trace.as_deref())? {
                print_output(&format!("{}\n", path.display()));
            }
            Ok(())
        }
        Command::Completion { shell } => {
            print_output(&arguments::completion(shell));
            Ok(())
        }
        Command::Launch { .. } | Command::Run { .. } | Command::Doctor { .. } => Err(ControlError::NotHere),
    }
}

fn list_jobs(with_ended: bool, json: bool) -> Result<(), ControlError> {
    let Found { jobs, silent } = find::all()?;
    for (_, socket) in &silent {
        let socket = socket.display();
        print_notice(&format!("the launcher behind {socket} does not answer; is it stopped, or of another version?"));
    }
    let silent: Vec<i32> = silent.into_iter().map(|(launcher, _)| launcher).collect();
    let jobs: Vec<JobStatus> = jobs.into_iter().map(|(_, status)| status).collect();
    let ended = if with_ended { history::list() } else { Vec::new() };
    if json {
        print_json(&table::json(&jobs, &ended));
    } else if jobs.is_empty() && silent.is_empty() && ended.is_empty() {
        let more = if with_ended { "" } else { "; --all lists those that have ended" };
        print_notice(&format!("no job of this user runs on this machine{more}"));
    } else {
        print_output(&table::text(&jobs, &silent, &ended));
    }
    Ok(())
}

/// The folder of the job that a report is about.
fn find_run(name: Option<&OsStr>) -> Result<JobFolder, ControlError> {
    if let Some(Ok(run)) = name.map(|name| JobFolder::find(Path::new(name)))
        && run.others == 0
    {
        return Ok(run);
    }
    match (find::find(name), name) {
        (Ok(Target::Running((_, status))), _) => Ok(JobFolder::find(&status.log_dir)?),
        (Ok(Target::Ended(ended)), _) => {
            print_notice(&ended.describe());
            Ok(ended.run?)
        }
        // Says what is wrong with the folder of that name.
        (Err(ControlError::NotFound { .. }), Some(name)) => Ok(JobFolder::find(Path::new(name))?),
        (Err(error), _) => Err(error),
    }
}

/// Which nodes are shown, and how.
#[derive(Clone, Copy)]
struct View {
    json: bool,
    this_node: bool,
}

fn show_status(job: Option<&OsStr>, view: View, watch: bool) -> Result<(), ControlError> {
    let mut client = match find::find(job)? {
        Target::Running((client, _)) => client,
        Target::Ended(ended) if view.json => {
            print_json(&show::json(&ended)?);
            return Ok(());
        }
        Target::Ended(ended) => {
            print_output(&show::status(&ended)?);
            return Ok(());
        }
    };
    loop {
        let answers = match client.ask_nodes(NodeQuestion::Status, view.this_node) {
            // The job has ended meanwhile.
            Err(ControlError::Gone) if watch => return Ok(()),
            answers => answers?,
        };
        let Answers { status, nodes, only_this_node } = answers;
        if view.json {
            print_json(&nodes_json::status(&status, &nodes));
        } else {
            let clear = if watch { "\x1b[H\x1b[2J" } else { "" };
            print_output(&format!("{clear}{}", status_table::job(&status, &nodes)));
        }
        note_other_nodes(only_this_node);
        if !watch {
            return Ok(());
        }
        client.await_end(&status, INTERVAL);
    }
}

fn show_stacks(job: Option<&OsStr>, view: View) -> Result<(), ControlError> {
    let (mut client, _) = find::find_to_watch(job)?;
    let Answers { status, nodes, only_this_node } = client.ask_nodes(NodeQuestion::Stacks, view.this_node)?;
    if view.json {
        print_json(&nodes_json::stacks(&status, &nodes));
    } else {
        print_output(&stacks_text::of_nodes(&status, &nodes));
    }
    note_other_nodes(only_this_node);
    Ok(())
}

fn note_other_nodes(only_this_node: Option<String>) {
    if let Some(why) = only_this_node {
        print_notice(&format!("these are the ranks of this machine: {why}"));
    }
}

fn send_signal(signal: i32, ranks: &[usize], job: Option<&OsStr>) -> Result<(), ControlError> {
    let (_, status) = find::find_to_change(job)?;
    let chosen = find::choose_ranks(&status, ranks)?;
    let mut sent = 0;
    for rank in chosen.iter().filter(|rank| rank.is_alive()) {
        let (Some(pid), Some(started)) = (rank.pid, rank.start_ticks) else { continue };
        // The number may have gone to another process between the answer and now.
        let Ok(process) = pidfd::open(pid) else { continue };
        if rank_facts::start_ticks(pid) == Some(started) {
            pidfd::send_signal(process.as_fd(), signal).map_err(|error| ControlError::Signal { pid, error })?;
            sent += 1;
        }
    }
    if sent == 0 { Err(ControlError::NoRank) } else { Ok(()) }
}

fn print_json(value: &serde_json::Value) {
    print_output(&format!("{value:#}\n"));
}
