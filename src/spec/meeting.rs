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

/// How the user's door names what the meeting is asked by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Names {
    /// Where.
    pub at: &'static str,
    /// This node's address.
    pub host: &'static str,
    /// How long a round may take to come together.
    pub join: &'static str,
}

/// In Paddle's door.
pub const NAMES: Names = Names { at: "--master", host: "--host", join: "--join_timeout" };

/// A checked request to meet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Meeting {
    /// What errors call it all.
    pub names: Names,
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
    if etcd.is_none() {
        let idle = ["etcd_ca", "etcd_cert", "etcd_key", "etcd_user"];
        for name in idle.into_iter().filter(|name| values.on_command_line(name).is_some()) {
            said.push(format!("--{name} has no effect without --master etcd://"));
        }
    }
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
        ..-1 => {
            let hint = format!("give 0 to {}, or -1 for any", max - 1);
            return Err(values.error("rank", "is no node's number", &hint));
        }
        -1 => None,
        rank => Some(usize::try_from(rank).ok().filter(|rank| *rank < max).ok_or_else(|| {
            values.error(
                "rank",
                &format!("is no node's number: there are {max} nodes"),
                &format!("give 0 to {}", max - 1),
            )
        })?),
    };
    let level = match values.int("elastic_level")?.unwrap_or(-1) {
        -1 => Level::Off,
        0 => Level::Hold,
        1 => Level::Restart,
        _ => return Err(values.error("elastic_level", "is no level", "give -1, 0 or 1")),
    };
    // As in Paddle's launcher, which takes what is too short for a mistake.
    let timeout = match wait(values)?.unwrap_or(30) {
        ..=1 => Duration::from_secs(3),
        seconds => Duration::from_secs(seconds),
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
    let join = join(values)?.unwrap_or(timeout * 10);
    Ok(Some(Meeting {
        names: NAMES,
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

/// How long more nodes are waited for, in seconds (`--elastic_timeout`).
pub fn wait(values: &Values) -> Result<Option<u64>, SpecError> {
    let Some(seconds) = values.int("elastic_timeout")? else { return Ok(None) };
    match u64::try_from(seconds) {
        Ok(seconds) if seconds <= 1_000_000_000 => Ok(Some(seconds)),
        _ => Err(values.error("elastic_timeout", "is not a number of seconds", "give 0 or more")),
    }
}

/// How long a round may take to come together (`--join_timeout`).
pub fn join(values: &Values) -> Result<Option<Duration>, SpecError> {
    match values.seconds("join_timeout")? {
        Some(seconds) if seconds < 1.0 => {
            Err(values.error("join_timeout", "is too short for nodes to meet", "give 1 or more"))
        }
        given => Ok(given.map(Duration::from_secs_f64)),
    }
}

/// Refuses a node that is not the first and has been told of no meeting place: each would serve one of its own.
pub fn check_is_found(values: &Values, meeting: &Meeting) -> Result<(), SpecError> {
    match (&meeting.at, meeting.rank) {
        (At::Here, Some(rank @ 1..)) if meeting.nodes.1 > 1 => {
            let why = format!("is not said, and node {rank} cannot know where node 0 is");
            let hint = "give --master ip:port (Kubernetes: set RLAUNCH_SERVICE to the headless Service)";
            Err(values.error("master", &why, hint))
        }
        _ => Ok(()),
    }
}

/// The scheme of a meeting place, where it is none that there is.
pub fn check_scheme(values: &Values) -> Result<(), SpecError> {
    let master = values.text("master").unwrap_or("").trim();
    match master.split_once("://") {
        None | Some(("http" | "etcd" | "etcds", _)) => Ok(()),
        Some((scheme, _)) => {
            let why = format!("{}:// is no way to meet", super::shown(scheme));
            Err(values.error("master", &why, "give ip:port, etcd:// or etcds://"))
        }
    }
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // A test fails by panicking.
    use super::*;
    use crate::spec::options::{Vars, merge};
    use std::collections::BTreeMap;

    fn values(options: &[(&'static str, &str)]) -> Values {
        let flags = options.iter().map(|(name, text)| (*name, (*text).to_owned()));
        merge(&BTreeMap::from_iter(flags), &Vars::new())
    }

    fn refused(options: &[(&'static str, &str)]) -> String {
        let all = [&[("nnodes", "2")], options].concat();
        check(&values(&all), &mut Vec::new()).unwrap_err().to_string()
    }

    #[test]
    fn what_is_mistyped_is_refused_with_what_there_is() {
        assert!(refused(&[("elastic_level", "2")]).ends_with("give -1, 0 or 1"));
        assert!(refused(&[("elastic_level", "-2")]).ends_with("give -1, 0 or 1"));
        assert!(refused(&[("elastic_timeout", "-1")]).starts_with("--elastic_timeout -1: "));
        assert!(refused(&[("elastic_timeout", "9223372036854775807")]).starts_with("--elastic_timeout "));
        assert!(refused(&[("join_timeout", "0")]).ends_with("give 1 or more"));
        assert!(refused(&[("rank", "-2")]).starts_with("--rank -2: "));
        let scheme = check_scheme(&values(&[("master", "ectd://10.0.0.1:2379")])).unwrap_err().to_string();
        assert!(scheme.ends_with("ectd:// is no way to meet; give ip:port, etcd:// or etcds://"), "{scheme}");
        assert_eq!(check_scheme(&values(&[("master", "http://10.0.0.1:1")])), Ok(()));
    }

    #[test]
    fn who_is_not_the_first_has_to_be_told_where_the_first_is() {
        let found = |options: &[(&'static str, &str)]| {
            let values = values(&[&[("nnodes", "2")], options].concat());
            check_is_found(&values, &check(&values, &mut Vec::new()).unwrap().unwrap()).map_err(|e| e.to_string())
        };
        let error = found(&[("rank", "1")]).unwrap_err();
        assert!(error.starts_with("--master: is not said, and node 1 cannot know where node 0 is; "), "{error}");
        assert_eq!(found(&[("rank", "0")]), Ok(()));
        assert_eq!(found(&[("rank", "1"), ("master", "10.0.0.1:6768")]), Ok(()));
    }

    #[test]
    fn options_of_etcd_without_one_are_said_to_be_idle() {
        for (master, count) in [("10.0.0.1:6768", 1), ("etcd://10.0.0.1:2379", 0)] {
            let mut said = Vec::new();
            let given = [("nnodes", "2"), ("master", master), ("etcd_ca", "ca.pem"), ("job_id", "j")];
            check(&values(&given), &mut said).unwrap();
            assert_eq!(said.iter().filter(|line| line.contains("--etcd_ca has no effect")).count(), count, "{said:?}");
        }
    }
}
