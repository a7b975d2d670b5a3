//! `rlaunch doctor --nodes`: rendezvous with the other nodes as a job's launchers do, without ranks. The coordinator names the
//! differences between the nodes, and each node connects to others as their ranks would.

use super::finding::{Finding, error, ok, warning};
use crate::cli::common::error::CliError;
use crate::cli::common::interpreter::Interpreter;
use crate::cli::common::message::print_notice;
use crate::cli::elastic::advertise;
use crate::cli::elastic::backend;
use crate::cli::elastic::fingerprint::FingerprintSource;
use crate::cli::elastic::outcome_text;
use crate::cli::elastic::participants::describe_wait;
use crate::cli::elastic::round_frontend::JoinedBackend;
use crate::model::Endpoint;
use crate::net::{listen, tcp, thread};
use crate::probe::net;
use crate::protocol::{JobEnd, JobRules, NodeInfo, NodeStatus, NodeStep, RoundMember};
use crate::rendezvous::lease::NodeLease;
use crate::run::multi_node::job_outcome::JobOutcome;
use crate::run::multi_node::membership::Membership;
use crate::run::output::log_files::plain;
use crate::spec::SpecError;
use crate::spec::frameworks::NAMES;
use crate::spec::options::EnvVars;
use crate::spec::paddle::options;
use crate::spec::rendezvous::{self, RendezvousSpec};
use crate::sys::clock;
use crate::sys::io::poll::Poller;
use crate::sys::random;
use std::collections::BTreeMap;
use std::io;
use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

/// The name of the rendezvous: no job's nodes take part.
const JOB: &str = "rlaunch-doctor";
/// How long a connection to another node may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// To how many of the nodes that follow in the order of numbers each node connects: all are connected to.
const MAX_TARGETS: usize = 64;
/// How many nodes a finding names.
const MAX_NAMED: usize = 8;
/// The longest wait for an event, and for the other nodes once this one is done.
const POLL: Duration = Duration::from_secs(1);
const LAST_WAIT: Duration = Duration::from_secs(20);

/// What a wait for a state of the job has come to.
enum Awaited {
    Round(u64),
    Ended,
}

/// Compares this node with the others. `count`: how many nodes there are; `master`: where they rendezvous.
pub(super) fn check((count, master): (usize, &str), vars: &EnvVars, interpreter: &Interpreter) -> Vec<Finding> {
    compare((count, master), vars, interpreter).unwrap_or_else(|failure| {
        let hint = format!("run the command on all {count} nodes at once, with the same --nodes and --master");
        vec![error("rendezvous", failure.to_string(), hint)]
    })
}

fn compare(
    (count, master): (usize, &str),
    vars: &EnvVars,
    interpreter: &Interpreter,
) -> Result<Vec<Finding>, CliError> {
    let spec = request((count, master), vars).map_err(CliError::Usage)?;
    let advertised = advertise::advertise(&spec)?;
    let listener = listen_at(&advertised.address)
        .map_err(|source| CliError::System { what: format!("cannot listen at {}", advertised.address), source })?;
    let (address, port) = (advertised.address, listener.local_addr().map_or(0, |at| at.port()));
    let node = NodeInfo {
        name: random::lowercase(12),
        host: net::host_name(),
        endpoints: vec![Endpoint::new(&address, port).to_string()],
        address,
        address_from: advertised.from,
        ranks: 1,
        rules: JobRules { frontend: JOB.into(), ..backend::rules(&spec) },
        version: env!("CARGO_PKG_VERSION").into(),
        ..NodeInfo::default()
    };
    let frameworks = NAMES.into_iter().map(|(_, framework)| framework).collect();
    let fingerprint = FingerprintSource {
        launcher: interpreter,
        python: &interpreter.executable,
        frameworks: &frameworks,
        script: None,
    };
    let lease = NodeLease::new().map(Arc::new).map_err(of_system)?;
    let joined = backend::join(&spec, node, &fingerprint, "", &lease, &mut |time| {
        // Without a poller the caller only polls more often.
        let _ = Poller::new().and_then(|poll| poll.ready(Some(time)));
        true
    })?;
    let JoinedBackend::Member(mut membership) = joined else { return Ok(Vec::new()) };
    let found = at_rendezvous(&mut membership, &spec);
    let _ = membership.close(CONNECT_TIMEOUT);
    found
}

/// The rendezvous of a job with this number of nodes. Secrets, certificates and times are those of the environment.
fn request((count, master): (usize, &str), vars: &EnvVars) -> Result<RendezvousSpec, SpecError> {
    // Options of a job that do not fit these nodes.
    let is_of_jobs = |name: &str| matches!(name, "RLAUNCH_SPARES" | "RLAUNCH_REQUIRE_SAME");
    let is_kept = |name: &str| name.starts_with("RLAUNCH_") && !is_of_jobs(name) || name == "POD_IP";
    let kept = vars.iter().filter(|(name, _)| is_kept(name));
    let kept: EnvVars = kept.map(|(name, value)| (name.clone(), value.clone())).collect();
    let flags =
        BTreeMap::from([("nnodes", count.to_string()), ("master", master.to_owned()), ("job_id", JOB.to_owned())]);
    let values = options::merge(&flags, &kept);
    rendezvous::check_scheme(&values)?;
    let spec = rendezvous::check(&values, &mut Vec::new())?;
    let spec = spec.ok_or_else(|| values.error("nnodes", "is not a number of nodes", "give 2 or more"))?;
    Ok(spec)
}

fn listen_at(address: &str) -> io::Result<TcpListener> {
    let bare = address.trim_matches(['[', ']']);
    let found = bare.parse().ok().or_else(|| net::resolve(bare).into_iter().find(|address| net::is_own(*address)));
    listen::on((found.ok_or_else(|| io::Error::from_raw_os_error(libc::EADDRNOTAVAIL))?, 0).into())
}

fn of_system(source: io::Error) -> CliError {
    CliError::System { what: "the rendezvous".into(), source }
}

fn at_rendezvous(membership: &mut Membership, spec: &RendezvousSpec) -> Result<Vec<Finding>, CliError> {
    let round = match await_step(membership, spec.join_timeout, true)? {
        Awaited::Round(round) => round,
        Awaited::Ended => return Err(of_system(io::Error::other("the other nodes have ended before this one began"))),
    };
    membership.publish(NodeStatus::runs(round));
    let (members, own) = membership.round().map_or((Vec::new(), 0), |(members, own)| (members.to_vec(), own));
    let named: Vec<&str> = members.iter().take(MAX_NAMED).map(|member| member.info.host.as_str()).collect();
    let more = if members.len() > MAX_NAMED { ", ..." } else { "" };
    let mut found =
        vec![ok("nodes", format!("{} are here, and this is node {own}: {}{more}", members.len(), named.join(", ")))];
    let differences = membership.state().map_or_else(Vec::new, |state| state.warnings.clone());
    if differences.is_empty() {
        found.push(ok(
            "differences",
            "all nodes have the same Python, frameworks, git commit of this folder and GPU driver",
        ));
    }
    let hint = "make the nodes alike; jobs with --require_same refuse nodes that differ";
    found.extend(differences.into_iter().map(|line| warning("differences", line, hint)));
    found.extend(connections(&members, own));
    membership.publish(NodeStatus::done(round));
    // The others may still connect to this node.
    if let Err(failure) = await_step(membership, LAST_WAIT, false) {
        found.push(warning("nodes", failure.to_string(), "look at the output of that node"));
    }
    Ok(found)
}

/// Waits until a round begins, or until all nodes are done.
fn await_step(membership: &mut Membership, limit: Duration, may_wait: bool) -> Result<Awaited, CliError> {
    let poll = Poller::new().map_err(of_system)?;
    poll.readable(&*membership, 0).map_err(of_system)?;
    let until = clock::now() + limit;
    let failed = |why: String| Err(of_system(io::Error::other(why)));
    loop {
        if let Some(participants) = membership.receive().filter(|_| may_wait) {
            print_notice(&describe_wait(&participants, false));
        }
        match membership.step() {
            NodeStep::Start { round } if may_wait => return Ok(Awaited::Round(round)),
            NodeStep::End(JobEnd::Completed) => return Ok(Awaited::Ended),
            NodeStep::End(end) => return failed(outcome_text::of_job(&JobOutcome::Ended(end)).unwrap_or_default()),
            NodeStep::Refused(why) => return failed(format!("this node cannot take part: {why}")),
            NodeStep::ReportReady { seen } => membership.publish(NodeStatus::Ready { seen }),
            NodeStep::Stop { .. } | NodeStep::Kill { .. } | NodeStep::Start { .. } | NodeStep::Wait => {}
        }
        if let Some(why) = membership.given_up() {
            return failed(why);
        }
        if clock::now() >= until {
            let why = membership.contact_error().unwrap_or("the other nodes do not answer");
            return failed(format!("{}: {why}", membership.address()));
        }
        poll.wait(Some(POLL)).map_err(of_system)?;
    }
}

/// Connects to other nodes, at a port that their system chose as it does for ranks.
fn connections(members: &[RoundMember], own: usize) -> Vec<Finding> {
    let others = members.iter().cycle().skip(own + 1).take(members.len().saturating_sub(1).min(MAX_TARGETS));
    let attempts: Vec<_> = others
        .map(|RoundMember { info, .. }| {
            let at = info.endpoints.first().and_then(|text| Endpoint::parse(text));
            let connect = move || at.map_or(Err("it sent no address".to_owned()), |at| connect(&at));
            (info, thread::spawn("rlaunch-connect", connect))
        })
        .collect();
    let count = attempts.len();
    let failure = |(info, attempt): (&NodeInfo, io::Result<std::thread::JoinHandle<Result<(), String>>>)| {
        let joined = attempt.map(|attempt| attempt.join().unwrap_or_else(|_| Err("an internal error".into())));
        let why = joined.unwrap_or_else(|error| Err(plain(&error))).err()?;
        let at = info.endpoints.first().map_or(info.address.as_str(), String::as_str);
        let text = format!("{} at {at} cannot be reached from here: {why}", info.host);
        let hint =
            "open all ports between the nodes, or set POD_IP (--host, --local-addr) to an address that they reach";
        Some(error("connections", text, hint))
    };
    let failures: Vec<Finding> = attempts.into_iter().filter_map(failure).take(MAX_NAMED).collect();
    match failures.is_empty() {
        true => vec![ok("connections", format!("{count} other node(s) can be reached from here"))],
        false => failures,
    }
}

fn connect(at: &Endpoint) -> Result<(), String> {
    let until = clock::now() + CONNECT_TIMEOUT;
    let mut left = || Ok(until.saturating_sub(clock::now()));
    let host = at.host.trim_matches(['[', ']']);
    tcp::connect(host, at.port, &mut left).map(drop).map_err(|error| match error.kind() {
        io::ErrorKind::TimedOut => format!("no answer within {} s", CONNECT_TIMEOUT.as_secs()),
        _ => plain(&error),
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // A test fails by panicking.
    use super::super::finding::Level;
    use super::*;

    fn member(host: &str, endpoint: &str) -> RoundMember {
        let endpoints = vec![endpoint.to_owned()];
        RoundMember { id: host.into(), info: NodeInfo { host: host.into(), endpoints, ..NodeInfo::default() } }
    }

    #[test]
    fn nodes_that_do_not_take_connections_are_named() {
        let open = listen_at("127.0.0.1").unwrap();
        let closed = listen_at("127.0.0.1").unwrap().local_addr().unwrap().to_string();
        let open = open.local_addr().unwrap().to_string();
        let members = [member("a", &closed), member("b", &open), member("c", &closed), member("d", "no address")];
        let found = connections(&members, 0);
        let seen: Vec<(Level, bool)> = found.iter().map(|one| (one.level, one.text.contains("refused"))).collect();
        assert_eq!(seen, [(Level::Error, true), (Level::Error, false)], "{found:?}");
        assert!(found[0].text.starts_with(&format!("c at {closed} cannot be reached from here: ")), "{found:?}");
        let all = connections(&members[..2], 0);
        assert_eq!((all[0].level, all[0].text.as_str()), (Level::Ok, "1 other node(s) can be reached from here"));
    }

    #[test]
    fn the_rendezvous_is_that_of_a_job_of_this_environment() {
        let vars = |all: &[(&str, &str)]| all.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
        let given = vars(&[
            ("RLAUNCH_JOB_SECRET", "0123456789abcdef"),
            ("RLAUNCH_REQUIRE_SAME", "git"),
            ("PADDLE_NNODES", "9"),
        ]);
        let spec = request((3, "10.0.0.1:6768"), &given).unwrap();
        assert_eq!((spec.nodes, spec.job_name.as_str(), spec.require_same.as_str()), ((3, 3), JOB, ""));
        assert!(spec.secret.is_some());
        let error = request((2, "10.0.0.1"), &EnvVars::new()).unwrap_err().to_string();
        assert!(error.starts_with("--master 10.0.0.1: is not an address"), "{error}");
    }
}
