//! Facts of the network: names, interfaces, ports, and the addresses at which nodes find each other.

use crate::cli::doctor::facts::{MasterFacts, NameFacts, NetworkFacts};
use crate::model::Endpoint;
use crate::net::thread;
use crate::probe::net;
use crate::spec::options::EnvVars;
use crate::sys::io::ports::PortLease;
use std::time::Duration;

/// How long the system may take to resolve a name.
const PATIENCE: Duration = Duration::from_secs(3);

pub(super) fn find(vars: &EnvVars, master: Option<&str>) -> NetworkFacts {
    NetworkFacts {
        host: resolve(net::host_name()),
        localhost: resolve("localhost".into()),
        interfaces: net::interfaces().ok(),
        addresses: net::addresses(),
        free_ports: std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range")
            .ok()
            .and_then(|text| range(&text)),
        any_port: PortLease::any().map(drop).map_err(|error| error.to_string()),
        masters: masters(vars, master).into_iter().map(look).collect(),
    }
}

fn resolve(name: String) -> NameFacts {
    let asked = name.clone();
    NameFacts { name, addresses: thread::within(PATIENCE, move || net::resolve(&asked)) }
}

fn range(text: &str) -> Option<(u16, u16)> {
    let mut numbers = text.split_whitespace().map(|word| word.parse().ok());
    Some((numbers.next()??, numbers.next()??))
}

/// An address that the option or a variable gives.
struct GivenMaster {
    from: &'static str,
    host: String,
    port: Option<u16>,
    /// Whether a launcher listens there, and not an etcd.
    is_served_by_job: bool,
}

/// The addresses that the option and the variables give, each once.
fn masters(vars: &EnvVars, option: Option<&str>) -> Vec<GivenMaster> {
    let var = |name: &str| vars.get(name).map(String::as_str).filter(|text| !text.trim().is_empty());
    let torch = var("MASTER_ADDR").map(|host| match var("MASTER_PORT") {
        Some(port) if !host.contains(':') => format!("{host}:{port}"),
        _ => host.to_owned(),
    });
    let given = [
        ("--master", option.map(str::to_owned)),
        ("PADDLE_MASTER", var("PADDLE_MASTER").map(str::to_owned)),
        ("PET_RDZV_ENDPOINT", var("PET_RDZV_ENDPOINT").map(str::to_owned)),
        ("MASTER_ADDR", torch),
    ];
    let by_etcd = var("PET_RDZV_BACKEND").is_some_and(|backend| backend.starts_with("etcd"));
    let mut found: Vec<GivenMaster> = Vec::new();
    for (from, text) in given.into_iter().filter_map(|(from, text)| Some((from, text?))) {
        // `etcd://HOST:PORT,HOST:PORT`: all endpoints of one server.
        let (scheme, list) = text.split_once("://").map_or(("", text.as_str()), |(scheme, rest)| (scheme, rest));
        let is_served_by_job = scheme.is_empty() && !(by_etcd && from == "PET_RDZV_ENDPOINT");
        // A password has no business in the output, nor in a question to a name server.
        let without_user = |one: &str| one.rsplit_once('@').map_or(one, |(_, at)| at).to_owned();
        for one in list.split(',').map(|one| without_user(one.split('/').next().unwrap_or(one).trim())) {
            let (host, port) = match Endpoint::parse(&one) {
                Some(at) if !at.host.contains(':') || one.starts_with('[') => (at.host, Some(at.port)),
                _ => (one.trim_matches(['[', ']']).to_owned(), None),
            };
            if !host.is_empty() && !found.iter().any(|known| known.host == host && known.port == port) {
                found.push(GivenMaster { from, host, port, is_served_by_job });
            }
        }
    }
    found
}

fn look(GivenMaster { from, host, port, is_served_by_job }: GivenMaster) -> MasterFacts {
    let host = resolve(host);
    let mut route = Ok(());
    for address in host.addresses.iter().flatten() {
        route =
            net::local_address_to(&address.to_string(), port.unwrap_or(1)).map(drop).map_err(|error| error.to_string());
        if route.is_ok() {
            break;
        }
    }
    let is_own = host.addresses.iter().flatten().any(|address| net::is_own(*address));
    let busy = port
        .filter(|_| is_own && is_served_by_job)
        .and_then(|port| PortLease::fixed(port).err())
        .map(|busy| busy.to_string());
    MasterFacts { from, host, port, route, busy }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_masters_are_found_in_each_form() {
        let found = |option: Option<&str>, vars: &[(&str, &str)]| {
            let vars = vars.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
            masters(&vars, option)
                .into_iter()
                .map(|GivenMaster { from, host, port, is_served_by_job }| {
                    format!("{from} {host} {port:?}{}", if is_served_by_job { "" } else { " etcd" })
                })
                .collect::<Vec<_>>()
        };
        assert_eq!(found(Some("10.0.0.1:6768"), &[]), ["--master 10.0.0.1 Some(6768)"]);
        assert_eq!(found(Some("fe80::1"), &[]), ["--master fe80::1 None"]);
        assert_eq!(found(Some("[fe80::1]:7"), &[]), ["--master fe80::1 Some(7)"]);
        assert_eq!(
            found(Some("etcd://a:1,b:2/x"), &[("PADDLE_MASTER", "a:1")]),
            ["--master a Some(1) etcd", "--master b Some(2) etcd"]
        );
        let etcd = [("PET_RDZV_BACKEND", "etcd-v2"), ("PET_RDZV_ENDPOINT", "c:3")];
        assert_eq!(
            found(Some("etcds://me:p@ss@a:1/"), &etcd),
            ["--master a Some(1) etcd", "PET_RDZV_ENDPOINT c Some(3) etcd"]
        );
        assert_eq!(found(None, &[("MASTER_ADDR", "h"), ("MASTER_PORT", "29500")]), ["MASTER_ADDR h Some(29500)"]);
        assert!(found(None, &[("PADDLE_MASTER", " ")]).is_empty());
        assert_eq!(range("32768\t60999\n"), Some((32768, 60999)));
        assert_eq!(range("x"), None);
    }
}
