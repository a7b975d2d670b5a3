//! Reads the stacks of ranks in a process of its own, which ends afterwards: the reader needs memory that the launcher must not
//! keep, and a file system that hangs may hold it up.

pub mod collector;
pub mod look;
pub mod output_mark;
pub mod polled_reader;

use crate::model::{ProcessLabel, Role};
use crate::report::stacks::{RankLine, StackDump, render_stacks};
use crate::sys::process::procfs;
use crate::sys::process::procfs::stat::ProcStat;
use collector::{StackReader, StacksUnavailable};
use look::{RankTarget, StackAnswer, StackRequest};
use std::ffi::OsString;

/// The name of the threads that start a reader process, and of that process until its execve succeeds.
pub const READER_THREAD: &str = "rlaunch-look";

/// Whether this is a reader of stacks that is being started, from a disk that hangs: it is the launcher's, and has the command line of this
/// process until its execve succeeds. A rank may give its processes any name.
pub fn is_reader(pid: i32, stat: &ProcStat) -> bool {
    let command = |pid| procfs::read(pid, "cmdline").ok();
    let this = std::process::id() as i32;
    stat.name == READER_THREAD && stat.parent == this && command(pid).is_some_and(|own| Some(own) == command(this))
}

/// The stacks of child processes of this one: their ranks and process ids. `python`: the absolute path of an interpreter that has this
/// package.
pub fn read(ranks: &[(usize, i32)], python: OsString) -> Result<StackDump, StacksUnavailable> {
    let target =
        |&(rank, pid): &(usize, i32)| Some(RankTarget::new(rank, (pid, ProcStat::of(pid)?.started), Vec::new()));
    let environment: Vec<(OsString, OsString)> = std::env::vars_os().collect();
    let request = StackRequest { ranks: ranks.iter().filter_map(target).collect(), hang: None };
    let answer = StackReader::new(python.into(), &environment).start(&request)?.wait()?;
    let StackAnswer::Stacks(dump) = answer else { return Err(StacksUnavailable::Failed) };
    Ok(dump)
}

/// The same as text: equal stacks once, the odd rank last and named.
pub fn describe(ranks: &[(usize, i32)], python: OsString) -> Result<String, StacksUnavailable> {
    let dump = read(ranks, python)?;
    let line = |&(rank, _): &(usize, i32)| RankLine {
        local_rank: rank,
        label: ProcessLabel { role: Role::Trainer, number: rank },
        has_ended: false,
        place: None,
    };
    Ok(render_stacks(&dump, &ranks.iter().map(line).collect::<Vec<_>>()))
}
