//! The legacy launcher's collective jobs: the place, devices and variables of each rank. Tables are snapshots.

mod captured;
mod requests;

use proptest::prelude::*;
use rlaunch::framework::paddle_legacy;
use rlaunch::framework::paddle_legacy::{LegacyIdentity, LegacyWorld, MapperRequest, RankMappingEnv};
use rlaunch::framework::{Binding, is_declared};
use rlaunch::model::Endpoint;
use rlaunch::plan::cluster::LocalAddresses;
use rlaunch::plan::devices::machine::{GpuDevice, MachineDevices};
use rlaunch::plan::legacy::{LauncherInfo, MachineQueries, plan, rank_layout, ranks, select_backend, shares};
use rlaunch::plan::rank_mapping;
use rlaunch::plan::rank_mapping::MappingFile;
use rlaunch::plan::{LaunchContext, Plan};
use rlaunch::spec::options::EnvVars;
use rlaunch::spec::paddle::job::JobKind;
use rlaunch::spec::paddle::launch;
use rlaunch::spec::paddle::options::merge;
use rlaunch::spec::{LaunchSpec, SpecError};
use std::collections::BTreeMap;

fn vars(pairs: &[(&str, &str)]) -> EnvVars {
    pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

fn spec(options: &[(&'static str, &str)], vars: &EnvVars) -> Result<LaunchSpec, SpecError> {
    let legacy = [("legacy", "true")];
    let flags: BTreeMap<_, _> =
        legacy.iter().chain(options).map(|(name, value)| (*name, (*value).to_owned())).collect();
    launch::check(&merge(&flags, vars), vars, &["train.py".into()])
}

fn nvidia(gpus: usize) -> MachineDevices {
    MachineDevices { gpus: vec![GpuDevice::default(); gpus], ..MachineDevices::default() }
}

/// The plan; all files have this text, and free ports begin at 7000.
fn planned(
    machine: &MachineDevices,
    options: &[(&'static str, &str)],
    environ: &[(&str, &str)],
    text: &str,
) -> Result<(Plan, Vec<String>), SpecError> {
    let vars = vars(environ);
    let spec = spec(options, &vars)?;
    let JobKind::Legacy(legacy) = &spec.job else { panic!("not the legacy launcher") };
    let machine = || machine;
    let ground = select_backend(&spec, legacy, &vars, &machine)?;
    let addresses = LocalAddresses { own: &Vec::new, resolve: &|_| Vec::new(), interface: &|_| None };
    let asks = MachineQueries { machine: &machine, addresses, file: &|_| Ok(text.to_owned()) };
    let (shares, mut said) = shares(&spec, legacy, &ground, &machine)?;
    let mut site = rank_layout(&spec, legacy, &ground, &shares, &asks)?;
    assert!(ranks(&spec, legacy, &ground).is_none_or(|ranks| ranks == site.own_ranks().len()));
    let ports: Vec<u16> = (7000..)
        .zip(site.own_ranks())
        .map(|(free, m)| m.endpoint.port.max(free * u16::from(m.endpoint.port == 0)))
        .collect();
    site.listen_on(&ports);
    let facts = LaunchContext {
        python: "python".into(),
        log_dir: "/log".into(),
        pod_name: "abcdef".into(),
        gloo_tmpdir: "/tmp/x".into(),
    };
    let itself = LauncherInfo {
        gloo_dir: "/tmp/own".into(),
        mapping: "/cwd/mapping.json".into(),
        args: "--legacy 1 train.py".into(),
    };
    said.extend(spec.warnings.iter().chain(&site.warnings).cloned());
    Ok((plan(&spec, legacy, &vars, &facts, (&site, &ground, &itself))?, said))
}

/// The variables of each rank; those that all ranks share are listed once.
fn variable_table(
    machine: &MachineDevices,
    options: &[(&'static str, &str)],
    environ: &[(&str, &str)],
    text: &str,
) -> String {
    let (plan, said) = match planned(machine, options, environ, text) {
        Ok(planned) => planned,
        Err(error) => return format!("error: {error}\n"),
    };
    let mut out: String = said.iter().map(|line| format!("warning: {line}\n")).collect();
    let vars = |local: usize| plan.ranks[local].env.vars().iter().filter(|(name, _)| !name.starts_with("RLAUNCH_"));
    let alike = |name: &str, value: &str| plan.ranks.iter().all(|r| r.env.get(name) == Some(value));
    out += &format!("mode {}, nodes {}, world size {}\n", plan.mode, plan.nnodes, plan.world_size);
    for (name, value) in vars(0).filter(|(n, v)| alike(n, v)) {
        out += &format!("  {name}={value}\n");
    }
    for (local, rank) in plan.ranks.iter().enumerate() {
        let own: Vec<String> = vars(local).filter(|(n, v)| !alike(n, v)).map(|(n, v)| format!("{n}={v}")).collect();
        let unset: String = rank.env.removed().iter().map(|name| format!(" -{name}")).collect();
        out += &format!("{} {}, {}: {}{unset}\n", rank.role, rank.rank, rank.log(), own.join(" "));
    }
    out
}

/// One case of a table: options, environment, text of the file.
type Case<'a> = (&'a [(&'static str, &'a str)], &'a [(&'a str, &'a str)], &'a str);

fn table(machine: &MachineDevices, cases: &[Case<'_>]) -> String {
    let words = |pairs: &[(&str, &str)], dashes: &str| {
        pairs.iter().map(|(n, v)| format!(" {dashes}{n}={v}")).collect::<String>()
    };
    let case = |(options, environ, text): &Case<'_>| {
        let file = if text.is_empty() { String::new() } else { format!("file {text}\n") };
        format!(
            "${}{}\n{file}{}",
            words(environ, ""),
            words(options, "--"),
            variable_table(machine, options, environ, text)
        )
    };
    cases.iter().map(case).collect::<Vec<_>>().join("\n")
}

#[test]
fn eight_gpus() {
    let table = table(
        &nvidia(8),
        &[
            (&[], &[], ""),
            (&[("nproc_per_node", "4")], &[], ""),
            (&[("nproc_per_node", "3")], &[], ""),
            (&[("devices", "5,4"), ("nproc_per_node", "1")], &[("CUDA_VISIBLE_DEVICES", "4,5,6,7")], ""),
            (&[("selected_gpus", "6,7")], &[("FLAGS_START_PORT", "6500"), ("PADDLE_WITH_GLOO", "1")], ""),
            (&[("devices", "9")], &[("CUDA_VISIBLE_DEVICES", "4,5")], ""),
        ],
    );
    insta::assert_snapshot!(table);
}

const BOTH: &str = "10.0.0.1,10.0.0.2";

#[test]
fn two_nodes_with_four_gpus_each() {
    let table = table(
        &nvidia(4),
        &[
            (&[("ips", BOTH), ("host", "10.0.0.1")], &[], ""),
            (&[("ips", BOTH), ("host", "10.0.0.2"), ("nproc_per_node", "2")], &[("FLAGS_START_PORT", "7100")], ""),
            (&[("ips", BOTH), ("host", "10.0.0.3")], &[], ""),
            (&[("ips", BOTH)], &[], ""),
            (&[("ips", BOTH), ("nproc_per_node", "1")], &[("POD_IP", "10.0.0.2")], ""),
            (&[("ips", "10.0.0.1,10.0.0.1"), ("host", "10.0.0.1")], &[], ""),
            (&[("ips", BOTH), ("host", "10.0.0.1")], &[("FLAGS_START_PORT", "65534")], ""),
        ],
    );
    insta::assert_snapshot!(table);
}

#[test]
fn without_devices() {
    let table = table(
        &nvidia(0),
        &[
            (&[("nproc_per_node", "2")], &[("http_proxy", "http://proxy"), ("PADDLE_DISTRI_BACKEND", "gloo")], ""),
            (&[("run_mode", "collective")], &[], ""),
            (&[("ips", "10.0.0.1")], &[("FLAGS_START_PORT", "6300")], ""),
            (&[("ips", BOTH)], &[], ""),
            (&[("backend", "nccl")], &[], ""),
            (&[("backend", "bkcl")], &[], ""),
            (&[("backend", "heter")], &[], ""),
            (&[("backend", "xccl")], &[], ""),
            (&[("backend", "mpi")], &[], ""),
            (&[("backend", "gloo"), ("run_mode", "ps")], &[], ""),
            (&[("backend", "gloo"), ("servers", "10.0.0.1:1")], &[], ""),
            (&[("nproc_per_node", "0")], &[], ""),
            (&[("start_port", "1")], &[], ""),
            (&[("rank_mapping_path", "f")], &[], ""),
            (&[("enable_auto_mapping", "False")], &[], ""),
            (&[("devices", "0,1")], &[], ""),
            (&[], &[("FLAGS_START_PORT", "-1")], ""),
            (&[("nproc_per_node", "2")], &[("PADDLE_ENV_LIMIT_LEN", "20")], ""),
        ],
    );
    insta::assert_snapshot!(table);
}

#[test]
fn other_devices() {
    let xpus = MachineDevices { xpus: 4, ..MachineDevices::default() };
    let table = table(
        &xpus,
        &[
            (&[("nproc_per_node", "2")], &[], ""),
            (&[("backend", "heter"), ("devices", "3")], &[("XPU_VISIBLE_DEVICES", "2,3")], ""),
            (&[("backend", "gloo")], &[], ""),
        ],
    );
    insta::assert_snapshot!(table);
}

const PLATFORM: [(&str, &str); 5] = [
    ("PADDLE_TRAINERS", "10.0.0.1,10.0.0.2"),
    ("POD_IP", "10.0.0.2"),
    ("PADDLE_TRAINER_ID", "1"),
    ("TRAINER_PORTS_NUM", "2"),
    ("PADDLE_TRAINERS_NUM", "2"),
];

fn platform<'a>(more: &[(&'a str, &'a str)]) -> Vec<(&'a str, &'a str)> {
    let mut all = PLATFORM.to_vec();
    for (name, value) in more {
        all.retain(|(known, _)| known != name);
        all.push((name, value));
    }
    all
}

#[test]
fn on_the_job_platform() {
    let endpoints = "10.0.0.1:1,10.0.0.1:2,10.0.0.2:3,10.0.0.2:4";
    let gpus: &[(&'static str, &str)] = &[("devices", "0,1")];
    let table = table(
        &nvidia(2),
        &[
            (gpus, &platform(&[]), ""),
            (gpus, &platform(&[("PADDLE_PORT", "6800")]), ""),
            (gpus, &platform(&[("PADDLE_PORT", "6800"), ("TRAINER_PORTS_NUM", "1")]), ""),
            (gpus, &platform(&[("PADDLE_PORT", "x")]), ""),
            (gpus, &platform(&[("PADDLE_TRAINER_ID", "-1")]), ""),
            (gpus, &platform(&[("FLAGS_START_PORT", "6900")]), ""),
            (gpus, &platform(&[("DISTRIBUTED_TRAINER_ENDPOINTS", endpoints)]), ""),
            (gpus, &platform(&[("DISTRIBUTED_TRAINER_ENDPOINTS", "10.0.0.1:1")]), ""),
            (gpus, &platform(&[("PADDLE_TRAINER_ID", "2")]), ""),
            (gpus, &platform(&[("POD_IP", "10.0.0.9")]), ""),
            (gpus, &platform(&[("PADDLE_TRAINERS_NUM", "1")]), ""),
            (&[("ips", "10.0.0.7")], &platform(&[]), ""),
        ],
    );
    insta::assert_snapshot!(table);
}

const TOPOLOGY: &str = r#"{"machines": [{"addr": "10.0.0.1", "devices": []}, {"addr": "10.0.0.2"}]}"#;
const MAPPING: &str = r#"[{"hostname": "a", "addr": "10.0.0.1", "ranks": {"0": [3], "2": [1]}},
 {"hostname": "b", "addr": "10.0.0.2", "ranks": {"1": [0], "3": ["2"]}}]"#;

#[test]
fn rank_mappings() {
    let first = [("enable_auto_mapping", "true"), ("cluster_topo_path", "topology.json")];
    let on = |host| -> Vec<(&'static str, &str)> { first.into_iter().chain([("host", host)]).collect() };
    let second = |host| [on(host), vec![("rank_mapping_path", "mapping.json")]].concat();
    let port = [("FLAGS_START_PORT", "6500")];
    let turned = r#"[{"addr": "10.0.0.1", "ranks": {"1": [0]}}, {"addr": "10.0.0.2", "ranks": {"0": [1]}}]"#;
    let alone = r#"[{"addr": "10.0.0.1", "ranks": {"0": [5], "1": [4]}}]"#;
    let mapped = |text| -> Case<'_> {
        (
            &[("enable_auto_mapping", "1"), ("cluster_topo_path", "t"), ("rank_mapping_path", "m")],
            &[("PADDLE_PORT", "6600"), ("CUDA_VISIBLE_DEVICES", "4,5")],
            text,
        )
    };
    let table = table(
        &nvidia(4),
        &[
            (&on("10.0.0.1"), &port, TOPOLOGY),
            (&on("10.0.0.2"), &[("PADDLE_PORT", "6600")], TOPOLOGY),
            (&on("10.0.0.1"), &[], TOPOLOGY),
            (&first, &[], r#"{"machines": [{"addr": "10.0.0.1"}]}"#),
            (&second("10.0.0.1"), &port, MAPPING),
            (&second("10.0.0.2"), &port, MAPPING),
            mapped(alone),
            (&second("10.0.0.1"), &port, turned),
            mapped(r#"[{"addr": "10.0.0.1", "ranks": {"0": [6]}}]"#),
            mapped(r#"[{"addr": "10.0.0.1", "ranks": {"0": [4], "1": [5], "2": [4]}}]"#),
            (&first[..1], &[], ""),
        ],
    );
    insta::assert_snapshot!(table);
}

const RANK_TABLE: &str = r#"{"server_list": [
 {"server_id": "10.0.0.1", "device": [{"device_id": "0", "rank_id": "0"}, {"device_id": "1", "rank_id": "1"}]},
 {"server_id": "10.0.0.2", "device": [{"device_id": "0", "rank_id": "2"}, {"device_id": "1", "rank_id": "3"}]}]}"#;

#[test]
fn rank_tables() {
    let table_file = ("RANK_TABLE_FILE", "table.json");
    let modelarts = [table_file, ("FLAGS_MODELARTS", "1"), ("PADDLE_TRAINER_ID", "0"), ("DLS_TASK_NUMBER", "2")];
    let hosts = [("VC_CUSTOM0_HOSTS", "job-0.svc"), ("VC_CUSTOM1_HOSTS", "job-1.svc")];
    let all: Vec<_> = modelarts.into_iter().chain(hosts).collect();
    let table = table(
        &nvidia(0),
        &[
            (&[], &[table_file, ("PADDLE_TRAINER_ID", "1")], RANK_TABLE),
            (&[("host", "10.0.0.1")], &[table_file, ("FLAGS_START_PORT", "6300")], RANK_TABLE),
            (&[], &all, RANK_TABLE),
            (&[], &modelarts, RANK_TABLE),
            (&[], &[table_file, ("PADDLE_TRAINER_ID", "2")], RANK_TABLE),
            (&[("nproc_per_node", "8")], &[table_file], RANK_TABLE),
            (&[("backend", "gloo")], &[table_file], RANK_TABLE),
        ],
    );
    insta::assert_snapshot!(table);
}

const FILE: MappingFile<'static> = MappingFile { field: "--file", path: "cluster.json" };

/// Reads a text as each of the files.
fn read_as_all(text: &str) -> [Result<(), SpecError>; 3] {
    [
        rank_mapping::topology(&FILE, text).map(|_| ()),
        rank_mapping::mapping(&FILE, text).map(|_| ()),
        rank_mapping::rank_table(&FILE, text).map(|_| ()),
    ]
}

#[test]
fn wrong_contents_of_rank_files_are_named() {
    let addr = |addr: &str| format!(r#"{{"machines": [{{"addr": "10.0.0.1"}}, {{"addr": {addr}}}]}}"#);
    let topologies = [
        "",
        "[]",
        "{}",
        r#"{"machines": []}"#,
        r#"{"machines": [{}]}"#,
        &addr("17"),
        &addr(r#""10.0.0.1""#),
        &addr(r#""a b""#),
        &addr(r#""a,b""#),
        &addr(r#""""#),
        &addr(r#""10.0.0.1:80""#),
    ]
    .map(|text| format!("{text}\n  {}\n", rank_mapping::topology(&FILE, text).unwrap_err()));
    let ranks = |ranks: &str| format!(r#"[{{"addr": "10.0.0.1", "ranks": {ranks}}}]"#);
    let mappings = [
        "[]",
        "{",
        r#"[{"addr": "10.0.0.1"}]"#,
        &ranks("{}"),
        &ranks("[0]"),
        &ranks(r#"{"x": [0]}"#),
        &ranks(r#"{"-1": [0]}"#),
        &ranks(r#"{"0": 0}"#),
        &ranks(r#"{"0": []}"#),
        &ranks(r#"{"0": [0, 1]}"#),
        &ranks(r#"{"0": [-1]}"#),
        &ranks(r#"{"0": ["x"]}"#),
        &ranks(r#"{"0": [0], "2": [1]}"#),
        &ranks(r#"{"0": [0], "00": [1]}"#),
        r#"[{"addr": "a", "ranks": {"0": [0]}}, {"addr": "b", "ranks": {"0": [0]}}]"#,
    ]
    .map(|text| format!("{text}\n  {}\n", rank_mapping::mapping(&FILE, text).unwrap_err()));
    let tables = [
        r#"{"server_list": []}"#,
        r#"{"server_list": [{"server_id": "a"}]}"#,
        r#"{"server_list": [{"server_id": "a", "device": []}]}"#,
        r#"{"server_list": [{"server_id": "a", "device": [1]}, {"server_id": "b", "device": [1, 2]}]}"#,
        r#"{"server_list": [{"server_id": "a", "device": [1]}, {"server_id": "a", "device": [1]}]}"#,
    ]
    .map(|text| format!("{text}\n  {}\n", rank_mapping::rank_table(&FILE, text).unwrap_err()));
    let refusals = [topologies.concat(), mappings.concat(), tables.concat()].join("\n");
    insta::assert_snapshot!(refusals);
}

fn json() -> impl Strategy<Value = String> {
    let leaf = prop_oneof![
        Just("null".to_owned()),
        any::<i64>().prop_map(|n| n.to_string()),
        any::<f32>().prop_filter_map("finite", |f| f.is_finite().then(|| f.to_string())),
        "[a-z0-9.,:\\[\\]]{0,12}".prop_map(|text| format!("\"{text}\"")),
    ];
    let name = "machines|addr|ranks|server_list|server_id|device|0|1|[a-z]{0,3}";
    leaf.prop_recursive(5, 40, 5, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..5).prop_map(|items| format!("[{}]", items.join(","))),
            prop::collection::vec((name, inner), 0..5).prop_map(|fields| {
                let fields: Vec<String> = fields.into_iter().map(|(n, v)| format!("\"{n}\":{v}")).collect();
                format!("{{{}}}", fields.join(","))
            }),
        ]
    })
}

fn any_binding() -> impl Strategy<Value = Binding> {
    prop_oneof![
        Just(Binding::Cpu),
        ("gpu|xpu|npu", "[0-9](,[0-9]){0,3}").prop_map(|(kind, indices)| Binding::Selected { kind, indices }),
    ]
}

proptest! {
    #[test]
    fn any_file_is_read_or_refused_by_name(text in prop_oneof![json(), ".{0,80}"]) {
        for read in read_as_all(&text) {
            if let Err(error) = read {
                prop_assert_eq!((&*error.field, error.value.as_deref()), ("--file", Some("cluster.json")));
                prop_assert!(!error.why.is_empty() && !error.to_string().contains('\n'));
            }
        }
    }

    #[test]
    fn a_wrong_value_is_named(text in "[a-z ]{1,8}!", at in 0usize..6) {
        let quoted = format!("\"{text}\"");
        let texts = [
            format!(r#"{{"machines": [{{"addr": {quoted}}}]}}"#),
            format!(r#"{{"machines": {quoted}}}"#),
            format!(r#"[{{"addr": {quoted}, "ranks": {{"0": [0]}}}}]"#),
            format!(r#"[{{"addr": "a", "ranks": {{{quoted}: [0]}}}}]"#),
            format!(r#"[{{"addr": "a", "ranks": {{"0": [{quoted}]}}}}]"#),
            format!(r#"{{"server_list": [{{"server_id": {quoted}, "device": [0]}}]}}"#),
        ];
        let read = read_as_all(&texts[at]);
        let which = [0, 0, 1, 1, 1, 2][at];
        let error = read[which].as_ref().unwrap_err();
        prop_assert!(error.why.contains(&text), "{error}");
    }

    #[test]
    fn mappings_are_read_as_they_were_written(
        counts in prop::collection::vec(0usize..5, 1..5).prop_filter("a rank", |counts| counts.iter().sum::<usize>() > 0),
        seed: u64,
    ) {
        let world: usize = counts.iter().sum();
        // Some order of all ranks.
        let mut order: Vec<usize> = (0..world).collect();
        order.sort_by_key(|rank| (*rank as u64 + 1).wrapping_mul(seed | 1));
        let (mut rest, mut text) = (order.as_slice(), Vec::new());
        for (at, count) in counts.iter().enumerate() {
            let (here, after) = rest.split_at(*count);
            let ranks: Vec<String> = here.iter().map(|rank| format!("\"{rank}\": [{}]", rank * 7)).collect();
            text.push(format!(r#"{{"addr": "10.0.0.{at}", "ranks": {{{}}}}}"#, ranks.join(",")));
            rest = after;
        }
        let machines = rank_mapping::mapping(&FILE, &format!("[{}]", text.join(","))).unwrap();
        let mut seen = Vec::new();
        for (machine, count) in machines.iter().zip(&counts) {
            prop_assert_eq!(machine.ranks.len(), *count);
            prop_assert!(machine.ranks.is_sorted());
            prop_assert!(machine.ranks.iter().all(|(rank, device)| *device == (rank * 7).to_string()));
            seen.extend(machine.ranks.iter().map(|(rank, _)| *rank));
        }
        seen.sort();
        prop_assert_eq!(seen, (0..world).collect::<Vec<_>>());
    }

    #[test]
    fn any_environment_is_planned_or_refused_by_name(
        name in prop::sample::select(vec![
            "FLAGS_START_PORT", "PADDLE_PORT", "PADDLE_TRAINERS", "POD_IP", "PADDLE_TRAINER_ID", "TRAINER_PORTS_NUM",
            "PADDLE_TRAINERS_NUM", "DISTRIBUTED_TRAINER_ENDPOINTS", "PADDLE_DISTRI_BACKEND", "CUDA_VISIBLE_DEVICES",
        ]),
        value in prop_oneof!["[0-9.,:x-]{0,12}", ".{0,8}".prop_filter("no NUL", |text| !text.contains('\0'))],
    ) {
        let environ = platform(&[(name, &value)]);
        if let Err(error) = planned(&nvidia(2), &[], &environ, "") {
            let text = error.to_string();
            prop_assert!(!error.field.is_empty() && !text.contains('\n'), "{text}");
            let shown = rlaunch::spec::shown(value.trim());
            prop_assert!(text.contains(&shown) || text.contains(&format!("{value:?}")), "{name}={value:?}: {text}");
        }
    }

    #[test]
    fn legacy_environment_round_trips(
        (rank, local_rank, port) in (0usize..99, 0usize..9, 1u16..),
        binding in any_binding(),
        others in prop::collection::vec(any_binding(), 0..4),
        master: bool,
        mapping in prop::option::of(prop::option::of(("[a-z/]{1,9}", "[a-z -]{0,9}"))),
    ) {
        let endpoint = Endpoint::new("10.0.0.1", port);
        let wanted = |(path, args)| MapperRequest { path, args };
        let world = LegacyWorld {
            size: others.len() + 1,
            endpoints: endpoint.to_string().into(),
            master: master.then(|| endpoint.clone()),
            devices: paddle_legacy::world_devices(others.iter().chain([&binding])).into(),
            backend: "nccl".into(),
            with_gloo: "0".into(),
            gloo_dir: "/tmp/x".into(),
            trainers: None,
            mapping: mapping.map(|w| RankMappingEnv { topology: "t".into(), request: w.map(wanted) }),
        };
        let who = LegacyIdentity { rank, local_rank, endpoint, binding };
        let env = paddle_legacy::write(&who, &world);
        prop_assert!(env.vars().iter().all(|(name, _)| is_declared(name)));
        let get = |name: &str| env.get(name).map(str::to_owned);
        prop_assert_eq!(paddle_legacy::read(&get), Some((who, world)));
    }
}
