//! Environment variables that contradict each other, and proxies that catch the traffic between nodes.

use crate::cli::doctor::facts::Facts;
use crate::cli::doctor::finding::{Finding, ok, warning};
use crate::spec::options::EnvVars;
use std::net::Ipv4Addr;

/// The number of nodes that schedulers and launchers set: variable names.
const NODES: [&str; 4] = ["SLURM_JOB_NUM_NODES", "SLURM_NNODES", "PADDLE_NNODES", "PET_NNODES"];
/// A number and the count that it has to be below.
const NUMBERED: [(&str, &str); 4] = [
    ("RANK", "WORLD_SIZE"),
    ("LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    ("GROUP_RANK", "GROUP_WORLD_SIZE"),
    ("PADDLE_TRAINER_ID", "PADDLE_TRAINERS_NUM"),
];
/// Values of which both are the same in one rank.
const SAME: [(&str, &str); 2] = [("RANK", "PADDLE_TRAINER_ID"), ("WORLD_SIZE", "PADDLE_TRAINERS_NUM")];
const PROXIES: [&str; 6] = ["http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"];
const CHECK: &str = "variables";

pub(super) fn check(facts: &Facts) -> Vec<Finding> {
    let vars = &facts.vars;
    let mut found: Vec<Finding> = NUMBERED.iter().filter_map(|(number, count)| numbered(number, count, vars)).collect();
    found.extend(SAME.iter().filter_map(|(one, other)| same(one, other, vars)));
    found.extend(endpoints(vars));
    found.extend(differing_nodes(vars));
    found.extend(threads(vars, facts.cpus.allowed));
    if found.is_empty() {
        let nested = if facts.is_nested { "; those of the outer job are left out" } else { "" };
        found.push(ok(CHECK, format!("none contradicts another{nested}")));
    }
    found.push(proxies(facts));
    found
}

/// The largest number of nodes that a variable gives, such as 8 of `2:8`.
pub(super) fn nodes(vars: &EnvVars) -> Option<u64> {
    let most = |name: &&str| vars.get(*name)?.rsplit(':').next()?.trim().parse().ok();
    NODES.iter().filter_map(most).max()
}

fn number(name: &str, vars: &EnvVars) -> Option<u64> {
    vars.get(name)?.trim().parse().ok()
}

fn unset(names: &[&str]) -> String {
    format!("unset {}: rlaunch sets them for its ranks", names.join(" "))
}

fn numbered(name: &str, count: &str, vars: &EnvVars) -> Option<Finding> {
    let text = match (vars.get(name), vars.get(count)) {
        (Some(own), Some(all)) => match (number(name, vars), number(count, vars)) {
            (Some(own), Some(all)) if own < all => return None,
            (Some(own), Some(all)) => format!("{name}={own} is not below {count}={all}"),
            _ => format!(
                "{name}={} and {count}={} are not both numbers",
                crate::spec::shown(own),
                crate::spec::shown(all)
            ),
        },
        (Some(own), None) => format!("{name}={} is set without {count}", crate::spec::shown(own)),
        (None, Some(_)) | (None, None) => return None,
    };
    let means = "left over from another launcher; a script that is started without one takes itself for that rank, and waits for the others";
    Some(warning(CHECK, format!("{text}: {means}"), unset(&[name, count])))
}

fn same(one: &str, other: &str, vars: &EnvVars) -> Option<Finding> {
    let (a, b) = (number(one, vars)?, number(other, vars)?);
    (a != b).then(|| {
        warning(
            CHECK,
            format!("{one}={a}, but {other}={b}: torch and Paddle would have different ranks in one process"),
            unset(&[one, other]),
        )
    })
}

/// Paddle's list of endpoints beside its number, and the own one.
fn endpoints(vars: &EnvVars) -> Option<Finding> {
    let list: Vec<&str> = vars.get("PADDLE_TRAINER_ENDPOINTS")?.split(',').map(str::trim).collect();
    let count = number("PADDLE_TRAINERS_NUM", vars).filter(|count| *count != list.len() as u64);
    let own = vars.get("PADDLE_CURRENT_ENDPOINT").filter(|own| !list.contains(&own.as_str()));
    let text = match (count, own) {
        (Some(count), _) => {
            format!("PADDLE_TRAINER_ENDPOINTS has {} endpoints, but PADDLE_TRAINERS_NUM={count}", list.len())
        }
        (None, Some(own)) => {
            format!("PADDLE_CURRENT_ENDPOINT={} is not in PADDLE_TRAINER_ENDPOINTS", crate::spec::shown(own))
        }
        (None, None) => return None,
    };
    let names = ["PADDLE_TRAINER_ENDPOINTS", "PADDLE_TRAINERS_NUM", "PADDLE_CURRENT_ENDPOINT"];
    Some(warning(CHECK, format!("{text}: ranks would wait for others that do not exist"), unset(&names)))
}

fn differing_nodes(vars: &EnvVars) -> Option<Finding> {
    let scheduled = NODES[..2].iter().find_map(|name| Some((*name, number(name, vars)?)))?;
    let asked = NODES[2..].iter().find_map(|name| Some((*name, number(name, vars)?)))?;
    (scheduled.1 != asked.1).then(|| {
        let text = format!(
            "{}={}, but {}={}: nodes wait for others that are not there, or run without some",
            asked.0, asked.1, scheduled.0, scheduled.1
        );
        warning(CHECK, text, format!("unset {}, or give it the number of nodes that Slurm has", asked.0))
    })
}

fn threads(vars: &EnvVars, cpus: Option<usize>) -> Option<Finding> {
    let threads = number("OMP_NUM_THREADS", vars)?;
    let cpus = cpus.filter(|cpus| threads > *cpus as u64)?;
    let text = format!("OMP_NUM_THREADS={threads}, and this process may use {cpus} CPUs: threads wait for each other");
    Some(warning(CHECK, text, "unset OMP_NUM_THREADS: rlaunch divides the CPUs among the ranks"))
}

/// Whether `no_proxy` leaves out a host: a name or its domain, an address, a network such as 10.0.0.0/8, or `*`.
fn is_left_out(host: &str, no_proxy: &str) -> bool {
    let host = host.to_ascii_lowercase();
    let covers = |entry: &str| {
        let entry = entry.trim().to_ascii_lowercase();
        let domain = entry.trim_start_matches("*.").trim_start_matches('.');
        entry == "*"
            || !domain.is_empty()
                && (host == domain || host.strip_suffix(domain).is_some_and(|head| head.ends_with('.')))
            || is_in_network(&host, &entry)
    };
    no_proxy.split(',').any(covers)
}

fn is_in_network(host: &str, network: &str) -> bool {
    let parse = || {
        let (base, length) = network.split_once('/')?;
        let (base, length): (Ipv4Addr, u32) = (base.parse().ok()?, length.parse().ok()?);
        let host: Ipv4Addr = host.parse().ok()?;
        let shift = 32_u32.checked_sub(length)?;
        let head = |address: Ipv4Addr| u32::from(address).checked_shr(shift).unwrap_or(0);
        Some(head(base) == head(host))
    };
    parse().unwrap_or(false)
}

fn proxies(facts: &Facts) -> Finding {
    let vars = &facts.vars;
    let set: Vec<&str> =
        PROXIES.into_iter().filter(|name| vars.get(*name).is_some_and(|value| !value.is_empty())).collect();
    if set.is_empty() {
        return ok("proxies", "none is set");
    }
    let no_proxy = ["no_proxy", "NO_PROXY"].map(|name| vars.get(name).map_or("", String::as_str)).join(",");
    let hosts = facts.network.masters.iter().map(|master| master.host.name.as_str());
    let mut caught: Vec<&str> = hosts.filter(|host| !is_left_out(host, &no_proxy)).collect();
    caught.dedup();
    if caught.is_empty() {
        let of = if facts.network.masters.is_empty() {
            "rlaunch uses none between nodes"
        } else {
            "no_proxy leaves the master out"
        };
        return ok("proxies", format!("{}: {of}", set.join(", ")));
    }
    let hosts = caught.join(",");
    warning(
        "proxies",
        format!(
            "{} would catch requests to {hosts}: rlaunch uses no proxy between nodes, but Paddle, gRPC and clients of etcd do",
            set.join(", ")
        ),
        format!("export no_proxy={hosts}{}", vars.get("no_proxy").map_or(String::new(), |old| format!(",{old}"))),
    )
}

#[cfg(test)]
mod tests {
    use super::super::sound::{levels, name, sound};
    use super::*;
    use crate::cli::doctor::facts::MasterFacts;

    fn of(vars: &[(&str, &str)]) -> Vec<Finding> {
        let mut facts = sound();
        facts.vars = vars.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        check(&facts)
    }

    #[test]
    fn contradicting_variables_are_named() {
        let sound: [&[(&str, &str)]; 4] = [
            &[("RANK", "1"), ("WORLD_SIZE", "2"), ("PADDLE_TRAINER_ID", "1"), ("PADDLE_TRAINERS_NUM", "2")],
            &[("SLURM_JOB_NUM_NODES", "2"), ("PADDLE_NNODES", "2"), ("OMP_NUM_THREADS", "4")],
            &[("PADDLE_TRAINER_ENDPOINTS", "a:1,b:2"), ("PADDLE_CURRENT_ENDPOINT", "b:2"), ("WORLD_SIZE", "2")],
            &[("SLURM_JOB_NUM_NODES", "8"), ("PET_NNODES", "2:8")],
        ];
        for vars in sound {
            assert_eq!(levels(&of(vars)), "variables ok, proxies ok", "{vars:?}");
        }
        let faults: [(&[(&str, &str)], &str); 9] = [
            (&[("RANK", "5"), ("WORLD_SIZE", "2")], "RANK=5 is not below WORLD_SIZE=2"),
            (&[("RANK", "5")], "RANK=5 is set without WORLD_SIZE"),
            (&[("LOCAL_RANK", "x"), ("LOCAL_WORLD_SIZE", "2")], "not both numbers"),
            (
                &[("RANK", "0"), ("WORLD_SIZE", "4"), ("PADDLE_TRAINERS_NUM", "2")],
                "WORLD_SIZE=4, but PADDLE_TRAINERS_NUM=2",
            ),
            (&[("PADDLE_TRAINER_ENDPOINTS", "a:1,b:2"), ("PADDLE_TRAINERS_NUM", "3")], "has 2 endpoints"),
            (&[("PADDLE_TRAINER_ENDPOINTS", "a:1"), ("PADDLE_CURRENT_ENDPOINT", "b:2")], "is not in"),
            (&[("SLURM_NNODES", "2"), ("PET_NNODES", "4")], "PET_NNODES=4, but SLURM_NNODES=2"),
            (&[("OMP_NUM_THREADS", "64")], "may use 16 CPUs"),
            (&[("PADDLE_TRAINER_ID", "2"), ("PADDLE_TRAINERS_NUM", "2")], "PADDLE_TRAINER_ID=2 is not below"),
        ];
        for (vars, part) in faults {
            let found = of(vars);
            assert!(levels(&found) == "variables warning, proxies ok" && found[0].text.contains(part), "{found:?}");
        }
    }

    #[test]
    fn a_proxy_that_catches_the_master_is_a_warning() {
        let found = |no_proxy: &str, master: Option<&str>| {
            let mut facts = sound();
            facts.vars = EnvVars::from([
                ("http_proxy".into(), "http://me:secret@proxy:1".into()),
                ("no_proxy".into(), no_proxy.into()),
            ]);
            facts.network.masters.extend(master.map(|host| MasterFacts {
                from: "--master",
                host: name(host, &[]),
                port: None,
                route: Ok(()),
                busy: None,
            }));
            proxies(&facts)
        };
        assert_eq!(levels(&[found("", None), found("10.0.0.0/8", Some("10.1.2.3"))]), "proxies ok, proxies ok");
        for covered in ["*", "node1.example", ".example", "*.example", "x, example"] {
            assert_eq!(levels(&[found(covered, Some("node1.example"))]), "proxies ok", "{covered}");
        }
        for not_covered in ["", "ample", "node1", "10.0.0.0/40", "10.0.0.0/8"] {
            let found = found(not_covered, Some("node1.example"));
            assert_eq!(levels(std::slice::from_ref(&found)), "proxies warning", "{not_covered}");
            assert!(!format!("{found:?}").contains("secret"));
            assert!(found.hint.is_some_and(|hint| hint.starts_with("export no_proxy=node1.example,")));
        }
    }

    #[test]
    fn the_largest_number_of_nodes_counts() {
        assert_eq!(nodes(&EnvVars::from([("PET_NNODES".into(), "2:8".into())])), Some(8));
        assert_eq!(nodes(&EnvVars::new()), None);
    }
}
