//! Facts about the end of the rank that failed first, beyond its exit and its exception: one paragraph each.

use crate::model::Exit;
use crate::model::plain_text::escape;
use crate::plan::RankPlan;
use crate::probe::limits::processes::ProcessCounters;
use crate::probe::memory::OomCounters;
use crate::report::cause::blame::{Blame, find_logged};
use crate::report::cause::fault::RankFault;
use crate::report::cause::uncaught::{NotedException, ThreadError, UncaughtException};
use crate::report::cause::verdict::Ground;
use crate::report::wording::{counted, lasted};
use crate::run::launch::Launch;
use crate::run::launch_result::LaunchResult;
use crate::run::rank_state::RankState;
use std::path::Path;
use std::time::Duration;

/// Bytes of a rank's log in which a logged exception is looked for.
pub const LOGGED_BYTES: u64 = 4 << 20;

/// The explanations, a line each; `None`: there are none. `bytes`: the end of its stderr; `log`: more of it, read if needed.
pub fn explain(
    (launch, launched): (&Launch<'_>, &LaunchResult),
    (local, exit): (usize, Exit),
    (memory, processes): (&OomCounters, &ProcessCounters),
    (bytes, log): (&[u8], &dyn Fn() -> Vec<u8>),
    blame: Option<&Blame>,
) -> Option<String> {
    let (rank, process, end) = (&launch.plan.ranks[local], &launched.processes[local], &launched.report.ranks[local]);
    let ground = launched.verdict.as_ref().filter(|_| end.signalled).map(|verdict| verdict.ground);
    let of_stop = ground.and_then(|ground| of_stop(launch, ground));
    let error = blame.map(|blame| blame.fault.to_string()).unwrap_or_default();
    let of_limit = || process.limits.explain(exit, &error);
    let of_limit = (!end.signalled).then(of_limit).flatten();
    let is_killed = !end.signalled && exit == Exit::Signal(libc::SIGKILL) && process.aborted.is_none();
    let of_memory = is_killed.then(|| OomCounters::now(Path::new("/")).explain(memory)).flatten();
    let of_sender = (is_killed && of_memory.is_none() && of_limit.is_none())
        .then(|| "the kernel counted no out-of-memory kill, so a process sent it, perhaps the rank itself".to_owned());
    let peak = process.usage.map(|usage| usage.peak_memory);
    let of_core = (!end.signalled).then(|| process.limits.explain_missing_core(exit, peak)).flatten();
    let of_processes =
        is_refused_process(bytes).then(|| ProcessCounters::now(Path::new("/")).explain(processes)).flatten();
    let of_variable = blame.and_then(|blame| of_variable(rank, blame));
    let ended_at = end.started_at.zip(end.lived).map(|(started, lived)| started + lived);
    let threads = process.notes.thread.iter().filter(|thread| !blame.is_some_and(|blame| is_shown(blame, thread)));
    let of_thread = threads.map(|thread| of_thread(thread, ended_at)).next();
    let own_exit = process.own_exit(exit);
    let by_itself = process.uncaught == UncaughtException::None && matches!(own_exit, Exit::Code(_)) && !end.signalled;
    let of_logged = (by_itself && blame.is_none()).then(|| of_logged(&log())).flatten();
    let of_exit = by_itself.then(|| of_exit(process, own_exit)).flatten();
    let of_import = of_import(process);
    let of_system = [of_stop, of_limit, of_memory, of_sender, of_core, of_processes];
    let of_program = [of_variable, of_thread, of_logged, of_exit, of_import];
    let all: Vec<String> = of_system.into_iter().chain(of_program).flatten().collect();
    (!all.is_empty()).then(|| all.join("\n"))
}

fn of_stop(launch: &Launch<'_>, ground: Ground) -> Option<String> {
    Some(match ground {
        Ground::EndedFirst => return None,
        Ground::ErrorFile => {
            "it wrote its error file before any other rank ended, and was still exiting when it was stopped".to_owned()
        }
        Ground::FailedLater(other) => {
            let other = launch.plan.ranks[other].label();
            format!("it had failed, and was still exiting when {other} failed too and exited; then it was stopped")
        }
    })
}

fn of_variable(rank: &RankPlan, blame: &Blame) -> Option<String> {
    let name = blame.fault.missing_torch_variable().filter(|name| rank.env.get(name).is_none())?;
    Some(format!("this job does not set torch's {name}: start it with --frameworks torch, or paddle,torch"))
}

/// Returns true if the report shows the exception of a thread as the error.
fn is_shown(blame: &Blame, thread: &ThreadError) -> bool {
    let is_it = |fault: &RankFault| fault.what == thread.fault.what && fault.place == thread.fault.place;
    is_it(&blame.fault) || blame.root.as_ref().is_some_and(is_it)
}

fn of_thread(thread: &ThreadError, ended_at: Option<Duration>) -> String {
    let before = ended_at.map_or(String::new(), |at| format!(" {} before", lasted(at.saturating_sub(thread.at))));
    let place = thread.fault.place.as_ref().map_or(String::new(), |place| format!(", at {place}"));
    let (name, error) = (escape(&thread.name), escape(&thread.fault.in_a_line()));
    format!("its thread {name} ended{before} by {error}{place}")
}

/// The last exception that a rank logged, which ended by itself much later.
fn of_logged(log: &[u8]) -> Option<String> {
    let (fault, lines) = find_logged(log)?;
    let place = fault.place.as_ref().map_or(String::new(), |place| format!(", at {place}"));
    let lines = counted(lines, "line", "lines");
    Some(format!("logged before: {} (caught), {lines} above the end{place}", fault.in_a_line()))
}

/// Where the program called `sys.exit`, if that call gave the exit status.
fn of_exit(process: &RankState, exit: Exit) -> Option<String> {
    let (status, place) = process.notes.exit_call.as_ref().filter(|(status, _)| exit == Exit::Code(*status))?;
    Some(format!("it called sys.exit({status}) at {place}"))
}

fn of_import(process: &RankState) -> Option<String> {
    let UncaughtException::Raised(NotedException { interpreter, other_venv, .. }) = &process.uncaught else {
        return None;
    };
    let python = interpreter.as_ref()?;
    Some(match other_venv {
        Some(venv) => format!("VIRTUAL_ENV is {venv}, but {python} ran"),
        None => format!("the interpreter was {python}"),
    })
}

/// Returns true if a rank has written that the system refused it a process or a thread (fork(2), pthread_create(3), EAGAIN).
fn is_refused_process(bytes: &[u8]) -> bool {
    const TEXTS: [&[u8]; 3] = [b"can't start new thread", b"Resource temporarily unavailable", b"EAGAIN"];
    TEXTS.iter().any(|text| bytes.windows(text.len()).any(|window| window == *text))
}
