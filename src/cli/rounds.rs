//! A job whose nodes find each other, on this node: wait for a round, run it, say how it went, until the job is over.

use super::conclude;
use super::ends::{self, Ending};
use super::node::{self, At, Door};
use super::refusal::{Refusal, complain, tell};
use super::waiting::{Waited, Waiting};
use crate::log::verdict::Outcome as Verdictum;
use crate::plan::Plan;
use crate::rendezvous::agree::{End, Failure, Member, Roll, Rules, Standing, millis};
use crate::run;
use crate::run::front::Supervisor;
use crate::run::journal::{self, Journal, What};
use crate::run::launch::{Launch, Launched, Others, Screens};
use crate::run::membership::{Halt, Membership};
use crate::run::together::Parting;
use crate::run::{logs, result, temporary};
use crate::supervise::Outcome;
use crate::sys::signals::Signals;
use serde_json::Value;
use std::mem;
use std::net::TcpListener;
use std::ops::ControlFlow::{self, Break, Continue};
use std::time::Duration;
use tracing::warn;

/// How long the others are given to hear how this node's part has ended.
const LEAVING: Duration = Duration::from_secs(5);

/// A round, as its members see it.
pub struct Round<'a> {
    /// In the order of their numbers.
    pub members: &'a [Member],
    /// This node's place among them.
    pub own: usize,
    /// How many failures the job has had before.
    pub failures: u32,
}

/// What this node runs in a round.
pub struct Part {
    /// Its plan.
    pub plan: Plan,
    /// What of it the console shows.
    pub shown: Screens,
    /// Where it serves a store for the ranks of all nodes, if it does.
    pub store: Vec<TcpListener>,
}

/// Waits for so long at most whether somebody asks for a stop; whether there is any use in trying further.
pub type GoOn<'a> = &'a mut dyn FnMut(Duration) -> bool;

/// How a door's nodes find each other.
pub trait Meeting {
    /// Finds whoever keeps what the nodes share. In the supervisor: threads may be started. `go_on` says once in a while
    /// whether there is any use in trying further.
    fn join(&self, go_on: GoOn<'_>) -> Result<Joined, Refusal>;
    /// Does what comes before a round.
    fn prepare(&self, _round: &Round<'_>, _go_on: &mut dyn FnMut() -> bool) -> Result<(), Refusal> {
        Ok(())
    }
    /// What is to run here in a round.
    fn part(&self, round: &Round<'_>) -> Result<Part, Refusal>;
    /// How long a round may take to come together.
    fn patience(&self) -> Duration;
    /// After what time all may be started again after this failure, or why not, as far as this node's options say.
    fn restart(&self, launched: &Launched, failures: u32) -> Result<Duration, String>;
    /// Whether who is stopped leaves the others to go on without it.
    fn leaves_alone(&self) -> bool {
        false
    }
    /// Who is waited for, where that is said in other words.
    fn roll_call(&self, _roll: Option<&Roll>) -> Option<String> {
        None
    }
}

/// How the others were found.
pub enum Joined {
    /// By a tie that holds.
    Tied(Box<Membership>),
    /// Once, by a list, in which this node has this place: nothing more is heard of them.
    Listed(Vec<Member>, usize),
    /// Not at all: this signal came first.
    Stopped(i32),
}

/// A round that has ended here.
struct Ran {
    plan: Plan,
    attempt: u32,
    launched: Launched,
}

/// Runs this node's part of all rounds. Returns the exit status, and what `result.json` holds.
pub fn supervise(
    launch: &Launch<'_>,
    meeting: &dyn Meeting,
    supervisor: &Supervisor,
    signals: &Signals,
    door: &dyn Door,
) -> Result<(i32, Value), Refusal> {
    let mut journal = node::begin(launch, door)?;
    let mut waiting = Waiting::new(launch, supervisor, signals, meeting);
    let joined = meeting.join(&mut |time| waiting.pause(time));
    if let Some(signal) = waiting.requests.stopped_by() {
        return Ok(without_ranks(launch, &Ending::Stopped(signal), journal, door));
    }
    let mut membership = match joined? {
        Joined::Tied(membership) => membership,
        Joined::Stopped(signal) => return Ok(without_ranks(launch, &Ending::Stopped(signal), journal, door)),
        Joined::Listed(members, own) => {
            let Part { plan, shown, store } = meeting.part(&Round { members: &members, own, failures: 0 })?;
            let this = launch.of_round(&plan, shown, store, 0);
            door.begins(&this);
            door.runs(&this);
            let (with, listener) = ((signals, &mut waiting.requests), At { door, launch: &this });
            let ran = run::launch::run(&this, Others::None, supervisor, with, journal, &listener);
            let mut launched = ran.map_err(node::failed)?;
            let status = node::status(&this, &mut launched, door);
            return Ok(node::end(&this, launched, status, door));
        }
    };
    let mut last: Option<Ran> = None;
    // Whose failure all are started again after, where it was here: the others have been told already.
    let mut failed: Option<Failure> = None;
    let ending = loop {
        let number = match waiting.wait(&mut membership).map_err(node::failed)? {
            Waited::Round(number) => number,
            Waited::Ended(ending) => break ending,
        };
        let failures = membership.state().map_or(0, |state| state.failures);
        if let Some(failure) = failed.take() {
            tell(&format!("{}; all ranks of all nodes are started again", ends::of_failure(&failure)));
        }
        let Some((members, own)) = membership.round() else {
            break Ending::Refused("it was not told who takes part".into());
        };
        let round = Round { members, own, failures };
        let prepared = meeting.prepare(&round, &mut || waiting.go_on());
        if let Some(ending) = waiting.given_up() {
            break ending;
        }
        let part = match prepared.and_then(|()| meeting.part(&round)) {
            Ok(part) => part,
            Err(refusal) => {
                let failure = of_refusal(own, &refusal, &door.circumstances().host);
                membership.put(Standing::Failed { round: number, failure });
                waiting.let_hear(&mut membership, LEAVING).map_err(node::failed)?;
                let _ = membership.close(LEAVING);
                return Err(refusal);
            }
        };
        for warning in membership.state().map_or(&[][..], |state| &state.warnings) {
            warn!("{warning}");
        }
        let attempt = last.as_ref().map_or(0, |last| last.attempt + 1);
        if let Some(Ran { plan, attempt, .. }) = &last {
            logs::put_all_aside(&launch.log_dir, plan, *attempt, launch.rotation.map_or(0, |kept| kept.backups));
            if let Some(folder) = &launch.temporary {
                temporary::empty(folder);
            }
        }
        let this = launch.of_round(&part.plan, part.shown, part.store, attempt);
        let Plan { nnodes, world_size, .. } = part.plan;
        let first_rank = part.plan.ranks.first().map_or(0, |rank| rank.rank);
        journal.write(What::RoundStarted { round: number, attempt, node: own, nnodes, world_size, first_rank });
        membership.put(Standing::Runs { round: number });
        if attempt > 0 {
            let after =
                if failures > 0 { format!("; {failures} restart(s) after failures so far") } else { String::new() };
            tell(&format!("all start again: {world_size} ranks on {nnodes} node(s), this is node {own}{after}"));
        }
        door.begins(&this);
        if attempt == 0 {
            door.runs(&this);
        }
        let (with, listener) = ((signals, &mut waiting.requests), At { door, launch: &this });
        let others = Others::InRounds(&mut membership);
        let ran = run::launch::run(&this, others, supervisor, with, mem::take(&mut journal), &listener);
        let mut launched = ran.map_err(node::failed)?;
        journal = mem::take(&mut launched.journal);
        let stopped_by = waiting.requests.stopped_by();
        let told = match &launched.report.outcome {
            Outcome::Failed { .. } | Outcome::NotStarted { .. } => {
                let rules = &membership.offer().rules;
                let failure = failure((own, failures, rules), &this, &launched, meeting, door);
                failed = Some(failure.clone());
                Continue(Standing::Failed { round: number, failure })
            }
            _ => after_a_round(number, &launched, stopped_by, membership.may_come_back()),
        };
        let why = ends::why(&launched.parting);
        journal.write(What::RoundEnded { round: number, outcome: result::outcome(&launched), why: why.as_deref() });
        last = Some(Ran { plan: part.plan, attempt, launched });
        match told {
            Continue(standing) => membership.put(standing),
            Break(ending) => break ending,
        }
    };
    if let Ending::Stopped(signal) = ending
        && !meeting.leaves_alone()
    {
        membership.put(Standing::Leaves { signal });
    }
    let own = membership.round().map(|(_, own)| own);
    if let Err(error) = membership.close(LEAVING) {
        warn!("{}: not left in order: {}", membership.at(), logs::plain(&error));
    }
    match last {
        Some(ran) => {
            let launched = Launched { journal, ..ran.launched };
            let this = launch.of_round(&ran.plan, Screens::new(), Vec::new(), ran.attempt);
            Ok(end(&this, launched, &ending, own, door))
        }
        None => Ok(without_ranks(launch, &ending, journal, door)),
    }
}

/// Where this node stands after a round in which no rank of its own has failed; or how its part of the job has ended.
/// `stopped_by`: the signal that somebody stops it with; `may_come_back`: whether it may be cut off for a while.
fn after_a_round(
    round: u64,
    launched: &Launched,
    stopped_by: Option<i32>,
    may_come_back: bool,
) -> ControlFlow<Ending, Standing> {
    match (&launched.report.outcome, stopped_by, &launched.parting) {
        (Outcome::Completed, ..) => Continue(Standing::Done { round }),
        (Outcome::HostLost, ..) => Break(Ending::FrontLost),
        (Outcome::Stopped { signal }, ..) => Break(Ending::Stopped(*signal)),
        (_, Some(signal), _) => Break(Ending::Stopped(signal)),
        (_, None, Parting::Halted(Halt::Refused(why))) => Break(Ending::Refused(why.clone())),
        (_, None, Parting::Halted(Halt::OutOfContact(why))) if !may_come_back => {
            Break(Ending::OutOfContact(why.clone()))
        }
        (_, None, Parting::Halted(Halt::OutOfContact(why))) => {
            tell(&format!("{why}; its ranks were stopped, and it waits until others answer again"));
            Continue(Standing::Ready { seen: round })
        }
        (_, None, _) => Continue(Standing::Ready { seen: round }),
    }
}

/// What all nodes are told of a node that cannot begin a round.
fn of_refusal(node: usize, Refusal(text, status): &Refusal, host: &str) -> Failure {
    Failure {
        host: host.to_owned(),
        node,
        who: "the launcher".into(),
        how: "a refusal".into(),
        words: text.clone(),
        status: *status,
        no_restart: Some("this node cannot begin".into()),
        ..Failure::default()
    }
}

/// The end of a job that never ran anything here.
fn without_ranks(launch: &Launch<'_>, ending: &Ending, mut journal: Journal, door: &dyn Door) -> (i32, Value) {
    let (exit_status, outcome, text) = (door.told(ending.status()), ending.word(), ending.text());
    journal.write(What::JobEnded { outcome, exit_status });
    let host = &door.circumstances().host;
    let result = result::without_ranks(launch, host, exit_status, (outcome, Some(&text)));
    if let Err(error) = journal::conclude(&launch.log_dir, &result) {
        warn!("result.json cannot be written: {}", logs::plain(&error));
    }
    complain(&text);
    (exit_status, serde_json::to_value(result).unwrap_or_default())
}

/// What all nodes are told of a failure here.
fn failure(
    (node, failures, rules): (usize, u32, &Rules),
    launch: &Launch<'_>,
    launched: &Launched,
    meeting: &dyn Meeting,
    door: &dyn Door,
) -> Failure {
    let circumstances = door.circumstances();
    let status = door.status(launched);
    let host = circumstances.host.clone();
    let (no_restart, delay) = match meeting.restart(launched, failures) {
        Ok(delay) => (None, delay),
        Err(why) => (Some(why), Duration::ZERO),
    };
    let delay_ms = millis(delay);
    let again = match &launched.report.outcome {
        Outcome::Failed { exit, .. } => rules.are_asked_again(exit.shell_status()),
        _ => false,
    };
    let failure = Failure { host, node, status, again, no_restart, delay_ms, ..Failure::default() };
    if let Outcome::NotStarted { local_rank } = launched.report.outcome {
        let who = launch.plan.ranks[local_rank].who().to_string();
        let words = launched.report.ranks[local_rank].not_started.clone().unwrap_or_default();
        let no_restart = Some("a rank could not be started".into());
        return Failure { who, how: "no start".into(), words, no_restart, ..failure };
    }
    let verdict = conclude::verdict(launch, launched, status, circumstances);
    let Some(Verdictum::Failed(culprit)) = verdict.map(|verdict| verdict.outcome) else { return failure };
    let words = culprit.blame.as_ref().map(|blame| blame.fault.in_a_line());
    Failure {
        who: culprit.who.to_string(),
        how: culprit.exit.to_string(),
        words: words.unwrap_or_default(),
        lost_peer: culprit.lost_peer.is_some(),
        ..failure
    }
}

/// Has the last word: of the rank that the whole job failed of, here or elsewhere.
fn end(
    launch: &Launch<'_>,
    mut launched: Launched,
    ending: &Ending,
    own: Option<usize>,
    door: &dyn Door,
) -> (i32, Value) {
    let is_here = match ending {
        Ending::Job(End::Failed { failure, .. }) => {
            Some(failure.node) == own && failure.host == door.circumstances().host
        }
        _ => false,
    };
    let is_whole = matches!(ending, Ending::Job(End::Completed) | Ending::FrontLost);
    if is_here {
        node::status(launch, &mut launched, door);
        if let Ending::Job(End::Failed { no_restart: Some(why), .. }) = ending {
            tell(&format!("no restart: {why}"));
        }
    } else if matches!(launched.report.outcome, Outcome::Failed { .. } | Outcome::NotStarted { .. }) {
        // Whoever failed here is not who the job failed of.
        launched.report.outcome = Outcome::Regrouped;
    }
    launched.job_end = Some((ending.word(), ending.text()));
    let status = door.told(ending.status());
    let ended = node::end(launch, launched, status, door);
    if !is_here && !is_whole {
        complain(&ending.text());
    }
    ended
}
