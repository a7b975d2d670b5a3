//! The elastic jobs of the legacy launcher (`--elastic_server`, `--job_id`, `--np`): number of nodes, etcd, and the exit
//! status of a failed node. Contract: `paddle.distributed.fleet.elastic`.

use crate::model::Endpoint;
use crate::spec::endpoints::{parse_port, without_brackets};
use crate::spec::error::{SpecError, shown};
use crate::spec::options::{EnvVars, OptValues};
use crate::spec::paddle::nodes;
use crate::spec::rendezvous;
use crate::spec::rendezvous::{BackendSpec, ElasticLevel, OptionNames, RendezvousSpec, etcd};
use std::time::Duration;

/// A checked request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LegacyElasticSpec {
    /// The rendezvous: etcd, numbers of nodes, time limits.
    pub rendezvous: RendezvousSpec,
    /// The exit status of a node whose rank has failed.
    pub after_failure: AfterFailure,
    /// Number of nodes with which the first round starts at once if more may join; 0: only with the maximum.
    pub usual: usize,
    /// The order of nodes without a number: the earlier number, or the index in a list.
    pub place: Option<usize>,
    /// This node's first port, and the variable with it; `None`: free ports.
    pub ports: Option<(u16, &'static str)>,
    /// The shell command to run before each round.
    pub pre_hook: Option<String>,
}

/// The exit status of a node whose rank has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AfterFailure {
    /// 101: the node's starter has to start it again, and the other nodes wait for it (fault tolerance).
    AwaitRestart,
    /// 3: the other nodes go on without it, if they are enough.
    GoOnWithout,
}

impl AfterFailure {
    /// The exit status.
    pub fn status(self) -> i32 {
        match self {
            AfterFailure::AwaitRestart => 101,
            AfterFailure::GoOnWithout => 3,
        }
    }
}

/// The options of elastic jobs.
pub const OPTIONS: [&str; 5] = ["elastic_server", "elastic_pre_hook", "np", "scale", "force"];

const SERVER: &str = "PADDLE_ELASTIC_SERVER";
const JOB: &str = "PADDLE_ELASTIC_JOB_ID";
const NP: &str = "PADDLE_ELASTIC_NP";
const LEVEL: &str = "PADDLE_ELASTIC_FAULT_TOLERANC_LEVEL";
const TTL: &str = "PADDLE_ELASTIC_TTL";
/// The variables that Kubernetes sets for a service of that name.
const SERVICE: [&str; 2] = ["PADDLE_ELASTIC_ETCD_SERVICE_HOST", "PADDLE_ELASTIC_ETCD_SERVICE_PORT"];

/// Default seconds to wait for more nodes, and without a heartbeat before a node is considered lost.
const TIMEOUT: u64 = 120;
const LEASE: f64 = 60.0;

/// An option or variable, and its value.
type NamedValue = (String, String);
/// An option or variable, and its list.
type NamedList = (String, Vec<String>);

/// Finds the three settings that make a job elastic: its etcd, its name, its number of nodes.
fn settings(values: &OptValues, vars: &EnvVars) -> [Option<NamedValue>; 3] {
    let option = |name| Some((values.field(name), filled(values, name)?.to_owned()));
    let flag = |name| values.on_command_line(name).and_then(|_| option(name));
    let var = |name: &str| Some((name.to_owned(), set(vars, name)?.to_owned()));
    let service = || match SERVICE.map(|name| set(vars, name)) {
        [Some(host), Some(port)] => Some((SERVICE[0].to_owned(), format!("{host}:{port}"))),
        _ => None,
    };
    [
        option("elastic_server").or_else(|| var(SERVER)).or_else(service),
        flag("job_id").or_else(|| var(JOB)).or_else(|| option("job_id")),
        option("np").or_else(|| var(NP)),
    ]
}

/// Whether the job is elastic.
pub fn is_requested(values: &OptValues, vars: &EnvVars) -> bool {
    settings(values, vars).iter().all(Option::is_some)
}

/// Reads and checks the request; `None` if the job is not elastic. `warnings` receives messages for the user.
pub fn check(
    values: &OptValues,
    vars: &EnvVars,
    warnings: &mut Vec<String>,
) -> Result<Option<LegacyElasticSpec>, SpecError> {
    if let Some(scale) = filled(values, "scale") {
        values.int("scale")?;
        warnings.push(format!("--scale {} {IDLE}", shown(scale)));
    }
    for name in ["PADDLE_ELASTIC_SCALE", "PADDLE_ELASTIC_FORCE"] {
        if let Some(value) = set(vars, name) {
            warnings.push(format!("{name} {} {IDLE}", shown(value)));
        }
    }
    if let Some(force) = filled(values, "force") {
        warnings.push(format!("--force {} {IDLE}", shown(force)));
    }
    let [Some(server), Some(job), Some(np)] = settings(values, vars) else {
        return match ["elastic_server", "elastic_pre_hook", "np"]
            .into_iter()
            .find(|name| filled(values, name).is_some())
        {
            Some(name) => {
                let hint =
                    "give them (or PADDLE_ELASTIC_SERVER, _JOB_ID, _NP); --nproc_per_node sets the ranks of this node";
                Err(values.error(name, "an elastic job needs --elastic_server, --job_id and --np", hint))
            }
            None => Ok(None),
        };
    };
    if values.bool("enable_auto_mapping")? == Some(true) {
        let why = "cannot be combined with an elastic job";
        return Err(values.error("enable_auto_mapping", why, &format!("leave it out, or leave out {}", server.0)));
    }
    let servers = server.1.trim().trim_start_matches("http://").trim_start_matches("etcd://").trim_end_matches('/');
    let is_endpoint = |text: &str| Endpoint::parse(text.trim()).is_some_and(|endpoint| endpoint.port > 0);
    if !servers.split(',').all(is_endpoint) {
        return Err(SpecError::new(server.0, server.1, "is not an address of etcd", "give host:port"));
    }
    let etcd = etcd(values, servers, false, warnings)?;

    let (hosts, own) = (listed(values, vars)?, own(values));
    let np = number_of_nodes(&np)?;
    let level = set(vars, LEVEL).map_or(Ok(1), level)?;
    let (nodes, after_failure) = match np {
        NodeCount::Fixed(count) => {
            let listed = hosts.as_ref().map(|(_, hosts)| hosts.len()).filter(|listed| *listed != count);
            if let (Some(listed), Some((from, _))) = (listed, &hosts) {
                warnings.push(format!("np {count}: {from} has {listed} node(s), and takes precedence"));
            }
            let count = listed.unwrap_or(count);
            // 1 means 1:1.
            let goes_on = level == 2 && count > 1;
            ((count, count), if goes_on { AfterFailure::GoOnWithout } else { AfterFailure::AwaitRestart })
        }
        NodeCount::Range(min, max) if min == max => ((min, max), AfterFailure::AwaitRestart),
        NodeCount::Range(min, max) => ((min, max), AfterFailure::GoOnWithout),
    };
    let timeout = match values.given("elastic_timeout") {
        Some(_) => rendezvous::elastic_timeout(values)?.unwrap_or(TIMEOUT),
        None => TIMEOUT,
    };
    let timeout = Duration::from_secs(timeout);
    // The legacy launcher has no limit.
    let join = (timeout * 10).max(Duration::from_secs(TIMEOUT));
    let number = set(vars, "PADDLE_TRAINER_ID").and_then(|text| text.trim().parse::<usize>().ok());
    let in_list = || hosts.as_ref()?.1.iter().position(|host| Some(host) == own.as_ref());
    let is_fixed = nodes.0 == nodes.1;
    if values.given("max_restart").is_some_and(|text| text.trim() != "0") {
        warnings.push(format!("{} has no effect on an elastic job: a failed node leaves", values.field("max_restart")));
    }
    let on_cloud = nodes::is_on_paddlecloud(vars);
    let ports = ["PADDLE_PORT", "FLAGS_START_PORT"].into_iter().skip(usize::from(!on_cloud));
    let ports = ports.filter_map(|name| Some((name, set(vars, name)?))).next();
    if nodes.1 > 1 {
        rendezvous::check_is_closed(values, "require_secret", &BackendSpec::Etcd(etcd.clone()), None)?;
    }
    Ok(Some(LegacyElasticSpec {
        rendezvous: RendezvousSpec {
            option_names: OptionNames { address: "--elastic_server", ..rendezvous::NAMES },
            backend: BackendSpec::Etcd(etcd),
            job_name: job.1,
            is_host: None,
            nodes,
            // If nodes may join and leave, the number holds only for the first round.
            node_rank: number.filter(|number| is_fixed && *number < nodes.1),
            elastic_level: ElasticLevel::Hold,
            last_call: timeout,
            join_timeout: rendezvous::join_timeout(values)?.unwrap_or(join),
            min_round_time: Duration::ZERO,
            node_failure_limit: 0,
            spares: None,
            require_same: rendezvous::require_same(values, "require_same")?,
            sort_ip: false,
            heartbeat_timeout: heartbeat_timeout(values, vars)?,
            etcd_loss_timeout: values.seconds("etcd_loss_timeout")?.map(Duration::from_secs_f64),
            secret: None,
            host: own.clone(),
        },
        after_failure,
        usual: hosts.as_ref().map_or(0, |(_, hosts)| hosts.len()),
        place: number.or_else(in_list),
        ports: ports.map(|(name, text)| Ok((parse_port(name, text)?, name))).transpose()?,
        pre_hook: filled(values, "elastic_pre_hook").map(str::to_owned),
    }))
}

const IDLE: &str = "has no effect, as in the legacy launcher: start or stop nodes instead";

fn filled<'a>(values: &'a OptValues, name: &str) -> Option<&'a str> {
    values.given(name).filter(|text| !text.trim().is_empty())
}

fn set<'a>(vars: &'a EnvVars, name: &str) -> Option<&'a str> {
    vars.get(name).map(String::as_str).filter(|text| !text.trim().is_empty())
}

/// This node's address, if the user gives it.
fn own(values: &OptValues) -> Option<String> {
    values.text("host").filter(|host| !host.is_empty()).map(|host| without_brackets(host).to_owned())
}

/// The nodes of the first round, if a list names them.
fn listed(values: &OptValues, vars: &EnvVars) -> Result<Option<NamedList>, SpecError> {
    let trainers = || Some(("PADDLE_TRAINERS".to_owned(), set(vars, "PADDLE_TRAINERS")?));
    let ips = || Some((values.field("ips"), filled(values, "ips")?));
    let found = if nodes::is_on_paddlecloud(vars) { trainers() } else { ips().or_else(trainers) };
    let Some((from, list)) = found else { return Ok(None) };
    let hosts = nodes::hosts(&from, list, nodes::CLOUD_PORT)?.into_iter().map(|host| host.name).collect();
    Ok(Some((from, hosts)))
}

/// The value of `--np`.
enum NodeCount {
    /// Exactly this number.
    Fixed(usize),
    /// The minimum and the maximum.
    Range(usize, usize),
}

fn number_of_nodes((from, text): &NamedValue) -> Result<NodeCount, SpecError> {
    let refuse = || {
        let why = format!("the np={} needs to be in \"MIN\" or \"MIN:MAX\" format", shown(text));
        SpecError::new(from, text, why, "give 2, or 2:4")
    };
    // Less than 1 means 1.
    let number = |text: &str| match text.trim().parse::<i64>() {
        Ok(number) if number <= 1 << 16 => Ok(usize::try_from(number).unwrap_or(0).max(1)),
        _ => Err(refuse()),
    };
    Ok(match text.split_once(':') {
        None => NodeCount::Fixed(number(text)?),
        Some((min, max)) => {
            let min = number(min)?;
            NodeCount::Range(min, number(max)?.max(min))
        }
    })
}

fn level(text: &str) -> Result<u8, SpecError> {
    match text.trim() {
        "1" => Ok(1),
        "2" => Ok(2),
        _ => Err(SpecError::new(LEVEL, text, "is not a level", "give 1 (fault tolerance) or 2 (elastic)")),
    }
}

fn heartbeat_timeout(values: &OptValues, vars: &EnvVars) -> Result<Duration, SpecError> {
    let refuse = |text: &str| SpecError::new(TTL, text, "is not a valid lease time", "give seconds, 2 or more");
    let seconds = match (values.given("heartbeat_timeout"), set(vars, TTL)) {
        (Some(_), _) => values.seconds("heartbeat_timeout")?.unwrap_or(LEASE),
        (None, Some(text)) => text.trim().parse().map_err(|_| refuse(text))?,
        (None, None) => LEASE,
    };
    if (2.0..=1e6).contains(&seconds) {
        return Ok(Duration::from_secs_f64(seconds));
    }
    let text = seconds.to_string();
    Err(if values.given("heartbeat_timeout").is_some() {
        values.error("heartbeat_timeout", "is too short: etcd's leases last at least 2 s", "give 2 or more")
    } else {
        refuse(&text)
    })
}
