//! The rendezvous of nodes that no list names: at etcd, or at a master that one of the nodes serves.
//! Contract: `paddle.distributed.launch`. `torchrun::rendezvous` reads torchrun's options for the same.

use crate::model::{Endpoint, fingerprint};
use crate::spec::error::SpecError;
use crate::spec::options::OptValues;
use std::fmt;
use std::time::Duration;

/// The backend of a rendezvous.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BackendSpec {
    /// An etcd.
    Etcd(EtcdSpec),
    /// The embedded master, served by the node that has this address.
    Master(Endpoint),
    /// The embedded master on this node, which prints its address.
    Here,
}

/// The most nodes of a job.
pub const MAX_NODES: usize = 1 << 16;
/// The fewest characters of a job's secret: secrets can be tried offline against a recorded connection.
const MIN_SECRET: usize = 16;

/// How to connect to etcd.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EtcdSpec {
    /// Members of the cluster.
    pub endpoints: Vec<Endpoint>,
    /// Whether the connection uses TLS.
    pub tls: bool,
    /// File of CA certificates, if not the system's.
    pub ca: Option<String>,
    /// Files of this node's certificate and private key.
    pub cert: Option<(String, String)>,
    /// Name and password.
    pub user: Option<(String, Secret)>,
    /// The prefix of all keys.
    pub prefix: String,
}

/// A text that is never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(pub String);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

/// The reaction to a failed rank or a lost node (`--elastic_level`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ElasticLevel {
    /// The job ends; with `--max_restart`, all ranks restart.
    Off,
    /// The node leaves, and the others wait for a replacement.
    Hold,
    /// All ranks restart on the nodes that are left.
    Restart,
}

/// The options of a front end that errors about the rendezvous name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OptionNames {
    /// The option with the address.
    pub address: &'static str,
    /// The option with this node's address.
    pub host: &'static str,
    /// The option with the time limit.
    pub join_timeout: &'static str,
}

/// The options of Paddle's front end.
pub const NAMES: OptionNames = OptionNames { address: "--master", host: "--host", join_timeout: "--join_timeout" };

/// A checked request for a rendezvous.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RendezvousSpec {
    /// The options that errors name.
    pub option_names: OptionNames,
    /// The backend.
    pub backend: BackendSpec,
    /// The job's name at the backend.
    pub job_name: String,
    /// Minimum and maximum number of nodes.
    pub nodes: (usize, usize),
    /// This node's number, if the user gives it.
    pub node_rank: Option<usize>,
    /// Whether this node serves the embedded master, if the user says so; otherwise the master's address decides.
    pub is_host: Option<bool>,
    /// The reaction to a failure or a loss.
    pub elastic_level: ElasticLevel,
    /// How long to wait for more nodes once there are enough.
    pub last_call: Duration,
    /// The time limit of a rendezvous.
    pub join_timeout: Duration,
    /// How long a round runs before it is stopped for nodes that join later.
    pub min_round_time: Duration,
    /// How many failures in a row exclude a node; 0: none do.
    pub node_failure_limit: u32,
    /// How many nodes beyond the maximum wait to replace a lost one; `None`: any number.
    pub spares: Option<usize>,
    /// What has to be the same on all nodes: words of `model::fingerprint`, separated by commas.
    pub require_same: String,
    /// Whether nodes without a number are ordered by address.
    pub sort_ip: bool,
    /// The time without a heartbeat after which a node is considered lost.
    pub heartbeat_timeout: Duration,
    /// How long ranks outlive the contact with etcd; `None`: 60 s where the job ends with a lost node, else not at all.
    pub etcd_loss_timeout: Option<Duration>,
    /// The shared secret of the job's nodes.
    pub secret: Option<Secret>,
    /// This node's address, if the user gives it.
    pub host: Option<String>,
}

/// Reads `--nnodes`: `N` or `MIN:MAX`.
pub fn nnodes(values: &OptValues) -> Result<(usize, usize), SpecError> {
    let text = values.text("nnodes").unwrap_or("1").trim();
    let (low, high) = text.split_once(':').unwrap_or((text, text));
    let number = |text: &str| text.trim().parse::<usize>().ok().filter(|n| (1..=MAX_NODES).contains(n));
    match (number(low), number(high)) {
        (Some(low), Some(high)) if low <= high => Ok((low, high)),
        _ => Err(values.error("nnodes", "is not a number of nodes", "give a number, 1 or more, or MIN:MAX")),
    }
}

/// Reads and checks the options; `None` for a single node. `warnings` receives messages for the user.
pub fn check(values: &OptValues, warnings: &mut Vec<String>) -> Result<Option<RendezvousSpec>, SpecError> {
    let (min, max) = nnodes(values)?;
    let master = values.text("master").unwrap_or("").trim();
    let etcd = master.strip_prefix("etcd://").or_else(|| master.strip_prefix("etcds://"));
    if etcd.is_none() {
        let idle = ["etcd_ca", "etcd_cert", "etcd_key", "etcd_user"];
        for name in idle.into_iter().filter(|name| values.on_command_line(name).is_some()) {
            warnings.push(format!("--{name} has no effect without --master etcd://"));
        }
    }
    if max == 1 && etcd.is_none() {
        return Ok(None);
    }
    let at = match (etcd, master) {
        (Some(list), _) => BackendSpec::Etcd(self::etcd(values, list, master.starts_with("etcds://"), warnings)?),
        (None, "") => BackendSpec::Here,
        (None, master) => {
            let bare = master.strip_prefix("http://").unwrap_or(master).trim_end_matches('/');
            let endpoint = Endpoint::parse(bare).filter(|endpoint| endpoint.port > 0 && !endpoint.is_unspecified());
            BackendSpec::Master(
                endpoint
                    .ok_or_else(|| values.error("master", "is not an address", "give ip:port, or etcd://ip:port"))?,
            )
        }
    };
    let rank = match values.int("rank")?.unwrap_or(-1) {
        ..-1 => {
            let hint = format!("give 0 to {}, or -1 for any", max - 1);
            return Err(values.error("rank", "is not the number of a node", &hint));
        }
        -1 => None,
        rank => Some(usize::try_from(rank).ok().filter(|rank| *rank < max).ok_or_else(|| {
            values.error(
                "rank",
                &format!("is not the number of a node: there are {max} nodes"),
                &format!("give 0 to {}", max - 1),
            )
        })?),
    };
    let level = match values.int("elastic_level")?.unwrap_or(-1) {
        -1 => ElasticLevel::Off,
        0 => ElasticLevel::Hold,
        1 => ElasticLevel::Restart,
        _ => return Err(values.error("elastic_level", "is not a level", "give -1, 0 or 1")),
    };
    // As in Paddle's launcher: shorter times are treated as mistakes.
    let timeout = match elastic_timeout(values)?.unwrap_or(30) {
        ..=1 => Duration::from_secs(3),
        seconds => Duration::from_secs(seconds),
    };
    let job_id = values.text("job_id").unwrap_or("default");
    if matches!(at, BackendSpec::Etcd(_)) && job_id == "default" {
        warnings.push("Using default job name may cause conflict, add --job_id in args".into());
    }
    let key = secret(values, "job_secret", warnings)?;
    if key.is_some() && matches!(at, BackendSpec::Etcd(_)) {
        return Err(values.error(
            "job_secret",
            "is only for the embedded master",
            "unset RLAUNCH_JOB_SECRET, and give etcd's --etcd_user or certificates",
        ));
    }
    if max > 1 {
        check_is_closed(values, "require_secret", &at, key.as_ref())?;
    }
    let host = values.text("host").filter(|host| host.contains(['.', ':']));
    let join_timeout = join_timeout(values)?.unwrap_or(timeout * 10);
    Ok(Some(RendezvousSpec {
        option_names: NAMES,
        backend: at,
        job_name: job_id.to_owned(),
        is_host: None,
        nodes: (min, max),
        node_rank: rank,
        elastic_level: level,
        last_call: timeout,
        join_timeout,
        min_round_time: min_round_time(values, "min_round_time")?,
        node_failure_limit: node_failure_limit(values, "node_failure_limit")?,
        spares: spares(values, level == ElasticLevel::Off && min == max, "--elastic_level 1, or --nnodes MIN:MAX")?,
        require_same: require_same(values, "require_same")?,
        sort_ip: values.bool("sort_ip")?.unwrap_or(false),
        heartbeat_timeout: heartbeat_timeout(values)?,
        etcd_loss_timeout: values.seconds("etcd_loss_timeout")?.map(Duration::from_secs_f64),
        secret: key,
        host: host.map(str::to_owned),
    }))
}

/// Reads the job's secret.
pub fn secret(values: &OptValues, name: &str, warnings: &mut Vec<String>) -> Result<Option<Secret>, SpecError> {
    let Some(text) = values.given(name).filter(|text| !text.is_empty()) else { return Ok(None) };
    warn_of_command_line(values, name, "RLAUNCH_JOB_SECRET", warnings);
    match text.chars().count() {
        MIN_SECRET.. => Ok(Some(Secret(text.to_owned()))),
        short => {
            let why = format!("has {short} characters, and can be guessed from a recorded connection");
            let hint = format!("give {MIN_SECRET} or more, drawn at random (openssl rand -hex 32)");
            Err(SpecError::new(values.field(name), "", why, &hint))
        }
    }
}

fn warn_of_command_line(values: &OptValues, name: &str, variable: &str, warnings: &mut Vec<String>) {
    if values.on_command_line(name).is_some() {
        let option = values.field(name);
        warnings.push(format!("{option}: other users of this machine can read command lines; set {variable} instead"));
    }
}

/// Refuses a job of several nodes that strangers could join, where `--require_secret` (here `name`) asks for that.
pub fn check_is_closed(
    values: &OptValues,
    name: &str,
    at: &BackendSpec,
    secret: Option<&Secret>,
) -> Result<(), SpecError> {
    let (what, hint) = match at {
        BackendSpec::Here => return Ok(()),
        BackendSpec::Master(_) if secret.is_some() => return Ok(()),
        BackendSpec::Etcd(etcd) if etcd.user.is_some() || etcd.cert.is_some() => return Ok(()),
        BackendSpec::Master(_) => {
            ("this job of several nodes has none", "set RLAUNCH_JOB_SECRET to one secret on all nodes")
        }
        BackendSpec::Etcd(_) => {
            ("this job has neither a user nor a certificate for etcd", "set RLAUNCH_ETCD_USER, or name a certificate")
        }
    };
    match values.bool(name)? {
        Some(true) => Err(values.error(name, &format!("asks for a secret, and {what}"), hint)),
        _ => Ok(()),
    }
}

/// Reads `--elastic_timeout`: seconds to wait for more nodes.
pub fn elastic_timeout(values: &OptValues) -> Result<Option<u64>, SpecError> {
    let Some(seconds) = values.int("elastic_timeout")? else { return Ok(None) };
    match u64::try_from(seconds) {
        Ok(seconds) if seconds <= 1_000_000_000 => Ok(Some(seconds)),
        _ => Err(values.error("elastic_timeout", "is not a number of seconds", "give 0 or more")),
    }
}

/// Reads `--join_timeout`: the time limit of a rendezvous.
pub fn join_timeout(values: &OptValues) -> Result<Option<Duration>, SpecError> {
    match values.seconds("join_timeout")? {
        Some(seconds) if seconds < 1.0 => {
            Err(values.error("join_timeout", "is too short for a rendezvous", "give 1 or more"))
        }
        given => Ok(given.map(Duration::from_secs_f64)),
    }
}

/// Reads how long a round runs at least before it is stopped for more nodes.
pub fn min_round_time(values: &OptValues, name: &str) -> Result<Duration, SpecError> {
    Ok(values.seconds(name)?.map_or(Duration::ZERO, Duration::from_secs_f64))
}

/// Reads how many failures in a row exclude a node.
pub fn node_failure_limit(values: &OptValues, name: &str) -> Result<u32, SpecError> {
    let given = values.int(name)?.unwrap_or(0);
    u32::try_from(given).map_err(|_| values.error(name, "is not a number of failures", "give 0 or more"))
}

/// Reads how many nodes beyond the maximum wait. `ends_by_loss`: the job ends with a lost node, unless the user gives `instead`.
pub fn spares(values: &OptValues, ends_by_loss: bool, instead: &str) -> Result<Option<usize>, SpecError> {
    let Some(given) = values.int("spares")? else { return Ok(None) };
    let number = usize::try_from(given).ok().filter(|number| *number <= MAX_NODES);
    let number = number.ok_or_else(|| values.error("spares", "is not a number of nodes", "give 0 or more"))?;
    if number > 0 && ends_by_loss {
        let why = "has no effect on a job that ends when it loses a node";
        return Err(values.error("spares", why, &format!("give {instead}, or leave it out")));
    }
    Ok(Some(number))
}

/// Reads what has to be the same on all nodes: words of `model::fingerprint`, each once.
pub fn require_same(values: &OptValues, name: &str) -> Result<String, SpecError> {
    let asked: Vec<&str> = values.given(name).unwrap_or("").split(',').map(str::trim).collect();
    if asked.iter().any(|word| !word.is_empty() && !fingerprint::WORDS.contains(word)) {
        let hint = "give python, framework, git or driver, several separated by commas";
        return Err(values.error(name, "is not what nodes compare", hint));
    }
    Ok(fingerprint::WORDS.into_iter().filter(|word| asked.contains(word)).collect::<Vec<_>>().join(","))
}

/// Refuses `--require_same` (here `name`) in a job whose nodes do not exchange what they would compare.
pub fn check_nothing_required(values: &OptValues, name: &str, instead: &str) -> Result<(), SpecError> {
    if require_same(values, name)?.is_empty() {
        return Ok(());
    }
    Err(values.error(name, "compares nothing here: the nodes of this job do not rendezvous with rlaunch", instead))
}

/// Refuses a node other than the first without `--master`: each node would serve a master of its own.
pub fn check_master_is_known(values: &OptValues, rendezvous: &RendezvousSpec) -> Result<(), SpecError> {
    match (&rendezvous.backend, rendezvous.node_rank) {
        (BackendSpec::Here, Some(rank @ 1..)) if rendezvous.nodes.1 > 1 => {
            let why = format!("is missing, and node {rank} cannot find node 0 without it");
            let hint = "give --master ip:port (Kubernetes: set RLAUNCH_SERVICE to the headless Service)";
            Err(values.error("master", &why, hint))
        }
        _ => Ok(()),
    }
}

/// Refuses a `--master` with an unknown scheme.
pub fn check_scheme(values: &OptValues) -> Result<(), SpecError> {
    let master = values.text("master").unwrap_or("").trim();
    match master.split_once("://") {
        None | Some(("http" | "etcd" | "etcds", _)) => Ok(()),
        Some((scheme, _)) => {
            let why = format!("{}:// is not a rendezvous backend", crate::spec::error::shown(scheme));
            Err(values.error("master", &why, "give ip:port, etcd:// or etcds://"))
        }
    }
}

fn heartbeat_timeout(values: &OptValues) -> Result<Duration, SpecError> {
    let seconds = values.seconds("heartbeat_timeout")?.unwrap_or(10.0);
    if seconds < 2.0 {
        return Err(values.error(
            "heartbeat_timeout",
            "is too short: etcd's leases last at least 2 s",
            "give 2 or more",
        ));
    }
    Ok(Duration::from_secs_f64(seconds))
}

/// Reads the name and the password for etcd.
pub fn etcd_user(
    values: &OptValues,
    name: &str,
    warnings: &mut Vec<String>,
) -> Result<Option<(String, Secret)>, SpecError> {
    let Some(user) = values.given(name).filter(|user| !user.is_empty()) else { return Ok(None) };
    warn_of_command_line(values, name, "RLAUNCH_ETCD_USER", warnings);
    match user.split_once(':') {
        Some((name, password)) if !name.is_empty() => Ok(Some((name.to_owned(), Secret(password.to_owned())))),
        _ => {
            let hint = "give USER:PASSWORD, best in RLAUNCH_ETCD_USER";
            Err(SpecError::new(values.field(name), "", "is not USER:PASSWORD", hint))
        }
    }
}

/// Reads the options about etcd. `list`: its endpoints.
pub fn etcd(values: &OptValues, list: &str, tls: bool, warnings: &mut Vec<String>) -> Result<EtcdSpec, SpecError> {
    let endpoint = |text: &str| Endpoint::parse(text.trim()).filter(|endpoint| endpoint.port > 0);
    let endpoints: Option<Vec<Endpoint>> = list.trim_end_matches('/').split(',').map(endpoint).collect();
    let hint = "give etcd://ip:port, several separated by commas";
    let endpoints = endpoints.ok_or_else(|| values.error("master", "is not an address of etcd", hint))?;
    let file = |name: &str| values.given(name).filter(|path| !path.is_empty()).map(str::to_owned);
    let (ca, cert, key) = (file("etcd_ca"), file("etcd_cert"), file("etcd_key"));
    let cert = match (cert, key) {
        (Some(cert), Some(key)) => Some((cert, key)),
        (None, None) => None,
        (Some(_), None) => return Err(values.error("etcd_cert", "has no key", "give --etcd_key too")),
        (None, Some(_)) => return Err(values.error("etcd_key", "has no certificate", "give --etcd_cert too")),
    };
    let user = etcd_user(values, "etcd_user", warnings)?;
    let tls = tls || ca.is_some() || cert.is_some();
    Ok(EtcdSpec { endpoints, tls, ca, cert, user, prefix: "/rlaunch".into() })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // A test fails by panicking.
    use super::*;
    use crate::spec::options::EnvVars;
    use crate::spec::paddle::options::merge;
    use std::collections::BTreeMap;

    fn values(options: &[(&'static str, &str)]) -> OptValues {
        let flags = options.iter().map(|(name, text)| (*name, (*text).to_owned()));
        merge(&BTreeMap::from_iter(flags), &EnvVars::new())
    }

    fn refused(options: &[(&'static str, &str)]) -> String {
        let all = [&[("nnodes", "2")], options].concat();
        check(&values(&all), &mut Vec::new()).unwrap_err().to_string()
    }

    #[test]
    fn invalid_values_are_refused_with_the_valid_ones() {
        assert!(refused(&[("elastic_level", "2")]).ends_with("give -1, 0 or 1"));
        assert!(refused(&[("elastic_level", "-2")]).ends_with("give -1, 0 or 1"));
        assert!(refused(&[("elastic_timeout", "-1")]).starts_with("--elastic_timeout -1: "));
        assert!(refused(&[("elastic_timeout", "9223372036854775807")]).starts_with("--elastic_timeout "));
        assert!(refused(&[("join_timeout", "0")]).ends_with("give 1 or more"));
        assert!(refused(&[("rank", "-2")]).starts_with("--rank -2: "));
        let scheme = check_scheme(&values(&[("master", "ectd://10.0.0.1:2379")])).unwrap_err().to_string();
        assert!(scheme.ends_with("ectd:// is not a rendezvous backend; give ip:port, etcd:// or etcds://"), "{scheme}");
        assert_eq!(check_scheme(&values(&[("master", "http://10.0.0.1:1")])), Ok(()));
    }

    #[test]
    fn a_node_other_than_the_first_needs_the_address_of_the_master() {
        let found = |options: &[(&'static str, &str)]| {
            let values = values(&[&[("nnodes", "2")], options].concat());
            check_master_is_known(&values, &check(&values, &mut Vec::new()).unwrap().unwrap())
                .map_err(|e| e.to_string())
        };
        let error = found(&[("rank", "1")]).unwrap_err();
        assert!(error.starts_with("--master: is missing, and node 1 cannot find node 0 without it; "), "{error}");
        assert_eq!(found(&[("rank", "0")]), Ok(()));
        assert_eq!(found(&[("rank", "1"), ("master", "10.0.0.1:6768")]), Ok(()));
    }

    #[test]
    fn a_short_secret_is_refused_and_not_shown() {
        assert_eq!(
            refused(&[("master", "10.0.0.1:6768"), ("job_secret", "hunter2")]),
            "--job_secret: has 7 characters, and can be guessed from a recorded connection; \
             give 16 or more, drawn at random (openssl rand -hex 32)"
        );
    }

    #[test]
    fn where_a_secret_is_required_every_open_job_is_refused() {
        let open = |options: &[(&'static str, &str)]| {
            let all = [&[("nnodes", "2"), ("require_secret", "1")], options].concat();
            check(&values(&all), &mut Vec::new()).err().map(|error| error.to_string())
        };
        let (master, etcd) = (("master", "10.0.0.1:6768"), ("master", "etcds://10.0.0.1:2379"));
        assert!(open(&[master]).is_some_and(|why| why.ends_with("set RLAUNCH_JOB_SECRET to one secret on all nodes")));
        assert!(open(&[etcd]).is_some_and(|why| why.contains("neither a user nor a certificate for etcd")));
        assert!(open(&[etcd, ("etcd_ca", "ca.pem")]).is_some());
        let closed: [&[(&'static str, &str)]; 5] = [
            &[],
            &[master, ("job_secret", "0123456789abcdef")],
            &[etcd, ("etcd_user", "me:word")],
            &[etcd, ("etcd_cert", "me.pem"), ("etcd_key", "me.key")],
            &[master, ("require_secret", "0")],
        ];
        for options in closed {
            assert_eq!(open(options), None, "{options:?}");
        }
        assert_eq!(check(&values(&[("nnodes", "1"), ("require_secret", "1")]), &mut Vec::new()), Ok(None));
    }

    #[test]
    fn secrets_on_the_command_line_warn() {
        let options: [(&str, &[(&'static str, &str)]); 2] = [
            ("RLAUNCH_JOB_SECRET", &[("master", "10.0.0.1:6768"), ("job_secret", "0123456789abcdef")]),
            ("RLAUNCH_ETCD_USER", &[("master", "etcd://10.0.0.1:2379"), ("etcd_user", "me:word"), ("job_id", "j")]),
        ];
        for (variable, options) in options {
            let mut warnings = Vec::new();
            check(&values(&[&[("nnodes", "2")], options].concat()), &mut warnings).unwrap();
            let [warning] = &warnings[..] else { panic!("{warnings:?}") };
            assert!(warning.ends_with(&format!("can read command lines; set {variable} instead")), "{warning}");
        }
    }

    #[test]
    fn options_of_etcd_warn_without_etcd() {
        for (master, count) in [("10.0.0.1:6768", 1), ("etcd://10.0.0.1:2379", 0)] {
            let mut warnings = Vec::new();
            let given = [("nnodes", "2"), ("master", master), ("etcd_ca", "ca.pem"), ("job_id", "j")];
            check(&values(&given), &mut warnings).unwrap();
            assert_eq!(
                warnings.iter().filter(|line| line.contains("--etcd_ca has no effect")).count(),
                count,
                "{warnings:?}"
            );
        }
    }
}
