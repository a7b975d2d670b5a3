//! Names, interfaces, ports, and the addresses at which nodes find each other.

use super::variables;
use crate::cli::doctor::facts::{Facts, MasterFacts, NameFacts, NetworkFacts};
use crate::cli::doctor::finding::{Finding, error, ok, unknown, warning};
use std::net::IpAddr;

/// Ports that a job on many nodes takes, and room for other programs.
const FEW_PORTS: u16 = 1000;

pub(super) fn check(facts: &Facts) -> Vec<Finding> {
    let network = &facts.network;
    let has_several_nodes = variables::nodes(&facts.vars).is_some_and(|nodes| nodes > 1);
    let mut found = vec![host_name(network, has_several_nodes), localhost(&network.localhost), interfaces(network)];
    found.extend(
        ["GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "TP_SOCKET_IFNAME"]
            .into_iter()
            .filter_map(|variable| interface_variable(variable, facts.vars.get(variable)?, network)),
    );
    found.push(ports(network));
    found.extend(network.masters.iter().map(|one| master(one, network, has_several_nodes)));
    found
}

/// The first address that other machines may reach.
fn own_address(network: &NetworkFacts) -> Option<&IpAddr> {
    let is_local = |address: &IpAddr| matches!(address, IpAddr::V6(v6) if v6.is_unicast_link_local());
    network.addresses.iter().find(|address| !address.is_loopback() && !is_local(address))
}

fn listed(addresses: &[IpAddr]) -> String {
    addresses.iter().map(IpAddr::to_string).collect::<Vec<_>>().join(", ")
}

/// Whether both name this machine, with or without a domain.
fn is_same_host(a: &str, b: &str) -> bool {
    !a.is_empty() && a.split('.').next() == b.split('.').next()
}

fn host_name(network: &NetworkFacts, has_several_nodes: bool) -> Finding {
    let NameFacts { name, addresses } = &network.host;
    let by_address = match own_address(network) {
        Some(own) => format!(
            "give the first node's address to all nodes (--master {own}:6768), or map {name} to {own} in /etc/hosts"
        ),
        None => format!("give this machine an address, and map {name} to it in /etc/hosts"),
    };
    let is_master = network.masters.iter().any(|master| is_same_host(&master.host.name, name));
    match addresses {
        None => warning(
            "host name",
            format!("{name}: no name server answers, and each look-up of a name delays a start"),
            "look at /etc/resolv.conf",
        ),
        Some(all) if all.is_empty() => warning(
            "host name",
            format!("{name} resolves to no address: programs that look up their own name fail, as gloo does"),
            format!("add {name} to /etc/hosts"),
        ),
        Some(all) if network.host.is_loopback() && (is_master || has_several_nodes) => warning(
            "host name",
            format!(
                "{name} resolves to {} here: a server of this node that listens under it is out of reach of other nodes",
                listed(all)
            ),
            by_address,
        ),
        Some(all) if network.host.is_loopback() => {
            ok("host name", format!("{name} resolves to {}: enough for a job of one node", listed(all)))
        }
        Some(all) => ok("host name", format!("{name} resolves to {}", listed(all))),
    }
}

fn localhost(name: &NameFacts) -> Finding {
    match &name.addresses {
        None => unknown("localhost", "no name server answers"),
        Some(_) if name.is_loopback() => ok("localhost", "resolves to loopback"),
        Some(all) => warning(
            "localhost",
            match &all[..] {
                [] => "resolves to no address: jobs of one node use it as the address of rank 0".to_owned(),
                all => format!("resolves to {}: jobs of one node use it as the address of rank 0", listed(all)),
            },
            "add `127.0.0.1 localhost` to /etc/hosts",
        ),
    }
}

fn interfaces(network: &NetworkFacts) -> Finding {
    let Some(names) = &network.interfaces else { return unknown("interfaces", "the kernel does not list them") };
    match (&names[..], own_address(network)) {
        ([], _) => error(
            "interfaces",
            "none is up, not even loopback: ranks cannot connect to each other",
            "ip link set lo up, or start the container with a network",
        ),
        (_, None) => ok("interfaces", "only loopback is up: enough for a job of one node"),
        (_, Some(own)) => ok("interfaces", format!("{}; other nodes may reach {own}", names.join(", "))),
    }
}

/// A variable that names interfaces. NCCL takes prefixes, `=` before exact names and `^` before those that it leaves out; gloo and
/// tensorpipe take exact names.
fn interface_variable(variable: &'static str, value: &str, network: &NetworkFacts) -> Option<Finding> {
    let interfaces =
        network.interfaces.as_ref().filter(|interfaces| !interfaces.is_empty() && !value.trim().is_empty())?;
    let (is_prefix, leaves_out, list) = match (variable, value.as_bytes().first()) {
        ("NCCL_SOCKET_IFNAME", Some(b'^')) => (true, true, value[1..].trim_start_matches('=')),
        ("NCCL_SOCKET_IFNAME", Some(b'=')) => (false, false, &value[1..]),
        ("NCCL_SOCKET_IFNAME", _) => (true, false, value),
        _ => (false, false, value),
    };
    let is_named = |interface: &String| {
        list.split(',')
            .map(str::trim)
            .any(|name| if is_prefix { interface.starts_with(name) } else { interface == name })
    };
    let chosen: Vec<&str> = interfaces.iter().filter(|one| is_named(one) != leaves_out).map(String::as_str).collect();
    let shown = crate::spec::shown(value);
    Some(match chosen.is_empty() {
        false => ok(variable, format!("{shown}: {}", chosen.join(", "))),
        true => error(
            variable,
            format!("{shown} names no interface that is up ({}): ranks fail when they connect", interfaces.join(", ")),
            format!("name one of these, or unset {variable}: rlaunch then sets the interface of this node's address"),
        ),
    })
}

fn ports(network: &NetworkFacts) -> Finding {
    if let Err(why) = &network.any_port {
        return error(
            "ports",
            format!("no TCP port can be taken: {why}"),
            "end programs that hold ports, or allow sockets",
        );
    }
    match network.free_ports {
        None => unknown("ports", "the range of free ports cannot be read in /proc/sys"),
        Some((first, last)) if last.saturating_sub(first) < FEW_PORTS => warning(
            "ports",
            format!("the kernel gives out {first} to {last} only: jobs and connections run out of ports"),
            "sysctl -w net.ipv4.ip_local_port_range='32768 60999'",
        ),
        Some((first, last)) => ok("ports", format!("the kernel gives out {first} to {last}")),
    }
}

fn master(facts: &MasterFacts, network: &NetworkFacts, has_several_nodes: bool) -> Finding {
    let MasterFacts { from, host, port, .. } = facts;
    let at = port.map_or(host.name.clone(), |port| crate::model::Endpoint::new(&*host.name, port).to_string());
    let check = "master";
    let by_address = "give an address that all nodes reach";
    if let Err(why) = &facts.route {
        return error(check, format!("{from} {at}: this machine has no route there ({why})"), by_address);
    }
    if let Some(busy) = &facts.busy {
        let text = format!("{from} {at}: {busy}: right for a job that runs, and in the way of a new one");
        return warning(check, text, "choose another port for the next job, the same on each node");
    }
    let is_own_name = is_same_host(&host.name, &network.host.name);
    match &host.addresses {
        None => warning(check, format!("{from} {at}: no name server answers"), by_address),
        Some(all) if all.is_empty() => warning(
            check,
            format!(
                "{from} {at}: the name has no address; nodes wait until it has one, which is normal for a pod that \
                 has not started"
            ),
            by_address,
        ),
        // The finding about the host's name says what to do.
        Some(all) if host.is_loopback() && has_several_nodes && !is_own_name => warning(
            check,
            format!("{from} {at} is loopback ({}): each node finds itself there", listed(all)),
            by_address,
        ),
        Some(all) => ok(check, format!("{from} {at}: {}", listed(all))),
    }
}

#[cfg(test)]
mod tests {
    use super::super::sound::{levels, name, sound};
    use super::*;
    use crate::cli::doctor::finding::Level;

    fn at(host: &str, addresses: &[&str]) -> MasterFacts {
        MasterFacts { from: "--master", host: name(host, addresses), port: Some(6768), route: Ok(()), busy: None }
    }

    #[test]
    fn a_host_name_that_is_loopback_matters_on_several_nodes() {
        let mut facts = sound();
        facts.network.host = name("node1", &["127.0.1.1"]);
        assert_eq!(check(&facts)[0].level, Level::Ok);
        facts.vars.insert("SLURM_JOB_NUM_NODES".into(), "2".into());
        let found = &check(&facts)[0];
        assert_eq!(found.level, Level::Warning);
        assert!(found.hint.as_ref().is_some_and(|hint| hint.contains("--master 10.0.0.1:6768")), "{found:?}");
        facts.vars.clear();
        facts.network.masters = vec![at("node1.example", &["127.0.1.1"])];
        assert_eq!(check(&facts)[0].level, Level::Warning);
        facts.network.host = name("node1", &[]);
        assert!(check(&facts)[0].text.contains("no address"));
        facts.network.host.addresses = None;
        assert_eq!(check(&facts)[0].level, Level::Warning);
    }

    #[test]
    fn faults_of_masters_are_found() {
        let facts = sound();
        let of = |master: MasterFacts, several: bool| {
            let found = super::master(&master, &facts.network, several);
            (found.level, found.text)
        };
        assert_eq!(of(at("10.0.0.7", &["10.0.0.7"]), true), (Level::Ok, "--master 10.0.0.7:6768: 10.0.0.7".into()));
        assert_eq!(of(at("localhost", &["127.0.0.1"]), false).0, Level::Ok);
        for (master, level, part) in [
            (at("localhost", &["127.0.0.1"]), Level::Warning, "loopback"),
            (at("pod-0", &[]), Level::Warning, "has no address"),
            (MasterFacts { route: Err("unreachable".into()), ..at("x", &["10.9.9.9"]) }, Level::Error, "no route"),
            (
                MasterFacts { busy: Some("port 6768 is in use".into()), ..at("x", &["10.0.0.1"]) },
                Level::Warning,
                "in use",
            ),
            (
                MasterFacts { host: NameFacts { name: "x".into(), addresses: None }, ..at("x", &[]) },
                Level::Warning,
                "answers",
            ),
        ] {
            let found = of(master, true);
            assert!(found.0 == level && found.1.contains(part), "{found:?}");
        }
    }

    #[test]
    fn variables_of_interfaces_are_read_as_nccl_and_gloo_read_them() {
        let network = sound().network;
        let of = |variable, value: &str| interface_variable(variable, value, &network).map(|found| found.level);
        for (variable, value, level) in [
            ("NCCL_SOCKET_IFNAME", "eth", Some(Level::Ok)),
            ("NCCL_SOCKET_IFNAME", "=eth", Some(Level::Error)),
            ("NCCL_SOCKET_IFNAME", "=eth0", Some(Level::Ok)),
            ("NCCL_SOCKET_IFNAME", "^docker,lo", Some(Level::Ok)),
            ("NCCL_SOCKET_IFNAME", "^eth,lo", Some(Level::Error)),
            ("NCCL_SOCKET_IFNAME", "ib", Some(Level::Error)),
            ("GLOO_SOCKET_IFNAME", "eth", Some(Level::Error)),
            ("GLOO_SOCKET_IFNAME", "eth1,eth0", Some(Level::Ok)),
            ("GLOO_SOCKET_IFNAME", "", None),
        ] {
            assert_eq!(of(variable, value), level, "{variable}={value}");
        }
    }

    #[test]
    fn few_ports_and_a_missing_localhost_are_found() {
        let mut facts = sound();
        facts.network.localhost = name("localhost", &[]);
        facts.network.interfaces = Some(vec!["lo".into()]);
        facts.network.addresses.clear();
        facts.network.free_ports = Some((60_000, 60_100));
        assert_eq!(levels(&check(&facts)), "host name ok, localhost warning, interfaces ok, ports warning");
        facts.network.any_port = Err("Operation not permitted".into());
        facts.network.interfaces = Some(Vec::new());
        assert_eq!(interfaces(&facts.network).level, Level::Error);
        facts.network.interfaces = None;
        assert_eq!(interfaces(&facts.network).level, Level::Unknown);
        assert_eq!(ports(&facts.network).level, Level::Error);
    }
}
