//! What was asked of the older launcher's elastic jobs (`--elastic_server`, `--job_id` and `--np`): how many nodes, found
//! by which etcd, and how a failed one ends. Contract: `paddle.distributed.fleet.elastic`.

use super::meeting::{self, At, Level, Meeting, Names, etcd};
use super::nodes::{self, bare, field, port_of};
use super::options::{Values, Vars};
use super::{SpecError, shown};
use crate::model::Endpoint;
use std::time::Duration;

/// A checked request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Elastic {
    /// Where nodes meet, how many, and how long they wait.
    pub meeting: Meeting,
    /// Who ends a node whose rank has failed.
    pub after_failure: AfterFailure,
    /// With how many nodes the first round begins at once, where more may come; 0: with the most alone.
    pub usual: usize,
    /// What nodes without numbers are ordered by: the number of before, or the place in a list, if there is one.
    pub place: Option<usize>,
    /// Where this node's ports begin, and the variable that says so; `None`: free ones.
    pub ports: Option<(u16, &'static str)>,
    /// What a shell is to run before each round.
    pub pre_hook: Option<String>,
}

/// What a node ends with when its rank has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AfterFailure {
    /// 101: whoever started it is to start it again, and the others wait for it (fault tolerance).
    StartAgain,
    /// 3: the others go on without it, if they are enough.
    Without,
}

impl AfterFailure {
    /// The exit status.
    pub fn status(self) -> i32 {
        match self {
            AfterFailure::StartAgain => 101,
            AfterFailure::Without => 3,
        }
    }
}

/// Options of its own.
pub const OPTIONS: [&str; 5] = ["elastic_server", "elastic_pre_hook", "np", "scale", "force"];

const SERVER: &str = "PADDLE_ELASTIC_SERVER";
const JOB: &str = "PADDLE_ELASTIC_JOB_ID";
const NP: &str = "PADDLE_ELASTIC_NP";
const LEVEL: &str = "PADDLE_ELASTIC_FAULT_TOLERANC_LEVEL";
const TTL: &str = "PADDLE_ELASTIC_TTL";
/// How Kubernetes tells of a service of that name.
const SERVICE: [&str; 2] = ["PADDLE_ELASTIC_ETCD_SERVICE_HOST", "PADDLE_ELASTIC_ETCD_SERVICE_PORT"];

/// Seconds that more nodes are waited for, and after which a silent one is lost, where nobody says otherwise.
const TIMEOUT: u64 = 120;
const LEASE: f64 = 60.0;

/// A value, and the option or variable that it comes from.
type Said = (String, String);
/// A list, and what has it.
type List = (String, Vec<String>);

/// Finds what makes a job elastic: its server, its name, its number of nodes.
fn asked(values: &Values, vars: &Vars) -> [Option<Said>; 3] {
    let option = |name| Some((field(values, name), filled(values, name)?.to_owned()));
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

/// Whether a job is elastic.
pub fn is_asked(values: &Values, vars: &Vars) -> bool {
    asked(values, vars).iter().all(Option::is_some)
}

/// Checks the request; `None` where nobody makes any. `said` gets what the user should know.
pub fn check(values: &Values, vars: &Vars, said: &mut Vec<String>) -> Result<Option<Elastic>, SpecError> {
    if let Some(scale) = filled(values, "scale") {
        values.int("scale")?;
        said.push(format!("--scale {} {IDLE}", shown(scale)));
    }
    for name in ["PADDLE_ELASTIC_SCALE", "PADDLE_ELASTIC_FORCE"] {
        if let Some(value) = set(vars, name) {
            said.push(format!("{name} {} {IDLE}", shown(value)));
        }
    }
    if let Some(force) = filled(values, "force") {
        said.push(format!("--force {} {IDLE}", shown(force)));
    }
    let [Some(server), Some(job), Some(np)] = asked(values, vars) else {
        return match ["elastic_server", "elastic_pre_hook", "np"]
            .into_iter()
            .find(|name| filled(values, name).is_some())
        {
            Some(name) => {
                let hint =
                    "give them (PADDLE_ELASTIC_SERVER, _JOB_ID, _NP); --nproc_per_node has the ranks of this node";
                Err(values.error(name, "an elastic job needs --elastic_server, --job_id and --np", hint))
            }
            None => Ok(None),
        };
    };
    if values.bool("enable_auto_mapping")? == Some(true) {
        let why = "an elastic job's ranks are where its nodes are";
        return Err(values.error("enable_auto_mapping", why, &format!("leave it out, or leave out {}", server.0)));
    }
    let servers = server.1.trim().trim_start_matches("http://").trim_start_matches("etcd://").trim_end_matches('/');
    let is_endpoint = |text: &str| Endpoint::parse(text.trim()).is_some_and(|endpoint| endpoint.port > 0);
    if !servers.split(',').all(is_endpoint) {
        return Err(SpecError::new(server.0, server.1, "is no address of an etcd", "give host:port"));
    }
    let etcd = etcd(values, servers, false)?;
    let (hosts, own) = (listed(values, vars)?, own(values));
    let np = number_of_nodes(&np)?;
    let level = set(vars, LEVEL).map_or(Ok(1), level)?;
    let (nodes, after_failure) = match np {
        Np::Fixed(count) => {
            let listed = hosts.as_ref().map(|(_, hosts)| hosts.len()).filter(|listed| *listed != count);
            if let (Some(listed), Some((from, _))) = (listed, &hosts) {
                said.push(format!("np {count}: {from} has {listed} node(s), which counts"));
            }
            let count = listed.unwrap_or(count);
            // One is the same as 1:1.
            let without = level == 2 && count > 1;
            ((count, count), if without { AfterFailure::Without } else { AfterFailure::StartAgain })
        }
        Np::Range(min, max) if min == max => ((min, max), AfterFailure::StartAgain),
        Np::Range(min, max) => ((min, max), AfterFailure::Without),
    };
    let timeout = match values.given("elastic_timeout") {
        Some(_) => meeting::wait(values)?.unwrap_or(TIMEOUT),
        None => TIMEOUT,
    };
    let timeout = Duration::from_secs(timeout);
    // There no end of it was known.
    let join = (timeout * 10).max(Duration::from_secs(TIMEOUT));
    let number = set(vars, "PADDLE_TRAINER_ID").and_then(|text| text.trim().parse::<usize>().ok());
    let in_list = || hosts.as_ref()?.1.iter().position(|host| Some(host) == own.as_ref());
    let stays = nodes.0 == nodes.1;
    if values.given("max_restart").is_some_and(|text| text.trim() != "0") {
        said.push(format!("{} has no effect on an elastic job: a failed node goes", field(values, "max_restart")));
    }
    let on_cloud = nodes::is_on_paddlecloud(vars);
    let ports = ["PADDLE_PORT", "FLAGS_START_PORT"].into_iter().skip(usize::from(!on_cloud));
    let ports = ports.filter_map(|name| Some((name, set(vars, name)?))).next();
    Ok(Some(Elastic {
        meeting: Meeting {
            names: Names { at: "--elastic_server", ..meeting::NAMES },
            at: At::Etcd(etcd),
            name: job.1,
            nodes,
            // Where nodes may come and go, a number is that of the beginning alone.
            rank: number.filter(|number| stays && *number < nodes.1),
            level: Level::Hold,
            last_call: timeout,
            join: meeting::join(values)?.unwrap_or(join),
            sort_ip: false,
            lease: lease(values, vars)?,
            lost_timeout: Duration::from_secs_f64(values.seconds("lost_timeout")?.unwrap_or(60.0)),
            key: None,
            host: own.clone(),
        },
        after_failure,
        usual: hosts.as_ref().map_or(0, |(_, hosts)| hosts.len()),
        place: number.or_else(in_list),
        ports: ports.map(|(name, text)| Ok((port_of(name, text)?, name))).transpose()?,
        pre_hook: filled(values, "elastic_pre_hook").map(str::to_owned),
    }))
}

const IDLE: &str = "has no effect, as it has none on the older launcher: start nodes, or stop them";

fn filled<'a>(values: &'a Values, name: &str) -> Option<&'a str> {
    values.given(name).filter(|text| !text.trim().is_empty())
}

fn set<'a>(vars: &'a Vars, name: &str) -> Option<&'a str> {
    vars.get(name).map(String::as_str).filter(|text| !text.trim().is_empty())
}

/// This node's address, as far as the user says.
fn own(values: &Values) -> Option<String> {
    values.text("host").filter(|host| !host.is_empty()).map(|host| bare(host).to_owned())
}

/// The nodes that the job is to begin with, if there is a list of them, and what has it.
fn listed(values: &Values, vars: &Vars) -> Result<Option<List>, SpecError> {
    let trainers = || Some(("PADDLE_TRAINERS".to_owned(), set(vars, "PADDLE_TRAINERS")?));
    let ips = || Some((field(values, "ips"), filled(values, "ips")?));
    let found = if nodes::is_on_paddlecloud(vars) { trainers() } else { ips().or_else(trainers) };
    let Some((from, list)) = found else { return Ok(None) };
    let hosts = nodes::hosts(&from, list, nodes::CLOUD_PORT)?.into_iter().map(|host| host.name).collect();
    Ok(Some((from, hosts)))
}

/// How many nodes are asked for.
enum Np {
    /// So many.
    Fixed(usize),
    /// From so many to so many.
    Range(usize, usize),
}

fn number_of_nodes((from, text): &Said) -> Result<Np, SpecError> {
    let refuse = || {
        let why = format!("the np={} needs to be in \"MIN\" or \"MIN:MAX\" format", shown(text));
        SpecError::new(from, text, why, "give 2, or 2:4")
    };
    // Too little means one.
    let number = |text: &str| match text.trim().parse::<i64>() {
        Ok(number) if number <= 1 << 16 => Ok(usize::try_from(number).unwrap_or(0).max(1)),
        _ => Err(refuse()),
    };
    Ok(match text.split_once(':') {
        None => Np::Fixed(number(text)?),
        Some((min, max)) => {
            let min = number(min)?;
            Np::Range(min, number(max)?.max(min))
        }
    })
}

fn level(text: &str) -> Result<u8, SpecError> {
    match text.trim() {
        "1" => Ok(1),
        "2" => Ok(2),
        _ => Err(SpecError::new(LEVEL, text, "is no level", "give 1 (fault tolerance) or 2 (elastic)")),
    }
}

fn lease(values: &Values, vars: &Vars) -> Result<Duration, SpecError> {
    let refuse = |text: &str| SpecError::new(TTL, text, "is no time of a lease", "give seconds, 2 or more");
    let seconds = match (values.given("lease"), set(vars, TTL)) {
        (Some(_), _) => values.seconds("lease")?.unwrap_or(LEASE),
        (None, Some(text)) => text.trim().parse().map_err(|_| refuse(text))?,
        (None, None) => LEASE,
    };
    if (2.0..=1e6).contains(&seconds) {
        return Ok(Duration::from_secs_f64(seconds));
    }
    let text = seconds.to_string();
    Err(if values.given("lease").is_some() {
        values.error("lease", "is too short: etcd has none below 2 s", "give 2 or more")
    } else {
        refuse(&text)
    })
}
