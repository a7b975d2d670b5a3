//! Running a plan on this node, whichever door it came in by: as front and supervisor, to the exit status.

use super::conclude::{Circumstances, complain_about_stuck, verdict};
use super::record::Record;
use super::refusal::{Refusal, complain, tell, unmet};
use super::rounds::{self, Meeting};
use super::{ends, exit_code, notes};
use crate::log::secret;
use crate::log::verdict::{self, Style, Verdict, render};
use crate::model::Exit;
use crate::rendezvous::torch_static::Nodes;
use crate::run::console::Shown;
use crate::run::front::{self, Front, Guarded, Loss, Side, Supervisor};
use crate::run::journal::{self, Journal, What};
use crate::run::launch::{Launch, Launched, Listener, Others};
use crate::run::membership::Halt;
use crate::run::request::Requests;
use crate::run::result;
use crate::run::together::Parting;
use crate::run::{self, logs, sweep, temporary};
use crate::supervise::{ChildId, Note, Outcome, Policy};
use crate::sys::ports::Lease;
use crate::sys::process;
use crate::sys::signals::{self, HELD_IN_FRONT, Signals};
use crossbeam_channel::bounded;
use std::collections::BTreeSet;
use std::io;
use std::time::Duration;
use tracing::warn;

/// What one door says, and how it ends, where doors differ.
pub trait Door {
    /// What the end is explained with.
    fn circumstances(&self) -> &Circumstances;
    /// The job is about to begin.
    fn begins(&self, launch: &Launch<'_>);
    /// Its records are there; its ranks are next.
    fn runs(&self, _launch: &Launch<'_>) {}
    /// A process runs.
    fn started(&self, _id: ChildId, _pid: i32, _launch: &Launch<'_>) {}
    /// Something happens on the way down, or up again.
    fn notes(&self, note: &Note, policy: &Policy, launch: &Launch<'_>) {
        notes::say(note, policy, &|local| launch.plan.ranks[local].who());
    }
    /// The local rank that failed first, where that is not the one that ended first.
    fn failed_first(&self, _launch: &Launch<'_>, _launched: &Launched) -> Option<usize> {
        None
    }
    /// The exit status.
    fn status(&self, launched: &Launched) -> i32 {
        exit_code::after(launched)
    }
    /// The exit status of a job that has ended so on all nodes.
    fn told(&self, status: i32) -> i32 {
        status
    }
    /// Whether whoever reads the record is told of this end: nothing of the job follows.
    fn has_last_word(&self, _launch: &Launch<'_>, _status: i32) -> bool {
        true
    }
    /// It has ended.
    fn ends(&self, launch: &Launch<'_>, launched: &Launched, status: i32, verdict: Option<&Verdict>);
}

/// What this node has to do.
pub enum Work<'a> {
    /// Its plan, once.
    Once,
    /// The same, tied to others that have met at node 0's store.
    AtStore(Nodes),
    /// A plan for each round that others run with it.
    Rounds(&'a dyn Meeting),
}

/// A door, and whose job it tells of.
pub(super) struct At<'a> {
    pub(super) door: &'a dyn Door,
    pub(super) launch: &'a Launch<'a>,
}

impl Listener for At<'_> {
    fn started(&self, id: ChildId, pid: i32) {
        self.door.started(id, pid, self.launch);
    }

    fn noted(&self, note: &Note) {
        self.door.notes(note, &self.launch.policy, self.launch);
    }

    fn importing(&self, modules: &str) {
        tell(&format!("importing {modules} for all ranks ..."));
    }

    fn imported(&self, modules: &str, seconds: f64) {
        tell(&format!("imported {modules} in {seconds:.1} s"));
    }

    fn without_zygote(&self, why: &str) {
        tell(&format!("no zygote: {why}; every rank imports for itself"));
    }

    fn halted(&self, parting: &Parting) {
        // What goes before the end of this node alone is said with that.
        if let (Parting::Halted(Halt::Told(..)), Some(why)) = (parting, ends::why(parting)) {
            tell(&why);
        }
    }
}

/// Runs the job to its end and returns the exit status; in the supervisor, never.
pub fn carry_out(
    launch: &Launch<'_>,
    door: &dyn Door,
    (leases, work): (Vec<Lease>, Work<'_>),
    signals: &mut Signals,
    record: &mut Record,
) -> Result<i32, Refusal> {
    if let Some(folder) = &launch.temporary {
        temporary::make(folder).map_err(unmet)?;
    }
    match front::split(signals) {
        Ok(Side::Front(front)) => {
            // The store is the supervisor's: nobody must take this process for it.
            drop(launch.store.take());
            drop(work);
            Ok(watch(&front, signals, launch, &door.circumstances().host, record))
        }
        Ok(Side::Supervisor(supervisor)) => process::end(|| {
            if record.is_read() {
                signals::let_through(&HELD_IN_FRONT);
            }
            let done = match work {
                Work::Once => supervise(launch, None, &supervisor, signals, door),
                Work::AtStore(nodes) => supervise(launch, Some(nodes), &supervisor, signals, door),
                Work::Rounds(meeting) => rounds::supervise(launch, meeting, &supervisor, signals, door),
            };
            let status = match done {
                // The second pass has the last word.
                Ok((status, _)) if !door.has_last_word(launch, status) => status,
                Ok((status, result)) => {
                    record.write(&result);
                    status
                }
                // Not a word of it in the record: the front ends what is left, and says how it ended.
                Err(Refusal(text, exit_code::INTERNAL)) => {
                    complain(&text);
                    return exit_code::INTERNAL;
                }
                Err(refusal) => refusal.told(record),
            };
            // Where it has served several rounds, or the work ended by an error.
            if launch.zygote.as_ref().is_some_and(|zygote| zygote.end()) {
                // What its modules have started, if anything. Nobody could be looked for: the front does.
                let _ = sweep::everybody(&BTreeSet::new(), None);
            }
            // Before the report: what is PID 1 takes this process with it when it ends.
            sweep::close(launch.cgroup.as_ref());
            temporary::remove(launch.temporary.as_deref());
            // The kernel may take its time to end this process, and the next job may want these ports.
            drop(leases);
            supervisor.report(status);
            status
        }),
        Err(e) => {
            temporary::remove(launch.temporary.as_deref());
            Err(Refusal(format!("cannot start the supervisor: {}", logs::plain(&e)), exit_code::START_FAILED))
        }
    }
}

/// The front: what it has to say is said when the supervisor cannot.
fn watch(front: &Front, signals: &Signals, launch: &Launch<'_>, host: &str, record: &mut Record) -> i32 {
    let (loss, swept) = match front.guard(signals, launch) {
        Ok(Guarded::Status(status)) => return status,
        Ok(Guarded::Lost(loss, swept)) => {
            temporary::remove(launch.temporary.as_deref());
            (loss, swept)
        }
        Err(error) => {
            let text = format!("the launcher's front cannot watch: {error}");
            return Refusal(text, exit_code::INTERNAL).told(record);
        }
    };
    let (status, how) = match loss {
        Loss::Ended(exit @ Exit::Code(exit_code::INTERNAL)) => (exit_code::INTERNAL, format!("had to give up, {exit}")),
        Loss::Ended(exit) => (exit_code::SUPERVISOR_LOST, format!("ended by {exit}")),
        Loss::Stuck => (exit_code::SUPERVISOR_LOST, "did not stop in time and was killed".into()),
    };
    let text = format!("the launcher's supervisor process {how}, and the job with it");
    complain(&text);
    complain_about_stuck(&swept.stuck);
    let names: Vec<String> = swept.killed.iter().map(|process| process.name.clone()).collect();
    if !names.is_empty() {
        tell(&verdict::sweep(names.len(), &[], &names));
    }
    record.write_error(&text, status);
    let result = serde_json::to_value(result::without_supervisor(launch, host, status, names.len()));
    // What the supervisor hung at may be the log folder: this process is not to hang there as well.
    let (folder, (done, wait)) = (launch.log_dir.clone(), bounded(1));
    std::thread::spawn(move || {
        let _ = done.send(journal::conclude(&folder, &result.unwrap_or_default()));
    });
    if let Ok(Err(error)) = wait.recv_timeout(Duration::from_secs(1)) {
        warn!("result.json cannot be written: {}", logs::plain(&error));
    }
    status
}

/// The supervisor: runs the ranks to their end. Returns the exit status, and what `result.json` holds.
fn supervise(
    launch: &Launch<'_>,
    nodes: Option<Nodes>,
    supervisor: &Supervisor,
    signals: &Signals,
    door: &dyn Door,
) -> Result<(i32, serde_json::Value), Refusal> {
    door.begins(launch);
    let journal = begin(launch, door)?;
    door.runs(launch);
    let others = nodes.map_or(Others::None, Others::AtStore);
    let signals = (signals, &mut Requests::default());
    let mut launched =
        run::launch::run(launch, others, supervisor, signals, journal, &At { door, launch }).map_err(failed)?;
    let exit_status = status(launch, &mut launched, door);
    Ok(end(launch, launched, exit_status, door))
}

pub(super) fn failed(error: io::Error) -> Refusal {
    Refusal(format!("the launcher's loop failed: {error}"), exit_code::INTERNAL)
}

/// Opens the records.
pub(super) fn begin(launch: &Launch<'_>, door: &dyn Door) -> Result<Journal, Refusal> {
    let plan = launch.plan;
    let mut journal = Journal::open(&launch.log_dir).map_err(unmet)?;
    let host = &door.circumstances().host;
    let argv = plan.ranks.first().map_or(&[][..], |rank| &rank.argv);
    let argv = secret::words(argv.iter().map(|arg| arg.to_string_lossy()));
    let (job_id, ranks) = (&plan.job_id, plan.ranks.len());
    journal.write(What::JobStarted { job_id, host, ranks, supervisor: std::process::id(), argv });
    Ok(journal)
}

/// Closes them, and has the last word; the exit status, and what `result.json` holds.
pub(super) fn end(
    launch: &Launch<'_>,
    mut launched: Launched,
    exit_status: i32,
    door: &dyn Door,
) -> (i32, serde_json::Value) {
    let host = &door.circumstances().host;
    launched.journal.write(What::JobEnded { outcome: result::outcome(&launched), exit_status });
    let verdict = verdict(launch, &launched, exit_status, door.circumstances());
    let text = verdict.as_ref().map(|verdict| render(verdict, Style::default()).trim_end().to_owned());
    let result = result::sum_up(launch, &launched, host, exit_status, text.as_deref());
    let is_all_said = !matches!(launched.shown, Shown::AllBut(_)) && exit_status == exit_code::OK;
    let unneeded = launch.disposable.as_deref().filter(|_| is_all_said);
    if unneeded.is_none()
        && let Err(error) = journal::conclude(&launch.log_dir, &result)
    {
        warn!("result.json cannot be written: {}", logs::plain(&error));
    }
    let result = serde_json::to_value(result).unwrap_or_default();
    door.ends(launch, &launched, exit_status, verdict.as_ref());
    temporary::remove(unneeded);
    (exit_status, result)
}

/// Puts the blame right, and returns the exit status. Who was already ending when it was told to stop has none of its
/// own: then it is that of who ended first.
pub(super) fn status(launch: &Launch<'_>, launched: &mut Launched, door: &dyn Door) -> i32 {
    let observed = door.status(launched);
    let first = door.failed_first(launch, launched).and_then(|local| Some((local, launched.report.ranks[local].exit?)));
    let Some((culprit, exit)) = first else { return observed };
    launched.report.outcome = Outcome::Failed { culprit, exit };
    if launched.report.ranks[culprit].told { observed } else { door.status(launched) }
}
