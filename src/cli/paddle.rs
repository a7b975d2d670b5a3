//! `python -m rlaunch`: the door that `python -m paddle.distributed.launch` was.

use super::conclude::{Circumstances, conclude};
use super::door::{self, Own, enter, print};
use super::grammar::{self, Parsed};
use super::lay_out::{LaidOut, lay_out};
use super::node::{self, Door, Work};
use super::older_meeting::{self, OlderDoor, OlderMeeting};
use super::paddle_meeting::{Alone, PaddleMeeting};
use super::policy::policy;
use super::record::Record;
use super::refusal::{Refusal, unmet, usage};
use super::tie;
use super::zygote::zygote;
use super::{dry_run, exit_code, legacy, message, others_command};
use crate::log::Prefix;
use crate::log::verdict::Verdict;
use crate::model::{Role, Who};
use crate::plan::visible::Device;
use crate::plan::{self, HostFacts, Plan, Stream};
use crate::probe::memory::Memory;
use crate::run::launch::{Launch, Launched};
use crate::run::{self, gpu_log, logs, preflight, rotate, temporary};
use crate::spec::SpecError;
use crate::spec::console::PrefixKind;
use crate::spec::job;
use crate::spec::launch::{self, DryRun, LaunchSpec};
use crate::spec::meeting;
use crate::spec::nodes::Nodes;
use crate::spec::options::{self, Source, Vars};
use crate::spec::ps::PsSpec;
use crate::spec::scheduler::{self, Found};
use crate::spec::tuner;
use crate::supervise::ChildId;
use crate::sys::cgroup::JobGroup;
use crate::sys::signals::{NOTIFY, Signals};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::io::IsTerminal;
use std::os::fd::RawFd;
use std::path::{Path, PathBuf};
use tracing::{debug, info, warn};

/// Runs the launcher and returns its exit status. `args` come without the program's name; `python` is
/// the interpreter for the ranks; `record` a descriptor for the end's record, or negative.
pub fn main(args: &[OsString], python: &OsStr, record: RawFd) -> i32 {
    enter(record, |signals, record| prepared(args, python, signals, record))
}

fn prepared(args: &[OsString], python: &OsStr, signals: &mut Signals, record: &mut Record) -> Result<i32, Refusal> {
    let (flags, rest) = match grammar::parse(args) {
        Parsed::Job(flags, rest) => (flags, rest),
        Parsed::Print(text) => {
            print(&text);
            return Ok(exit_code::OK);
        }
        Parsed::Refused(text) => return Err(usage(text)),
    };
    if rest.is_empty() {
        return Err(usage(
            "the following arguments are required: training_script, training_script_args; \
             for example: python -m rlaunch --nproc_per_node 2 train.py",
        ));
    }
    let (base, all) = door::environment(options::OPTIONS)?;
    let Own { base, vars, outer } = door::own(base, &all);
    let mut values = options::merge(&flags, &vars);
    let mut spec = launch::check(&values, &vars, &rest).map_err(usage)?;
    if outer.is_none()
        && let Some(found) = ask_scheduler(&spec, &values, &vars)?
    {
        values.fill(scheduler::fills(&found, values.given("nnodes")));
        spec = launch::check(&values, &vars, &rest).map_err(usage)?;
        if let Some(meeting) = &mut spec.meeting {
            spec.infos.push(format!(
                "{} has started this node of {}: by {}",
                found.by,
                meeting.nodes.1,
                found.from.join(", ")
            ));
            meeting.name = found.job.filter(|_| values.given("job_id").is_none()).unwrap_or(meeting.name.clone());
        }
    }
    if let Some(meeting) = &spec.meeting {
        meeting::check_is_found(&values, meeting).map_err(usage)?;
    }
    if let Some(path) = &spec.auto_parallel_config {
        let text = preflight::read("--auto_parallel_config", path).map_err(unmet)?;
        spec.tuning = Some(tuner::check(path, &text).map_err(usage)?);
    }
    if let Some(outer) = &outer {
        spec.infos.push(outer.to_string());
        let asked = values.given("log_dir").map(absolute).transpose().map_err(unmet)?;
        let is_outers = |outer: &str| asked.as_deref().is_none_or(|asked| is_same_place(asked, Path::new(outer)));
        if let Some(folder) = outer.log_folder(is_outers) {
            spec.infos.push(format!("its logs are apart from that job's, in {folder}"));
            spec.log_dir = folder;
        }
    }
    if spec.dry_run.is_none() {
        for (attr, var, value) in &values.overridden {
            let line = format!("LAUNCH WARNING args {attr} will be overridden by env: {var} value: {value}\n");
            message::to_stdout(line.as_bytes());
        }
    }
    message::with_messages(&spec.log_level.clone(), || {
        let set_aside = |name: &&&str| !is_older(&spec) && vars.contains_key(**name);
        for name in plan::surroundings::PROXIES.iter().filter(set_aside) {
            warn!(
                "Unset '{name}' to ensure stable NCCL communication in distributed training (backed up as '{name}_original')."
            );
        }
        for line in spec.infos.drain(..) {
            info!("{line}");
        }
        for warning in spec.warnings.drain(..) {
            warn!("{warning}");
        }
        if let Some(outer) = outer.as_ref().filter(|outer| !outer.dropped.is_empty()) {
            debug!("ignoring what the outer launcher exported: {}", outer.dropped.join(", "));
        }
        for (name, value) in values.iter().filter(|(_, v)| v.source != Source::Default) {
            debug!("{name}: {}", options::shown(name, &value.text));
        }
        let status = launch_on_this_node(&spec, &vars, base.clone(), (python, args), signals, record)?;
        match legacy::second_pass(&spec, status) {
            Some(next) => launch_on_this_node(&next, &vars, base, (python, args), signals, record),
            None => Ok(status),
        }
    })
}

/// What a scheduler says of this job's nodes, where nobody else does.
fn ask_scheduler(spec: &LaunchSpec, values: &options::Values, vars: &Vars) -> Result<Option<Found>, Refusal> {
    let is_open = matches!((&spec.job, &spec.nodes), (job::Job::Collective | job::Job::Rpc, Nodes::One { .. }));
    let several = values.given("nnodes").is_none_or(|text| text.trim() != "1");
    if is_open && several { scheduler::found(vars).map_err(usage) } else { Ok(None) }
}

fn is_older(spec: &LaunchSpec) -> bool {
    matches!(spec.job, job::Job::Legacy(_))
}

fn launch_on_this_node(
    spec: &LaunchSpec,
    vars: &Vars,
    base: Vec<(OsString, OsString)>,
    (python, args): (&OsStr, &[OsString]),
    signals: &mut Signals,
    record: &mut Record,
) -> Result<i32, Refusal> {
    let log_dir = absolute(&spec.log_dir).map_err(unmet)?;
    if spec.dry_run.is_none() {
        logs::forget_result(&log_dir).map_err(unmet)?;
    }
    let log_dir_text = log_dir
        .to_str()
        .ok_or_else(|| unmet(format!("--log_dir {}: is not UTF-8; choose another folder", log_dir.display())))?;
    let key: String = (0..16).map(|_| fastrand::alphanumeric()).collect();
    let has_folder = matches!(spec.job, job::Job::Legacy(_) | job::Job::Ps(PsSpec::Laid(_)));
    let facts = HostFacts {
        python: python.to_owned(),
        log_dir: log_dir_text.to_owned(),
        pod_name: (0..6).map(|_| fastrand::lowercase()).collect(),
        temporary: if has_folder { temporary::path(&key).map_err(unmet)? } else { String::new() },
    };
    let advertised = spec.meeting.as_ref().map(tie::advertise).transpose()?;
    let mut spec = Cow::Borrowed(spec);
    if let (Some(advertised), true) = (&advertised, is_older(&spec)) {
        spec = Cow::Owned(older_meeting::at(&spec, &advertised.address));
    } else if let (Some(advertised), Nodes::One { ports, .. }) = (&advertised, &spec.nodes) {
        let nodes = Nodes::One { host: advertised.address.clone(), ports: *ports };
        spec = Cow::Owned(LaunchSpec { nodes, ..spec.into_owned() });
    }
    let spec = spec.as_ref();
    let LaidOut { plan, leases, kind, gpus, nofile, endpoints, alike, older: parts } =
        lay_out(spec, vars, &facts, args)?;
    let Some(argv) = plan.ranks.first().map(|r| &r.argv) else { return Ok(exit_code::OK) };
    preflight::check_lengths(argv).map_err(unmet)?;
    let program = find(spec, argv, &base).map_err(unmet)?;
    let zygote = zygote(spec.zygote.as_ref(), &plan, python)?;
    match spec.dry_run {
        Some(DryRun::Table) => {
            print(&dry_run::table(&plan, spec.meeting.as_ref(), zygote.as_deref()));
            return Ok(exit_code::OK);
        }
        Some(DryRun::Json) => {
            print(&dry_run::json(&plan, spec.meeting.as_ref(), zygote.as_deref()));
            return Ok(exit_code::OK);
        }
        None => {}
    }
    logs::make_folder(&log_dir).map_err(unmet)?;
    let in_logs = |e: std::io::Error| unmet(format!("--log_dir {}: {}", log_dir.display(), logs::plain(&e)));
    logs::check(&plan, &log_dir).map_err(unmet)?;
    if spec.rotation.is_some() {
        rotate::check(&log_dir).map_err(unmet)?;
    }
    match &endpoints {
        None => logs::write_beside(&plan, &log_dir, spec.log_overwrite),
        Some(endpoints) => run::legacy::write_endpoints(&log_dir, endpoints),
    }
    .and_then(|()| logs::write_backups(&plan))
    .map_err(in_logs)?;
    logs::put_attempts_aside(&log_dir, spec.log_overwrite).map_err(unmet)?;
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default().trim().to_owned();
    let cgroup = if spec.cgroup { JobGroup::find(&key) } else { None };
    debug!("cgroup of the ranks, if it can be made: {:?}", cgroup.as_ref().map(JobGroup::path));
    let older = is_older(spec);
    let asked = policy(spec, vars, fastrand::u64(..));
    let mut policy = asked.clone();
    if spec.meeting.is_some() {
        // Whether another round follows is for all nodes to say.
        policy.restart.max_restart = 0;
    }
    if legacy::maps(&plan) {
        // Its good end is a status that is none of a rank's.
        policy.restart.max_restart = 0;
    }
    let launch = Launch {
        plan: &plan,
        program,
        base,
        log_dir,
        log_overwrite: spec.log_overwrite,
        rotation: spec.rotation,
        shown: shown(spec, &plan, &host),
        filters: Vec::new(),
        store: Vec::new().into(),
        colour: vars.get("NO_COLOR").is_none_or(String::is_empty),
        policy,
        notify: NOTIFY.into_iter().chain(spec.notify_signals.iter().copied()).collect(),
        nofile,
        key,
        cgroup,
        zygote,
        temporary: has_folder.then(|| PathBuf::from(&facts.temporary)),
        disposable: None,
    };
    let github = vars.get("GITHUB_ACTIONS").is_some_and(|v| v == "true");
    let colour = launch.colour && std::io::stderr().is_terminal();
    let quiet = spec.log_level == "CRITICAL";
    let memory = Memory::now(Path::new("/"));
    let circumstances = Circumstances { host, memory, colour, github, quiet, older };
    for signal in &spec.notify_signals {
        signals.also(*signal);
    }
    let name = circumstances.host.clone();
    let nodes = spec.meeting.as_ref().map(|meeting| meeting.nodes);
    let door = Words { kind, gpus, nodes, circumstances };
    if let (job::Job::Legacy(asked), Some(own)) = (&spec.job, &parts)
        && let (Some(elastic), Some(advertised)) = (&asked.elastic, &advertised)
    {
        let older = (&**asked, elastic);
        let (advertised, facts) = (advertised.clone(), &facts);
        let met = OlderMeeting { spec, older, vars, facts, own, advertised, host: name };
        let older_door = OlderDoor { door: &door, elastic };
        return node::carry_out(&launch, &older_door, (leases, Work::Rounds(&met)), signals, record);
    }
    let (Some(meeting), Some(advertised), Some((shares, cluster))) = (&spec.meeting, advertised, &alike) else {
        return node::carry_out(&launch, &door, (leases, Work::Once), signals, record);
    };
    let words = others_command::words(args, meeting);
    let alone = Alone { shares, cluster, kind, words };
    let met = PaddleMeeting::new((spec, meeting), vars, &facts, &alone, (advertised, &name), &asked);
    node::carry_out(&launch, &door, (leases, Work::Rounds(&met)), signals, record)
}

/// The program behind the ranks' `argv[0]`.
fn find(spec: &LaunchSpec, argv: &[OsString], base: &[(OsString, OsString)]) -> Result<PathBuf, SpecError> {
    if spec.script.runs_in_python() {
        return Ok(PathBuf::from(&argv[0]));
    }
    let path = base.iter().find(|(name, _)| name == "PATH").map(|(_, value)| value.as_os_str());
    preflight::find_program(&argv[0], path)
}

/// Whether two paths lead to one folder, as far as they are there.
fn is_same_place(a: &Path, b: &Path) -> bool {
    let real = |path: &Path| path.canonicalize().ok();
    a == b || real(a).is_some_and(|a| real(b) == Some(a))
}

fn absolute(path: &str) -> Result<PathBuf, SpecError> {
    std::path::absolute(path).map_err(|e| SpecError::new("--log_dir", path, e.to_string(), "name a folder"))
}

/// What this door says about a job.
struct Words<'a> {
    kind: &'a str,
    /// Whose log is kept.
    gpus: Vec<Device>,
    /// The least and the most nodes, if they find each other.
    nodes: Option<(usize, usize)>,
    circumstances: Circumstances,
}

impl Door for Words<'_> {
    fn circumstances(&self) -> &Circumstances {
        &self.circumstances
    }

    fn begins(&self, launch: &Launch<'_>) {
        let plan = launch.plan;
        let (id, pod, ranks, nodes) = (&plan.job_id, &plan.pod.name, plan.ranks.len(), plan.nnodes);
        let (min, max) = self.nodes.unwrap_or((nodes, nodes));
        let elastic = if min < max { "True" } else { "False" };
        info!("Job: {id}, mode {}, replicas {nodes}[{min}:{max}], elastic {elastic}", plan.mode);
        info!("Run Pod: {pod}, replicas {ranks}, status ready; {}", consists_of(plan, self.kind));
    }

    fn started(&self, id: ChildId, pid: i32, _launch: &Launch<'_>) {
        if self.circumstances.older {
            legacy::announce(pid, id.local_rank);
        }
    }

    fn runs(&self, launch: &Launch<'_>) {
        if !self.gpus.is_empty() {
            gpu_log::start(&launch.log_dir.join(format!("{}.gpu.log", launch.plan.job_id)), &self.gpus);
        }
    }

    fn has_last_word(&self, launch: &Launch<'_>, status: i32) -> bool {
        !legacy::has_mapped(launch.plan, status)
    }

    fn ends(&self, launch: &Launch<'_>, launched: &Launched, status: i32, verdict: Option<&Verdict>) {
        if legacy::has_mapped(launch.plan, status) {
            info!("the rank mapping is there; the job goes on by it");
        } else {
            conclude(launch, launched, status, &self.circumstances, verdict);
        }
    }
}

/// Which logs the console shows, by number on this node, and what stands before their lines.
pub(super) fn shown(spec: &LaunchSpec, plan: &Plan, host: &str) -> BTreeMap<(usize, Stream), Option<String>> {
    let all: Vec<Who> = plan.ranks.iter().map(plan::RankPlan::who).collect();
    let wanted: Vec<_> = spec.console.chosen(&all).into_iter().map(|local| (local, all[local])).collect();
    let prefix = match spec.console.prefix {
        Some(PrefixKind::None) => Prefix::None,
        Some(PrefixKind::Rank) => Prefix::Rank,
        Some(PrefixKind::Host) => Prefix::Host,
        Some(PrefixKind::RankAndHost) => Prefix::RankAndHost,
        None if wanted.len() > 1 => Prefix::Rank,
        None => Prefix::None,
    };
    // One rank alone, without a prefix, is shown byte for byte; of several only whole lines are.
    let raw = prefix == Prefix::None && wanted.len() < 2;
    let lines = |who| (!raw).then(|| prefix.text(who, host));
    wanted.into_iter().map(|(local, who)| ((local, Stream::Stdout), lines(who))).collect()
}

/// Its devices and, if not all are ranks, how many there are of what.
fn consists_of(plan: &Plan, kind: &str) -> String {
    let of = |r: &plan::RankPlan| match &r.binding {
        crate::dialect::Binding::Cpu => None,
        crate::dialect::Binding::Selected { indices, .. } => Some(indices.clone()),
    };
    let list: Vec<String> = plan.ranks.iter().filter_map(of).collect();
    let devices = if list.is_empty() { "cpu".into() } else { format!("{kind} {}", list.join(" ")) };
    if plan.ranks.iter().all(|r| r.role == Role::Trainer) {
        return format!("devices {devices}");
    }
    format!("devices {devices}; {}", dry_run::roles(plan))
}
