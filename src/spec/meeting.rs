//! How the nodes of a job find each other, where nobody lists them: at an etcd, or at a master that one of them is.
//! Contract: `paddle.distributed.launch`; for how torchrun says the same, `torchrun::rdzv`.

use super::SpecError;
use super::options::Values;
use crate::model::Endpoint;
use std::fmt;
use std::time::Duration;

/// Where they meet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum At {
    /// At an etcd.
    Etcd(EtcdSpec),
    /// At a master: one of them, whose address this is.
    Master(Endpoint),
    /// At this node, which is the master and says where it is.
    Here,
}

/// An etcd.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EtcdSpec {
    /// Any of its members.
    pub endpoints: Vec<Endpoint>,
    /// Whether it is spoken to by TLS.
    pub tls: bool,
    /// File of the certificates that its own is signed by, if not the system's.
    pub ca: Option<String>,
    /// Files of this node's certificate and its key.
    pub cert: Option<(String, String)>,
    /// Name and password.
    pub user: Option<(String, Secret)>,
    /// Below which keys are.
    pub prefix: String,
}

/// What is shown to nobody.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(pub String);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

/// What follows a failed rank or a lost node (`--elastic_level`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// The job ends; or, where restarts are asked for, all start again.
    Off,
    /// The node whose rank it was goes, the others wait for another in its place.
    Hold,
    /// All start again, with who is there.
    Restart,
}

/// A checked request to meet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Meeting {
    /// Where.
    pub at: At,
    /// The name of the job there.
    pub name: String,
    /// The least and the most nodes.
    pub nodes: (usize, usize),
    /// This node's number, if the user gives one.
    pub rank: Option<usize>,
    /// What follows a failure or a loss.
    pub level: Level,
    /// How long more nodes are waited for once there are enough.
    pub last_call: Duration,
    /// How long a round may take to come together.
    pub join: Duration,
    /// Whether nodes without numbers are ordered by address.
    pub sort_ip: bool,
    /// After what silence a node is taken for lost.
    pub lease: Duration,
    /// How long ranks run on while etcd does not answer.
    pub lost_timeout: Duration,
    /// By which nodes of a job know each other.
    pub key: Option<Secret>,
    /// This node's address, if the user gives one.
    pub host: Option<String>,
}

/// `N` or `MIN:MAX`.
pub fn nnodes(values: &Values) -> Result<(usize, usize), SpecError> {
    let text = values.text("nnodes").unwrap_or("1").trim();
    let (low, high) = text.split_once(':').unwrap_or((text, text));
    let number = |text: &str| text.trim().parse::<usize>().ok().filter(|n| (1..=1 << 16).contains(n));
    match (number(low), number(high)) {
        (Some(low), Some(high)) if low <= high => Ok((low, high)),
        _ => Err(values.error("nnodes", "is no number of nodes", "give a number, 1 or more, or MIN:MAX")),
    }
}

/// What is asked for; `None` where this node is alone, or has been told of all others.
pub fn check(values: &Values, said: &mut Vec<String>) -> Result<Option<Meeting>, SpecError> {
    let (min, max) = nnodes(values)?;
    let master = values.text("master").unwrap_or("").trim();
    let etcd = master.strip_prefix("etcd://").or_else(|| master.strip_prefix("etcds://"));
    if max == 1 && etcd.is_none() {
        return Ok(None);
    }
    let at = match (etcd, master) {
        (Some(list), _) => At::Etcd(self::etcd(values, list, master.starts_with("etcds://"))?),
        (None, "") => At::Here,
        (None, master) => {
            let bare = master.strip_prefix("http://").unwrap_or(master).trim_end_matches('/');
            let endpoint = Endpoint::parse(bare).filter(|endpoint| endpoint.port > 0);
            At::Master(
                endpoint.ok_or_else(|| values.error("master", "is no address", "give ip:port, or etcd://ip:port"))?,
            )
        }
    };
    let rank = match values.int("rank")?.unwrap_or(-1) {
        ..0 => None,
        rank => Some(usize::try_from(rank).ok().filter(|rank| *rank < max).ok_or_else(|| {
            values.error(
                "rank",
                &format!("is no node's number: there are {max} nodes"),
                &format!("give 0 to {}", max - 1),
            )
        })?),
    };
    let level = match values.int("elastic_level")?.unwrap_or(-1) {
        ..0 => Level::Off,
        0 => Level::Hold,
        _ => Level::Restart,
    };
    // As in Paddle's launcher, which takes what is too short for a mistake.
    let timeout = match values.int("elastic_timeout")?.unwrap_or(30) {
        ..=1 => Duration::from_secs(3),
        seconds => Duration::from_secs(seconds.unsigned_abs()),
    };
    let job_id = values.text("job_id").unwrap_or("default");
    if matches!(at, At::Etcd(_)) && job_id == "default" {
        said.push("Using default job name may cause conflict, add --job_id in args".into());
    }
    let key = values.given("job_key").filter(|key| !key.is_empty());
    if values.on_command_line("job_key").is_some() {
        said.push(
            "--job_key: every user of this machine can read a command line; RLAUNCH_JOB_KEY is the same in private"
                .into(),
        );
    }
    if key.is_some() && matches!(at, At::Etcd(_)) {
        return Err(values.error("job_key", "is for the embedded master", "give etcd's --etcd_user or certificates"));
    }
    let host = values.text("host").filter(|host| host.contains(['.', ':']));
    let join = match values.seconds("join_timeout")? {
        Some(seconds) => Duration::from_secs_f64(seconds),
        None => timeout * 10,
    };
    Ok(Some(Meeting {
        at,
        name: job_id.to_owned(),
        nodes: (min, max),
        rank,
        level,
        last_call: timeout,
        join,
        sort_ip: values.bool("sort_ip")?.unwrap_or(false),
        lease: lease(values)?,
        lost_timeout: Duration::from_secs_f64(values.seconds("lost_timeout")?.unwrap_or(60.0)),
        key: key.map(|key| Secret(key.to_owned())),
        host: host.map(str::to_owned),
    }))
}

fn lease(values: &Values) -> Result<Duration, SpecError> {
    let seconds = values.seconds("lease")?.unwrap_or(10.0);
    if seconds < 2.0 {
        return Err(values.error("lease", "is too short: etcd has none below 2 s", "give 2 or more"));
    }
    Ok(Duration::from_secs_f64(seconds))
}

/// The members of an etcd, and how it is spoken to.
pub fn etcd(values: &Values, list: &str, tls: bool) -> Result<EtcdSpec, SpecError> {
    let endpoint = |text: &str| Endpoint::parse(text.trim()).filter(|endpoint| endpoint.port > 0);
    let endpoints: Option<Vec<Endpoint>> = list.trim_end_matches('/').split(',').map(endpoint).collect();
    let hint = "give etcd://ip:port, several joined by commas";
    let endpoints = endpoints.ok_or_else(|| values.error("master", "is no address of an etcd", hint))?;
    let file = |name: &str| values.given(name).filter(|path| !path.is_empty()).map(str::to_owned);
    let (ca, cert, key) = (file("etcd_ca"), file("etcd_cert"), file("etcd_key"));
    let cert = match (cert, key) {
        (Some(cert), Some(key)) => Some((cert, key)),
        (None, None) => None,
        (Some(_), None) => return Err(values.error("etcd_cert", "has no key", "give --etcd_key too")),
        (None, Some(_)) => return Err(values.error("etcd_key", "has no certificate", "give --etcd_cert too")),
    };
    let user = match values.given("etcd_user").filter(|user| !user.is_empty()) {
        None => None,
        Some(user) => match user.split_once(':') {
            Some((name, password)) if !name.is_empty() => Some((name.to_owned(), Secret(password.to_owned()))),
            _ => {
                let hint = "give USER:PASSWORD, best in RLAUNCH_ETCD_USER";
                return Err(SpecError::new("--etcd_user", "", "is no name and password", hint));
            }
        },
    };
    let tls = tls || ca.is_some() || cert.is_some();
    Ok(EtcdSpec { endpoints, tls, ca, cert, user, prefix: "/rlaunch".into() })
}
