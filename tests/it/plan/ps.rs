//! Parameter-server and RPC jobs: the processes and the variables of each, as Paddle's launchers set them.

use proptest::prelude::*;
use rlaunch::framework::Binding;
use rlaunch::model::{EnvDelta, Role};
use rlaunch::plan::cluster::{Cluster, LocalAddresses, from_node_list};
use rlaunch::plan::devices::assign::DeviceShare;
use rlaunch::plan::ps::{self, WorkerDevices};
use rlaunch::plan::{LaunchContext, Plan, collective};
use rlaunch::spec::SpecError;
use rlaunch::spec::options::EnvVars;
use rlaunch::spec::paddle::job::JobKind;
use rlaunch::spec::paddle::launch::{LaunchSpec, check};
use rlaunch::spec::paddle::nodes::JobNodes;
use rlaunch::spec::paddle::options::{OPTIONS, merge};
use rlaunch::spec::paddle::ps::PsSpec;
use std::collections::BTreeMap;

/// Options as `--name value`, variables as `NAME=value`, in one text.
pub(super) fn ask(words: &str) -> (Result<LaunchSpec, SpecError>, EnvVars) {
    let (mut flags, mut vars) = (BTreeMap::new(), EnvVars::new());
    let mut words = words.split_whitespace();
    while let Some(word) = words.next() {
        match (word.strip_prefix("--"), word.split_once('=')) {
            (Some(name), _) => {
                let opt = OPTIONS.iter().find(|opt| opt.name == name).unwrap();
                flags.insert(opt.name, words.next().unwrap().to_owned());
            }
            (None, Some((name, value))) => drop(vars.insert(name.into(), value.into())),
            _ => panic!("{word}"),
        }
    }
    (check(&merge(&flags, &vars), &vars, &["train.py".into()]), vars)
}

pub(super) fn facts() -> LaunchContext {
    LaunchContext {
        python: "python".into(),
        log_dir: "/log".into(),
        pod_name: "podpod".into(),
        gloo_tmpdir: "/tmp/rlaunch-key".into(),
    }
}

/// This machine's only address.
const OWN: &str = "10.0.0.9";

fn addresses<T>(with: impl FnOnce(&LocalAddresses<'_>) -> T) -> T {
    with(&LocalAddresses { own: &|| vec![OWN.parse().unwrap()], resolve: &|_| Vec::new(), interface: &|_| None })
}

/// The plan for a request; free ports are 50000 and so on.
fn planned(words: &str) -> Result<Plan, SpecError> {
    let (spec, vars) = ask(words);
    let spec = spec?;
    match &spec.job {
        JobKind::Ps(PsSpec::Processes(laid)) => {
            let own = addresses(|addresses| ps::find_own_address(laid, addresses))?;
            let free: Vec<u16> = (50_000..50_100).collect();
            let layout = ps::layout(laid, &own, &free).unwrap();
            let names = spec.devices.clone().unwrap_or_default();
            ps::plan(&spec, laid, &vars, &facts(), &WorkerDevices { kind: "gpu".into(), names }, &layout)
        }
        JobKind::Ps(PsSpec::Platform { role, number }) => ps::platform_process(&spec, *role, *number, &vars, &facts()),
        JobKind::Collective | JobKind::Legacy(_) | JobKind::Rpc => {
            let share = DeviceShare { binding: Binding::Cpu, lists: EnvDelta::new() };
            let shares = vec![share; spec.nproc_per_node.unwrap_or(1)];
            let cluster = match &spec.nodes {
                JobNodes::Fixed(list) => addresses(|addresses| from_node_list(list, shares.len(), addresses))?
                    .with_separate_master(&list.from)?,
                JobNodes::One { host, .. } => {
                    Cluster::single_node(host, (0..shares.len()).map(|i| 50_001 + i as u16).collect(), Some(50_000))
                }
            };
            collective::plan(&spec, &vars, &facts(), &shares, &cluster)
        }
    }
}

/// The variables that all processes share, then those of each process.
fn table(words: &str) -> String {
    table_of(&planned(words).unwrap())
}

pub(super) fn table_of(plan: &Plan) -> String {
    let of_framework = |name: &str| !name.starts_with("RLAUNCH_");
    let alike = |name: &str, value: &str| plan.ranks.iter().all(|r| r.env.get(name) == Some(value));
    let mut text = format!("{} on {} node(s), {} worker(s)\n", plan.mode, plan.nnodes, plan.world_size);
    let lines = |r: &rlaunch::plan::RankPlan, shared: bool| -> String {
        let mut lines: Vec<String> = r
            .env
            .vars()
            .iter()
            .filter(|(name, value)| of_framework(name) && alike(name, value) == shared)
            .map(|(name, value)| format!("  {name}={value}\n"))
            .collect();
        lines.sort();
        lines.concat()
    };
    text.push_str(&lines(&plan.ranks[0], true));
    for rank in &plan.ranks {
        let at = rank.endpoint.as_ref().map_or(String::new(), |at| format!(" at {at}"));
        text.push_str(&format!("{}{at}, {}\n{}", rank.label(), rank.log(), lines(rank, false)));
    }
    text
}

fn refused(words: &str) -> String {
    planned(words).expect_err(words).to_string()
}

#[test]
fn by_counts() {
    insta::assert_snapshot!(table("--server_num 2 --trainer_num 2"));
}

#[test]
fn one_server_and_one_worker_by_default() {
    let plan = planned("--run_mode ps").unwrap();
    assert_eq!(plan.ranks.iter().map(|r| r.label().to_string()).collect::<Vec<_>>(), ["server 0", "rank 0"]);
    assert_eq!(planned("--trainer_num 3").unwrap().ranks.len(), 4);
    assert_eq!(
        planned("--server_num 0 --trainer_num 0 --servers= --run_mode PS".replace("--servers= ", "").as_str())
            .unwrap()
            .ranks
            .len(),
        2
    );
}

#[test]
fn fixed_ports_do_not_collide() {
    insta::assert_snapshot!(table("--server_num 2 --trainer_num 2 FLAGS_FIXED_PORT=7000"));
}

const TWO_NODES: &str = "--servers 10.0.0.9:7000,10.0.0.10:7000 --trainers 10.0.0.10:7001,10.0.0.9:7001,10.0.0.10:7002";

#[test]
fn by_endpoints_seen_from_the_first_node() {
    insta::assert_snapshot!(table(TWO_NODES));
}

#[test]
fn by_endpoints_seen_from_the_second_node() {
    insta::assert_snapshot!(table(&format!("{TWO_NODES} --host 10.0.0.10")));
}

#[test]
fn by_legacy_options() {
    insta::assert_snapshot!(table("--server_num 2 --worker_num 2"));
}

#[test]
fn workers_without_ports_on_two_nodes() {
    insta::assert_snapshot!(table("--servers 10.0.0.9:7000 --workers 10.0.0.9,10.0.0.10 --with_gloo 2"));
}

#[test]
fn a_coordinator_and_ports_from_a_first_one() {
    insta::assert_snapshot!(table("--server_num 2 --worker_num 1 --coordinator_num 1 FLAGS_START_PORT=7000"));
}

#[test]
fn three_stages() {
    insta::assert_snapshot!(table("--server_num 1 --worker_num 1 --heter_devices gpu;cpu --heter_worker_num 1;2"));
}

#[test]
fn three_stages_on_two_nodes_with_devices() {
    let words = "--run_mode ps-heter --servers 10.0.0.10:7000 --workers 10.0.0.10:7001,10.0.0.9:7001 \
                 --heter_devices gpu;gpu --heter_workers 10.0.0.9;10.0.0.9,10.0.0.10 --devices 4,GPU-5c1f \
                 FLAGS_START_PORT=7100";
    insta::assert_snapshot!(table(words));
}

const CLOUD: &str = "PADDLE_TRAINERS=10.0.0.9,10.0.0.10 POD_IP=10.0.0.9 PADDLE_TRAINER_ID=0 TRAINER_PORTS_NUM=2";

#[test]
fn on_the_platform_a_process_runs_once_in_its_given_role() {
    let words = format!(
        "{CLOUD} --worker_num 2 TRAINING_ROLE=PSERVER PADDLE_PORT=7001 \
                         PADDLE_PSERVERS_IP_PORT_LIST=10.0.0.9:7000,10.0.0.9:7001 PADDLE_NNODES=2"
    );
    let plan = planned(&words).unwrap();
    let [one] = &plan.ranks[..] else { panic!("{plan:?}") };
    assert_eq!((one.role, one.rank, one.log().as_str()), (Role::Server, 1, "serverlog.0"));
    // Nothing of the job.
    let set: Vec<&str> = one.env.vars().iter().map(|(name, _)| &**name).collect();
    assert_eq!(set, ["OMP_NUM_THREADS", "PYTHONFAULTHANDLER", "RLAUNCH_OUTER_LOGS", "RLAUNCH_EXPORTED"]);
    let plan = planned(&format!("{CLOUD} --worker_num 2 --legacy true")).unwrap();
    assert_eq!(plan.ranks[0].label().to_string(), "rank 0");
}

#[test]
fn jobs_on_listed_nodes_or_on_the_platform_may_have_other_launchers() {
    let may = |words: &str| planned(words).unwrap().may_have_other_launchers();
    assert!(!may("--server_num 1 --trainer_num 1"));
    assert!(may(TWO_NODES));
    assert!(may(&format!("{CLOUD} --worker_num 2")));
}

#[test]
fn on_the_platform_with_later_stages() {
    let words = format!(
        "{CLOUD} --heter_devices gpu PSERVER_IP_PORT_LIST=10.0.0.9:7000,10.0.0.10:7000 \
                         TRAINER_IP_PORT_LIST=10.0.0.9:7002,10.0.0.10:7002 TRAINER_PORTS=7002,7003 --http_port 7009"
    );
    insta::assert_snapshot!(table(&words));
    assert!(refused(&words.replace("LIST=10.0.0.9:7000", "LIST=10.0.0.9:65535")).contains("no port below 65536 left"));
    assert!(refused(&words.replace("7002,7003", "7002")).contains("TRAINER_PORTS 7002: has fewer than two ports"));
}

fn endpoints(words: &str) -> Vec<String> {
    let plan = planned(words).expect(words);
    plan.ranks.iter().map(|rank| rank.endpoint.as_ref().unwrap().to_string()).collect()
}

#[test]
fn ipv6_addresses_of_this_node_may_have_brackets() {
    assert_eq!(endpoints("--server_num 1 --trainer_num 1 --host [::1]"), ["[::1]:50000", "[::1]:50001"]);
    let lists = "--servers [fd00::1]:7000,[fd00::2]:7000 --trainers [fd00::1]:7001";
    for own in ["--host [fd00::1]", "--host fd00::1", "POD_IP=[fd00::1]"] {
        assert_eq!(endpoints(&format!("{lists} {own}")), ["[fd00::1]:7000", "[fd00::1]:7001"], "{own}");
    }
    let older = "--servers [fd00::1]:7000,[fd00::2]:7000 --workers [fd00::1]:7001 --host [fd00::1]";
    assert_eq!(endpoints(older), ["[fd00::1]:7000", "[fd00::1]:7001"]);
    let trainers = CLOUD.replace("10.0.0.9 ", "[fd00::1] ");
    let words = format!("{trainers} --worker_num 2 TRAINING_ROLE=PSERVER PADDLE_PORT=7001");
    let plan = planned(&format!("{words} PADDLE_PSERVERS_IP_PORT_LIST=[fd00::1]:7000,[fd00::1]:7001")).unwrap();
    assert_eq!(plan.ranks[0].label().to_string(), "server 1");
}

#[test]
fn localhost_is_the_one_loopback_address_beside_it() {
    let lists = "--servers localhost:7000 --trainers 127.0.0.1:7001";
    for host in ["", "--host localhost", "--host 127.0.0.1"] {
        assert_eq!(endpoints(&format!("{lists} {host}")), ["127.0.0.1:7000", "127.0.0.1:7001"], "{host}");
    }
    let plan = planned(lists).unwrap();
    assert_eq!(plan.nnodes, 1);
    assert_eq!(plan.ranks[0].env.get("PADDLE_GLOO_HTTP_ENDPOINT"), Some("127.0.0.1:6767"));
    assert_eq!(endpoints("--server_num 1 --workers localhost:7001"), ["127.0.0.1:50000", "127.0.0.1:7001"]);
    assert_eq!(endpoints("--servers [::1]:7000 --workers localhost:7001"), ["[::1]:7000", "[::1]:7001"]);
    // Addresses of loopback are nodes apart.
    let apart = "--servers 127.0.0.1:7000 --trainers 127.0.0.2:7001 --host 127.0.0.2";
    assert_eq!(endpoints(apart), ["127.0.0.2:7001"]);
    // Else it would be left out by each launcher that has another name of its node.
    for words in [
        "--servers localhost:7000 --trainers 127.0.0.1:7001,127.0.0.2:7001 --host localhost",
        "--servers localhost:7000 --trainers 10.0.0.9:7001 --host 10.0.0.9",
        "--servers 127.0.0.1:7000 --trainers 10.0.0.9:7001",
    ] {
        assert!(refused(words).contains("; write this node's address the same way everywhere"), "{words}");
    }
    assert!(refused("--servers localhost:7000 --trainers 127.0.0.1:7000").contains("is the address of two processes"));
}

#[test]
fn too_many_workers_of_later_stages_are_refused_before_they_are_laid_out() {
    let counts = ["65535"; 60].join(";");
    let words = format!("--server_num 1 --worker_num 1 --heter_devices cpu --heter_worker_num {counts}");
    let text = refused(&words);
    assert!(text.starts_with("--heter_worker_num 65535;65535"), "{text}");
    assert!(text.contains(": is more workers than there are ports; give at most 65535 in all"), "{text}");
}

#[test]
fn options_without_effect_warn_but_variables_do_not() {
    let idle = |words: &str| -> Vec<String> {
        let said = ask(words).0.expect(words).warnings;
        said.iter()
            .filter_map(|line| line.strip_suffix(" has no effect on parameter servers"))
            .map(str::to_owned)
            .collect()
    };
    let all = "--start_port 7000 --rank 0 --sort_ip true --gloo_port 7009";
    assert_eq!(idle(&format!("--server_num 1 {all}")), ["--start_port", "--rank", "--sort_ip", "--gloo_port"]);
    for used in ["--servers 10.0.0.9:1 --trainers 10.0.0.9:2", "--server_num 1 --worker_num 1"] {
        assert_eq!(idle(&format!("{used} {all}")), ["--start_port", "--rank", "--sort_ip"]);
    }
    let of_nodes = format!("--server_num 1 --nnodes 2 --elastic_level 1 {all}");
    assert_eq!(idle(&of_nodes), ["--start_port", "--gloo_port", "--elastic_level"], "they have an order");
    let variables = "PADDLE_START_PORT=7000 PADDLE_RANK=0 PADDLE_SORT_IP=1 PADDLE_GLOO_PORT=7009";
    assert_eq!(idle(&format!("--server_num 1 {variables}")), [""; 0]);
}

#[test]
fn an_unused_address_is_not_reported_as_used() {
    for (words, said) in [
        ("--server_num 1 --trainer_num 1 --host 10.0.0.5", true),
        ("--servers 10.0.0.5:1 --workers 10.0.0.5:2 --host 10.0.0.5", true),
        ("--server_num 1 --worker_num 1 --host 10.0.0.5", false),
        ("--servers 127.0.0.1:1 --trainers 127.0.0.1:2 POD_IP=10.0.0.5", false),
    ] {
        let warnings = ask(words).0.expect(words).warnings;
        assert_eq!(warnings.contains(&"Host ip reset to 10.0.0.5".to_owned()), said, "{words}: {warnings:?}");
    }
}

#[test]
fn rpc_on_one_node() {
    insta::assert_snapshot!(table("--run_mode rpc --nproc_per_node 2"));
}

#[test]
fn rpc_on_the_second_of_two_nodes() {
    insta::assert_snapshot!(table("--run_mode rpc --nproc_per_node 2 --ips 10.0.0.10,10.0.0.9 --start_port 7000"));
}

#[test]
fn impossible_layouts_are_refused() {
    for (words, said) in [
        (
            "--run_mode ps --worker_num 1",
            "--server_num, --servers: The setting of Parameter-Server must has server_num or servers",
        ),
        ("--servers a:1 --legacy 1", "must has worker_num or workers"),
        (
            "--server_num 2 --servers a:1,b:1,c:1 --worker_num 1",
            "The server_num and servers doesn't match. Expect servers endpoints num equal to server_num, but received servers endpoint num: 3 and server_num 2",
        ),
        ("--server_num 1 --worker_num 2 --workers a:1", "The worker_num and workers doesn't match."),
        ("--servers a:1", "--servers a:1: has no effect without --trainers; give --trainers"),
        ("PADDLE_TRAINERS_ENDPOINTS=a:1", "PADDLE_TRAINERS_ENDPOINTS a:1: has no effect without --servers"),
        ("--servers a:1 --trainers b", "--trainers b: b has no port"),
        ("--servers a:1 --trainers b:2,", "--trainers b:2,: '' is not an endpoint"),
        ("--servers a:0 --trainers b:2", "--servers a:0: 'a:0' is not an endpoint"),
        ("--servers a:1,b --trainers b:2", "--servers a:1,b: has endpoints with and without ports"),
        ("--servers ::1 --trainers b:2", "'::1' is not an endpoint"),
        ("--servers a:1 --trainers a:1", "the endpoint a:1: is the address of two processes"),
        ("--servers a:6767 --trainers a:1", "the endpoint a:6767: is the address of two processes"),
        ("--server_num -1", "--server_num -1: is not a number of processes"),
        ("--server_num 70000", "--server_num 70000: is not a number of processes"),
        ("--server_num 9 FLAGS_FIXED_PORT=65530", "FLAGS_FIXED_PORT 65530: leaves no room"),
        (
            "--server_num 1 --worker_num 1 --heter_devices gpu --heter_workers 127.0.0.1,127.0.0.1 FLAGS_START_PORT=65533",
            "FLAGS_START_PORT 65533: leaves no room for 4 ports",
        ),
        ("--server_num 1 --worker_num 1 FLAGS_START_PORT=http", "FLAGS_START_PORT http: is not a port"),
        ("--server_num 1 --gloo_port 0", "--gloo_port 0: is not a port"),
        ("--server_num 1 --worker_num 1 --http_port 70000", "--http_port 70000: is not a port"),
        (
            "--server_num 1 --nnodes 1:2",
            "--nnodes 1:2: a job with parameter servers has a fixed number of nodes; give 2",
        ),
        ("--server_num 1 --nnodes 0", "--nnodes 0: is not a number of nodes"),
        ("--worker_num 1 --server_num 1 --nnodes 2", "--nnodes 2: the list of endpoints has 1 nodes"),
        ("--server_num 1 --nnodes 2 --rank 2", "--rank 2: is not the number of a node: there are 2 nodes"),
        ("--nnodes 3 --servers a:1 --trainers b:2", "--nnodes 3: the list of endpoints has 2 nodes"),
        ("--server_num 1 --ips 10.0.0.1", "--ips 10.0.0.1: has no effect on parameter servers"),
        (
            "--run_mode collective --server_num 1",
            "--server_num 1: is only for parameter servers, and --run_mode is collective",
        ),
        ("--run_mode rpc --workers a:1", "--workers a:1: is only for parameter servers, and --run_mode is rpc"),
        ("--run_mode ps --heter_devices gpu", "--heter_devices gpu: is only for --run_mode ps-heter"),
        (
            "--server_num 1 --trainer_num 1 --http_port 7000",
            "--trainer_num 1: cannot be combined with options of the legacy launcher",
        ),
        ("--run_mode ps-heter --server_num 1 --worker_num 1", "heter mode must has heter_devices"),
        ("--server_num 1 --worker_num 1 --heter_devices gpu", "heter mode must has heter_worker_num or heter_workers"),
        (
            "--server_num 1 --worker_num 1 --heter_devices gpu --heter_worker_num 1;x",
            "--heter_worker_num 1;x: is not a list",
        ),
        (
            "--server_num 1 --worker_num 1 --heter_devices gpu; --heter_worker_num 1;1",
            "--heter_devices gpu;: has an empty item",
        ),
        (
            "--server_num 1 --worker_num 1 --heter_devices gpu --heter_worker_num 1;2",
            "--heter_devices gpu: has 1 device type(s) for 2 stage(s)",
        ),
        (
            "--server_num 1 --worker_num 1 --heter_devices gpu --heter_worker_num 1;2 --heter_workers a:1",
            "The stage_num and heter_workers doesn't match.",
        ),
        (
            "--server_num 1 --worker_num 1 --heter_devices gpu --heter_worker_num 2 --heter_workers a:1",
            "The heter trainer num in stage 0 is not equal",
        ),
        ("--server_num 1 --workers b:1", "the process on 127.0.0.1: has no port, and"),
        (
            "--servers 10.0.0.1:1 --trainers 10.0.0.2:1",
            "the nodes of --servers and --trainers 10.0.0.1,10.0.0.2: none of them is an address of this node, which has 10.0.0.9",
        ),
        ("--servers 10.0.0.9:1 --trainers 10.0.0.2:1 POD_IP=10.0.0.3", "this node's address is 10.0.0.3"),
    ] {
        let text = refused(words);
        assert!(text.contains(said), "{words}\n{text}");
    }
}

/// Words that an endpoint or a number may be, and some that it may not.
fn word() -> impl Strategy<Value = String> {
    prop_oneof![
        "[a-c0-9.:;,\\[\\]-]{0,12}",
        "10\\.0\\.0\\.[1-3]:[1-9][0-9]{3}(,10\\.0\\.0\\.[1-3]:[1-9][0-9]{3}){0,3}",
        "[0-9]{1,6}",
        "[0-9](;[0-9]){0,2}",
        ".{0,6}",
    ]
}

proptest! {
    #[test]
    fn any_request_is_laid_out_or_refused_by_name(
        options in prop::collection::vec((
            prop::sample::select(vec![
                "servers", "trainers", "server_num", "trainer_num", "workers", "worker_num", "coordinators",
                "coordinator_num", "heter_workers", "heter_worker_num", "heter_devices", "http_port", "gloo_port",
                "with_gloo", "run_mode", "host",
            ]),
            word(),
        ), 1..6),
        start in prop::option::of("[0-9]{1,6}|x"),
    ) {
        let mut flags: BTreeMap<&'static str, String> = options.iter().cloned().collect();
        flags.entry("run_mode").and_modify(|mode| *mode = if mode.len() % 2 == 0 { "ps".into() } else { "ps-heter".into() });
        let vars: EnvVars = start.iter().map(|port| ("FLAGS_START_PORT".to_owned(), port.clone())).collect();
        match check(&merge(&flags, &vars), &vars, &["train.py".into()]) {
            Err(error) => {
                let named = flags.keys().any(|name| error.field.contains(&format!("--{name}")))
                    || error.field.contains("FLAGS_START_PORT") || error.field.starts_with("the ")
                    || (error.value.is_none() && error.field.contains("--"));
                prop_assert!(named, "{error}");
                prop_assert!(error.hint.is_some(), "{error}");
                prop_assert!(error.to_string().lines().count() == 1, "{error}");
            }
            Ok(spec) => {
                let JobKind::Ps(PsSpec::Processes(laid)) = &spec.job else { return Ok(()) };
                let hosts = laid.hosts();
                let free: Vec<u16> = (1..=u16::MAX).collect();
                if laid.addresses().count() > 200 {
                    return Ok(());
                }
                // Each process is on one node, has an endpoint of its own, and its number is its place.
                let mut seen = std::collections::BTreeSet::new();
                let mut names = std::collections::BTreeSet::new();
                for host in &hosts {
                    let layout = ps::layout(laid, host, &free).unwrap();
                    let plan = ps::plan(&spec, laid, &vars, &facts(), &WorkerDevices::default(), &layout).unwrap();
                    prop_assert!(!plan.ranks.is_empty());
                    for rank in &plan.ranks {
                        prop_assert!(names.insert(rank.label()));
                        prop_assert!(seen.insert(rank.endpoint.clone().unwrap().to_string()) || hosts.len() > 1);
                    }
                }
                prop_assert_eq!(names.len(), laid.addresses().count());
            }
        }
    }
}
