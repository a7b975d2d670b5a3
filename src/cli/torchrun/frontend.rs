//! `python -m rlaunch.run`: the drop-in for `torchrun`.

use crate::cli::common::command_line;
use crate::cli::common::error::CliError;
use crate::cli::common::interpreter::Interpreter;
use crate::cli::common::startup::{self, LauncherEnv, print_output, run_launcher};
use crate::cli::common::status_pipe::StatusPipe;
use crate::cli::common::{exit_code, message};
use crate::cli::torchrun::parse;
use crate::cli::torchrun::parse::TorchrunArgs;
use crate::cli::torchrun::{report, run};
use crate::spec::options::{OptValues, ValueSource, printable};
use crate::spec::torchrun::{self, TorchrunBackend, options, scheduler};
use crate::sys::signals::Signals;
use std::ffi::OsString;
use std::os::fd::RawFd;
use std::path::PathBuf;
use tracing::{debug, info, warn};

/// Runs the launcher and returns its exit status. `args`: without the program's name; `python`: the interpreter for the
/// ranks; `status_fd`: the write end of the status pipe, or negative; `from_pet`: whether PET_ variables supply options
/// that the command line leaves out.
pub fn main(args: &[OsString], python: &Interpreter, status_fd: RawFd, from_pet: bool) -> i32 {
    run_launcher(status_fd, |signals, status_pipe| parse_and_launch(args, python, from_pet, signals, status_pipe))
}

fn parse_and_launch(
    args: &[OsString],
    python: &Interpreter,
    from_pet: bool,
    signals: &mut Signals,
    status_pipe: &mut StatusPipe,
) -> Result<i32, CliError> {
    let (flags, rest) = match parse::parse(args)? {
        TorchrunArgs::Job { flags, rest } => (flags, rest),
        TorchrunArgs::Print(text) => {
            print_output(&text);
            return Ok(exit_code::OK);
        }
    };
    if from_pet {
        command_line::check_copied(&flags, &std::collections::BTreeMap::new(), &rest)?;
    }
    if rest.is_empty() {
        return Err(parse::NO_SCRIPT.into());
    }
    let (base, all) = startup::read_environment(if from_pet { options::OPTIONS } else { &[] })?;
    let LauncherEnv { mut base, vars, outer } = startup::separate_outer_exports(base, &all);
    base.retain(|(name, _)| name != "RLAUNCH_TITLE");
    // In a worker of another launcher, the error file is that worker's, and this launcher's failure is the worker's.
    let error_file = all.get("TORCHELASTIC_ERROR_FILE").filter(|path| !path.is_empty()).map(PathBuf::from);
    let mut values = options::merge(&flags, &vars, from_pet);
    let write_error_file = |error: CliError| {
        report::write_launcher_error(error_file.as_deref(), &format!("RuntimeError: {error}"));
        error
    };
    let check = |values: &mut OptValues| {
        let by_scheduler = if outer.is_none() { scheduler::ask(values, &vars)? } else { None };
        let nodes = by_scheduler.map(|(nodes, filled)| {
            values.fill(filled);
            nodes
        });
        let mut spec = torchrun::check(values, &vars, &rest)?;
        if let (Some(nodes), TorchrunBackend::Dynamic(rendezvous)) = (&nodes, &mut spec.rendezvous) {
            // In an elastic job, or one with spare nodes, other nodes may have this number.
            let (min, max) = rendezvous.nodes;
            rendezvous.node_rank = nodes.rank.filter(|_| min == max && nodes.nnodes == Some(max));
        }
        Ok((spec, nodes))
    };
    let (mut spec, nodes) = check(&mut values).map_err(CliError::Usage).map_err(&write_error_file)?;
    let is_compat = spec.exit_code_compat;
    message::with_torchrun_log(&spec.log_level.clone(), || {
        for warning in command_line::doubtful_arguments(&flags, &rest) {
            warn!("{warning}");
        }
        startup::log_ignored_stops(signals);
        for warning in spec.warnings.drain(..) {
            warn!("{warning}");
        }
        for (name, value) in values.iter().filter(|(_, v)| v.source != ValueSource::Default) {
            debug!("{name}: {}", printable(name, &value.text));
        }
        if let Some(outer) = &outer {
            info!("{outer}");
        }
        if let Some(nodes) = nodes.filter(|nodes| nodes.rank == Some(0)) {
            // torchrun would run this node alone.
            message::print_notice(&format!("{nodes}, which run one job"));
        }
        run::launch(&spec, &vars, base, python, error_file.as_deref(), signals, status_pipe).map_err(&write_error_file)
    })
    .map(|status| if is_compat { exit_code::as_torchrun(status) } else { status })
    .map_err(|error| if is_compat { CliError::AsTorchrun(Box::new(error)) } else { error })
}
