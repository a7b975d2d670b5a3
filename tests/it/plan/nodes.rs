//! Several fixed nodes: which node this one is, rank placement, and refused lists. Tables are snapshots.

use proptest::prelude::*;
use rlaunch::plan::LaunchContext;
use rlaunch::plan::cluster::{self, Cluster, LocalAddresses};
use rlaunch::plan::collective::plan;
use rlaunch::plan::devices::assign;
use rlaunch::plan::devices::machine::{GpuDevice, MachineDevices};
use rlaunch::spec::options::EnvVars;
use rlaunch::spec::paddle::launch;
use rlaunch::spec::paddle::nodes::JobNodes;
use rlaunch::spec::paddle::options::merge;
use rlaunch::spec::{LaunchSpec, SpecError, shown};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

type Pairs<'a> = &'a [(&'a str, &'a str)];

fn vars(pairs: Pairs<'_>) -> EnvVars {
    pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

fn spec(options: &[(&'static str, &str)], variables: Pairs<'_>) -> Result<LaunchSpec, SpecError> {
    let flags: BTreeMap<_, _> = options.iter().map(|(name, value)| (*name, (*value).to_owned())).collect();
    let vars = vars(variables);
    launch::check(&merge(&flags, &vars), &vars, &["train.py".into()])
}

/// The cluster of a request, on a machine with these addresses.
fn cluster(spec: &LaunchSpec, ranks: usize, own: &[&str]) -> Result<Cluster, SpecError> {
    let JobNodes::Fixed(list) = &spec.nodes else { return Ok(Cluster::single_node("127.0.0.1", vec![1; ranks], None)) };
    let own: Vec<IpAddr> = own.iter().map(|ip| ip.parse().unwrap()).collect();
    let of = |name: &str| if name == "node-b" { vec!["10.0.0.2".parse().unwrap()] } else { Vec::new() };
    let interface = |ip: IpAddr| own.contains(&ip).then(|| "eth0".to_owned());
    cluster::from_node_list(list, ranks, &LocalAddresses { own: &|| own.clone(), resolve: &of, interface: &interface })
}

/// The variables of each rank of a node, a line each, or the error.
fn rank_table(options: &[(&'static str, &str)], variables: Pairs<'_>, own: &[&str]) -> String {
    let gpus = vec![GpuDevice::default(); 4];
    let machine = MachineDevices { gpus, ..MachineDevices::default() };
    let ask = || &machine;
    let answer = || -> Result<String, SpecError> {
        let (spec, vars) = (spec(options, variables)?, vars(variables));
        let visible = assign::visible(&vars, &ask)?;
        let (shares, _) = assign::share(&spec, &visible, &ask)?;
        let cluster = cluster(&spec, shares.len(), own)?;
        let facts = LaunchContext {
            python: "python".into(),
            log_dir: "/log".into(),
            pod_name: "abcdef".into(),
            gloo_tmpdir: String::new(),
        };
        let plan = plan(&spec, &vars, &facts, &shares, &cluster)?;
        let line = |rank: &rlaunch::plan::RankPlan| {
            let ours = |name: &str| !name.starts_with("RLAUNCH_") && !["PADDLE_LOG_DIR", "POD_NAME"].contains(&name);
            let set = rank.env.vars().iter().filter(|(name, _)| ours(name)).map(|(n, v)| format!(" {n}={v}"));
            format!("{}{}\n", rank.log(), set.collect::<String>())
        };
        Ok(plan.ranks.iter().map(line).collect())
    };
    answer().unwrap_or_else(|error| format!("error: {error}\n"))
}

#[test]
fn two_nodes_with_four_gpus_each() {
    let ips: &[(&'static str, &str)] = &[("ips", "10.0.0.1,10.0.0.2")];
    let table = [["10.0.0.1", "127.0.0.1"], ["10.0.0.2", "127.0.0.1"]].map(|own| rank_table(ips, &[], &own));
    insta::assert_snapshot!(table.join("\n"));
}

#[test]
fn every_way_to_name_the_nodes() {
    let none: &[(&'static str, &str)] = &[];
    let list = "10.0.0.1:70,10.0.0.1:71,10.0.0.2:80,10.0.0.2:81";
    let cloud: Pairs<'_> = &[
        ("PADDLE_TRAINERS", "10.0.0.1,10.0.0.2"),
        ("POD_IP", "10.0.0.2"),
        ("PADDLE_TRAINER_ID", "1"),
        ("TRAINER_PORTS_NUM", "8"),
    ];
    let two: (&'static str, &str) = ("nproc_per_node", "2");
    let by = |options: &[(&'static str, &str)], variables: Pairs<'_>| {
        let ranks = rank_table(options, variables, &["10.0.0.2", "fd00::2"]);
        let line = ranks.lines().last().unwrap();
        let words = line.split(' ').filter(|w| {
            ["PADDLE_TRAINER_ENDPOINTS", "PADDLE_GLOBAL_RANK", "PADDLE_MASTER", "GLOO", "error"]
                .iter()
                .any(|n| w.starts_with(n))
        });
        let words = words.collect::<Vec<_>>().join(" ");
        let text = if line.starts_with("error") { line.to_owned() } else { words };
        format!("{options:?} {variables:?}\n  {text}\n")
    };
    let table: String = [
        by(&[("ips", "10.0.0.1,10.0.0.2"), two, ("start_port", "7000")], &[]),
        by(&[("ips", "10.0.0.1,node-b"), two], &[]),
        by(&[("ips", "10.0.0.1,node-c"), two], &[]),
        by(&[("ips", "[fd00::1],fd00::2"), two], &[]),
        by(&[("ips", "10.0.0.1,10.0.0.3"), two, ("host", "10.0.0.3")], &[]),
        by(&[("ips", "10.0.0.1,10.0.0.3"), two], &[("POD_IP", "10.0.0.1")]),
        by(&[two], &[("PADDLE_TRAINER_ENDPOINTS", list)]),
        by(none, &[("PADDLE_TRAINER_ENDPOINTS", list)]),
        by(&[("nproc_per_node", "1")], &[("PADDLE_TRAINER_ENDPOINTS", list)]),
        by(&[two], &[("PADDLE_TRAINER_ENDPOINTS", list), ("DISTRIBUTED_TRAINER_ENDPOINTS", "")]),
        by(&[("ips", "fd00::1,fd00::2"), two, ("host", "fd00:0::2")], &[]),
        by(&[("ips", "fd00::1,fd00:0::1"), two], &[]),
        by(&[two], &[("DISTRIBUTED_TRAINER_ENDPOINTS", "10.0.0.1:70,10.0.0.2:80"), ("PADDLE_TRAINER_ENDPOINTS", "x")]),
        by(&[two], &[("PADDLE_TRAINER_ENDPOINTS", "10.0.0.1,10.0.0.2")]),
        by(&[two], cloud),
        by(&[two], &[cloud, &[("PADDLE_PORT", "9000")]].concat()),
        by(&[("ips", "10.0.0.2,10.0.0.9"), two], &[("PADDLE_TRAINER_ENDPOINTS", list)]),
        by(
            &[("ips", "10.0.0.2,10.0.0.9"), two],
            &[("PADDLE_TRAINER_ENDPOINTS", list), ("PADDLE_LAUNCH_WITH_ARGS", "1")],
        ),
    ]
    .concat();
    insta::assert_snapshot!(table);
}

/// Text that looks like a list of hosts or endpoints, more or less.
fn listlike() -> impl Strategy<Value = String> {
    prop_oneof!["\\PC{0,40}", "[0-9a-f.:,\\[\\] -]{1,60}", "(10\\.0\\.0\\.[1-3](:[0-9]{1,6})?,?){1,6}"]
}

fn names_the_value(error: &SpecError, text: &str) -> bool {
    error.to_string().contains(&shown(text))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn no_list_of_nodes_panics_and_every_error_names_it(text in listlike(), ranks in 1usize..9, which in 0usize..4) {
        let variables = ["PADDLE_IPS", "PADDLE_TRAINER_ENDPOINTS", "DISTRIBUTED_TRAINER_ENDPOINTS", "PADDLE_TRAINERS"];
        let cloud = [("POD_IP", "10.0.0.1"), ("PADDLE_TRAINER_ID", "0"), ("TRAINER_PORTS_NUM", "1")];
        let mut pairs = vec![(variables[which], text.as_str())];
        pairs.extend(cloud.iter().filter(|_| which == 3));
        match spec(&[], &pairs).and_then(|spec| cluster(&spec, ranks, &["10.0.0.1"])) {
            Err(error) => prop_assert!(names_the_value(&error, &text), "{error}"),
            Ok(cluster) => {
                // Ranks are a bijection onto 0..world_size, whichever node looks.
                let world = cluster.endpoints.len();
                let all = (0..cluster.nodes.len()).flat_map(|own| {
                    let seen = Cluster::new(cluster.nodes.to_vec(), own);
                    seen.first_rank..seen.first_rank + seen.own_ports().len()
                });
                prop_assert!(all.eq(0..world));
                let distinct: BTreeSet<String> = cluster.endpoints.iter().map(ToString::to_string).collect();
                prop_assert!(cluster.nodes.len() == 1 || distinct.len() == world);
                prop_assert_eq!(cluster.list.split(',').count(), world);
            }
        }
    }

    #[test]
    fn no_port_panics_and_every_error_names_it(text in "\\PC{0,12}|-?[0-9]{1,7}|[0-9]{1,6}:[0-9]{1,6}", which in 0usize..4) {
        let names = ["PADDLE_START_PORT", "FLAGS_FIXED_PORT", "PORT_RANGE", "PADDLE_PORT"];
        let mut pairs = vec![(names[which], text.as_str())];
        match which {
            0 => pairs.push(("PADDLE_IPS", "10.0.0.1,10.0.0.2")),
            3 => pairs.extend([
                ("PADDLE_TRAINERS", "10.0.0.1,10.0.0.2"),
                ("POD_IP", "10.0.0.1"),
                ("PADDLE_TRAINER_ID", "0"),
                ("TRAINER_PORTS_NUM", "1"),
            ]),
            _ => {}
        }
        if let Err(error) = spec(&[], &pairs).and_then(|spec| cluster(&spec, 2, &["10.0.0.1"])) {
            prop_assert!(names_the_value(&error, &text), "{error}");
        }
    }
}
