//! This node's part of a job in torchrun's words: from a checked request to its exit status.

use super::conclude::{Circumstances, tell_swept, troubles};
use super::node::{self, Door, Work};
use super::policy::stop_by;
use super::record::Record;
use super::refusal::{Refusal, complain, tell, unmet, usage};
use super::torch_events::Events;
use super::torch_meeting::{self, Met, Unmet};
use super::torch_rounds::TorchMeeting;
use super::zygote::zygote;
use super::{dry_run, exit_code, message, notes, torch_report};
use crate::log::github_annotation;
use crate::log::verdict::{Style, Verdict, render};
use crate::model::{CpuSet, Endpoint};
use crate::plan::dialects::{Beside, Paddle};
use crate::plan::torchrun::{self as plan, Place};
use crate::plan::{HostFacts, Plan, affinity, devices};
use crate::probe::memory::Memory;
use crate::probe::{accelerators, cpus, numa, torch};
use crate::run::launch::{Launch, Launched};
use crate::run::together::Parting;
use crate::run::{logs, preflight, rotate, run_folder};
use crate::spec::SpecError;
use crate::spec::dialects::Dialect;
use crate::spec::launch::DryRun;
use crate::spec::options::{Vars, parse_bool};
use crate::spec::rotation::Rotation;
use crate::spec::torchrun::{EventLog, Meeting, TorchScript, TorchSpec};
use crate::supervise::{ChildId, Note, Outcome, Policy, RestartPolicy};
use crate::sys::affinity as sys_affinity;
use crate::sys::cgroup::JobGroup;
use crate::sys::clock;
use crate::sys::ports::Lease;
use crate::sys::signals::{NOTIFY, Signals};
use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::io::IsTerminal;
use std::os::unix::process::parent_id;
use std::path::Path;
use std::time::Duration;
use tracing::{info, warn};

/// Of a stream that is captured, about as much is kept: its end explains a failure.
const CAPTURED: Rotation = Rotation { max_size: 64 << 20, backups: 0, until_shown: true };

/// Runs this node's part. `base`: this process's environment; `vars`: the same as text, without what an outer launcher
/// put there; `error_file`: where this launcher itself is to say what it failed of, if anywhere.
pub fn launch(
    spec: &TorchSpec,
    vars: &Vars,
    base: Vec<(OsString, OsString)>,
    python: &OsStr,
    error_file: Option<&Path>,
    signals: &mut Signals,
    record: &mut Record,
) -> Result<i32, Refusal> {
    let begun = clock::now();
    let allowed = sys_affinity::own().map_err(|e| unmet(format!("the CPUs of this process: {e}")))?;
    let workers = workers(spec, vars, allowed.len())?;
    let nofile = preflight::make_room_with_store("--nproc-per-node", workers).map_err(unmet)?;
    check_script(&spec.script).map_err(unmet)?;
    let Met { mut place, mut leases, store, nodes, advertised } = match torch_meeting::meet(spec, workers, signals) {
        Ok(met) => met,
        Err(Unmet::Refused(refusal)) => return Err(refusal),
        Err(Unmet::Stopped(signal)) => return Ok(128 + signal),
    };
    let (beside, more) = beside(spec, vars, &place)?;
    place.beside = beside;
    leases.extend(more);
    let run_id = spec.run_id.clone().unwrap_or_else(uuid);
    let folder = run_folder::of(&spec.log_dir, &run_id).map_err(unmet)?;
    let facts = HostFacts {
        python: vars.get("PYTHON_EXEC").filter(|exec| !exec.is_empty()).map_or(python.to_owned(), OsString::from),
        log_dir: folder.text().map_err(unmet)?,
        pod_name: String::new(),
        temporary: String::new(),
    };
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default().trim().to_owned();
    let threads = threads(spec, vars, workers, &allowed);
    let cpus = bound(spec, vars, workers, &allowed)?;
    let laid_out = plan::plan(spec, vars, &facts, (&run_id, &host), (workers, threads, &cpus), &place);
    let (mut plan, shown) = laid_out.map_err(usage)?;
    let Some(argv) = plan.ranks.first().map(|rank| &rank.argv) else { return Ok(exit_code::OK) };
    preflight::check_lengths(argv).map_err(unmet)?;
    let path = base.iter().find(|(name, _)| name == "PATH").map(|(_, value)| value.as_os_str());
    let program = preflight::find_program(&argv[0], path).map_err(unmet)?;
    let zygote = zygote(spec.zygote.as_ref(), &plan, python)?;
    match spec.dry_run {
        Some(form) => {
            plan.ranks.iter_mut().for_each(|rank| rank.env = rank.env_of(0));
            let to_meet = match &spec.meeting {
                Meeting::Dynamic(meeting) => Some(&**meeting),
                Meeting::Alone | Meeting::Static { .. } => None,
            };
            let form = if form == DryRun::Json { dry_run::json } else { dry_run::table };
            let text = form(&plan, to_meet, zygote.as_deref());
            message::to_stdout(text.as_bytes());
            return Ok(exit_code::OK);
        }
        None => folder.make().map_err(unmet)?,
    }
    logs::write_backups(&plan).map_err(|error| unmet(format!("{}: {}", facts.log_dir, logs::plain(&error))))?;
    let key: String = (0..16).map(|_| fastrand::alphanumeric()).collect();
    // As the other door's --cgroup.
    let without_cgroup = vars.get("RLAUNCH_CGROUP").and_then(|text| parse_bool(text)) == Some(false);
    let handled: BTreeSet<i32> = spec.signals.iter().copied().collect();
    for signal in &handled {
        signals.also(*signal);
    }
    let launch = Launch {
        plan: &plan,
        program,
        base,
        log_dir: folder.run.clone(),
        // Who is not told of it needs none.
        store: if spec.dialects.contains(&Dialect::Torch) { store } else { Vec::new() }.into(),
        log_overwrite: false,
        rotation: rotate::check(&folder.run).is_ok().then_some(CAPTURED),
        shown,
        filters: plan::filters(spec),
        colour: vars.get("NO_COLOR").is_none_or(String::is_empty),
        policy: policy(spec, vars),
        notify: NOTIFY.into_iter().filter(|signal| !handled.contains(signal)).collect(),
        nofile,
        cgroup: if without_cgroup { None } else { JobGroup::find(&key) },
        key,
        zygote,
        temporary: None,
        disposable: folder.disposable.clone(),
    };
    let circumstances = Circumstances {
        host: host.clone(),
        memory: Memory::now(Path::new("/")),
        colour: launch.colour && std::io::stderr().is_terminal(),
        github: vars.get("GITHUB_ACTIONS").is_some_and(|v| v == "true"),
        quiet: false,
        older: false,
    };
    let events = (spec.event_log == EventLog::Console)
        .then(|| Events::new(spec, &run_id, &host, (place.node, place.nnodes), &launch.program));
    // `rlaunch.torch.elastic_launch` knows better what its ranks run.
    let title = vars.get("RLAUNCH_TITLE").cloned().unwrap_or_else(|| plan::title(spec));
    let words = Words { spec, title, error_file, circumstances, events, meeting: clock::now() - begun };
    let (Meeting::Dynamic(meeting), Some(advertised)) = (&spec.meeting, advertised) else {
        return node::carry_out(&launch, &words, (leases, nodes.map_or(Work::Once, Work::AtStore)), signals, record);
    };
    let met = TorchMeeting {
        spec,
        meeting,
        vars,
        facts: &facts,
        names: (&run_id, &host),
        workers: (workers, threads, &cpus),
        store: place.master,
        advertised,
    };
    node::carry_out(&launch, &words, (leases, Work::Rounds(&met)), signals, record)
}

/// How many workers this node has. `cpus`: how many it may use.
fn workers(spec: &TorchSpec, vars: &Vars, cpus: usize) -> Result<usize, Refusal> {
    torch::count(spec.nproc, "--nproc-per-node", Path::new("/"), vars, cpus).map_err(unmet)
}

/// OMP_NUM_THREADS, where the launcher sets it: unless the user has, and not for one worker alone.
fn threads(spec: &TorchSpec, vars: &Vars, workers: usize, allowed: &CpuSet) -> Option<usize> {
    if vars.contains_key("OMP_NUM_THREADS") || workers < 2 {
        return None;
    }
    if spec.omp_compat {
        return Some(1);
    }
    let cpus = cpus::cpus(Path::new("/"), allowed);
    warn!("{}", cpus.note(workers));
    Some(cpus.threads(workers))
}

/// The CPUs of each worker, if they are to be bound to any.
fn bound(spec: &TorchSpec, vars: &Vars, workers: usize, allowed: &CpuSet) -> Result<Vec<CpuSet>, Refusal> {
    let Some(kind) = spec.numa else { return Ok(Vec::new()) };
    let root = Path::new("/");
    let devices = torch::accelerators(root, vars).map_err(usage)?;
    let facts = numa::facts(root, allowed.clone(), &devices);
    let bound = affinity::bind(kind, &facts, workers).map_err(unmet)?;
    if spec.bind_report {
        for (local_rank, bound) in bound.iter().enumerate() {
            tell(&format!("local rank {local_rank} is bound to {bound}"));
        }
    }
    Ok(bound.into_iter().map(|bound| bound.cpus).collect())
}

fn check_script(script: &TorchScript) -> Result<(), SpecError> {
    let (TorchScript::Python(name) | TorchScript::RunPath(name)) = script else { return Ok(()) };
    // Python reads `-` from stdin, and a `$` may stand for the number of each worker.
    if name == "-" || Path::new(name).exists() || name.as_encoded_bytes().contains(&b'$') {
        return Ok(());
    }
    let hint = "check the path; options of the launcher go before the script";
    Err(SpecError::new("training_script", name.to_string_lossy(), "does not exist", hint))
}

/// What the workers are told for other frameworks than torch, and the ports of it. They listen on this node.
fn beside(spec: &TorchSpec, vars: &Vars, place: &Place) -> Result<(Beside, Vec<Lease>), Refusal> {
    let host = if place.master.host == "localhost" { "127.0.0.1" } else { &place.master.host };
    let asked = |dialect| spec.dialects.contains(&dialect);
    if place.nnodes > 1 && (asked(Dialect::Paddle) || asked(Dialect::Jax)) {
        let hint = "leave it out, or name the nodes to python -m rlaunch by --ips, which tells its ranks all of these";
        return Err(usage(SpecError::new("--dialect", "", "on several nodes there is torch alone here", hint)));
    }
    let (mut beside, mut leases) = (Beside::default(), Vec::new());
    let mut port = || -> Result<Endpoint, Refusal> {
        let lease = preflight::any_port().map_err(unmet)?;
        let endpoint = Endpoint::new(host, lease.port());
        leases.push(lease);
        Ok(endpoint)
    };
    if asked(Dialect::Paddle) {
        let (kind, count) = devices::seen(vars, &accelerators::machine(Path::new("/"))).map_err(usage)?;
        let endpoints = (0..place.world_size).map(|_| port()).collect::<Result<_, _>>()?;
        let pod = (0..6).map(|_| fastrand::lowercase()).collect();
        beside.paddle = Some(Paddle { endpoints, master: port()?, devices: (kind.to_owned(), count), pod });
    }
    if asked(Dialect::Jax) {
        beside.jax = Some(port()?);
    }
    Ok((beside, leases))
}

fn policy(spec: &TorchSpec, vars: &Vars) -> Policy {
    // Whether another round follows is for all nodes to say.
    let max_restart = if matches!(spec.meeting, Meeting::Dynamic(_)) { 0 } else { spec.max_restarts };
    let restart = RestartPolicy { max_restart, ..RestartPolicy::default() };
    Policy { grace: spec.shutdown_timeout, stop_by: stop_by(vars), restart, forwards: true, first_attempt: 0 }
}

/// A random UUID (version 4), as torchrun names a job that has no name.
fn uuid() -> String {
    let bits = fastrand::u128(..) & !(0xf000 << 64 | 0xc000 << 48) | 0x4000 << 64 | 0x8000 << 48;
    let hex = format!("{bits:032x}");
    [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]].join("-")
}

/// What this door says about a job.
struct Words<'a> {
    spec: &'a TorchSpec,
    title: String,
    error_file: Option<&'a Path>,
    circumstances: Circumstances,
    events: Option<Events<'a>>,
    /// How long it took to find this node's place in the job.
    meeting: Duration,
}

impl Door for Words<'_> {
    fn circumstances(&self) -> &Circumstances {
        &self.circumstances
    }

    fn begins(&self, launch: &Launch<'_>) {
        let Plan { ranks, nnodes, world_size, job_id, .. } = launch.plan;
        let logs = launch.log_dir.display();
        let own = ranks.first().and_then(|rank| rank.env.get("GROUP_RANK")?.parse().ok());
        if let (Some(events), Some(own)) = (&self.events, own) {
            events.is(own, *nnodes);
            if launch.policy.first_attempt > 0 {
                events.met(launch.policy.first_attempt, Duration::ZERO);
            }
        }
        info!("{job_id}: {} worker(s) here, {world_size} on {nnodes} node(s), logs in {logs}", ranks.len());
    }

    fn runs(&self, _launch: &Launch<'_>) {
        if let Some(events) = &self.events {
            events.met(0, self.meeting);
        }
    }

    fn started(&self, id: ChildId, pid: i32, launch: &Launch<'_>) {
        if let Some(events) = &self.events {
            events.started(pid, id, launch);
        }
    }

    fn notes(&self, note: &Note, policy: &Policy, launch: &Launch<'_>) {
        if let Note::Restarting { attempt, of, .. } = note {
            // torch counts before it takes one.
            let left = of.saturating_sub(*attempt) + 1;
            if let Some(events) = &self.events {
                events.met(*attempt, Duration::ZERO);
            }
            info!("[{}] Worker group FAILED. {left}/{of} attempts left; will restart worker group", self.spec.role);
        }
        notes::say(note, policy, &|local| launch.plan.ranks[local].who());
    }

    fn failed_first(&self, launch: &Launch<'_>, launched: &Launched) -> Option<usize> {
        torch_report::failed_first(launch, launched)
    }

    fn status(&self, launched: &Launched) -> i32 {
        self.told(exit_code::after(launched))
    }

    fn told(&self, status: i32) -> i32 {
        match status {
            exit_code::OK => exit_code::OK,
            _ if self.spec.exit_code_compat => 1,
            status => status,
        }
    }

    fn ends(&self, launch: &Launch<'_>, launched: &Launched, status: i32, verdict: Option<&Verdict>) {
        let own = self.error_file;
        troubles(launch, launched);
        match &launched.report.outcome {
            Outcome::Completed => {
                tell_swept(launch, launched);
                info!("[{}] worker group successfully finished", self.spec.role);
            }
            Outcome::HostLost => complain("the launcher's front was killed; all ranks were killed with it"),
            Outcome::NotStarted { local_rank } => {
                let why = launched.report.ranks[*local_rank].not_started.as_deref();
                let why = format!("cannot start {}", why.unwrap_or_default());
                complain(&why);
                torch_report::of_itself(own, &format!("RuntimeError: {why}"));
            }
            Outcome::Stopped { .. } if launched.parting == Parting::StoreGone => {
                let why = "node 0's store has gone, so the workers of this node were stopped";
                complain(why);
                torch_report::of_itself(own, &format!("RuntimeError: {why}"));
            }
            Outcome::Stopped { signal } => {
                // This is the supervisor: signals are the front's.
                let text = format!("SignalException: Process {} got signal: {signal}", parent_id());
                torch_report::of_itself(own, &text);
            }
            Outcome::Failed { .. } | Outcome::Regrouped => {}
        }
        info!("Exit code {status}");
        if let Some(events) = &self.events {
            events.ended(launch, launched, &|local| torch_report::data(launch, launched, local));
        }
        let Some(verdict) = verdict else { return };
        if self.circumstances.github {
            message::to_stdout(format!("{}\n", github_annotation(verdict)).as_bytes());
        }
        let report = torch_report::of(launch, launched, verdict, &self.title, own);
        let style = Style { colour: self.circumstances.colour };
        message::to_stderr(report.unwrap_or_else(|| render(verdict, style)).as_bytes());
    }
}
