//! Requests to the legacy launcher: which options and variables take effect, and the warnings about the others.

use super::{nvidia, planned, platform, spec, variable_table, vars};
use rlaunch::spec::paddle::job::JobKind;

/// Why this is refused where two GPUs are.
fn refusal(options: &[(&'static str, &str)], environ: &[(&str, &str)]) -> String {
    planned(&nvidia(2), options, environ, "").expect_err("a refusal").to_string()
}

#[test]
fn a_number_of_nodes_in_the_environment_has_no_effect() {
    let options = [("ips", "127.0.0.2,127.0.0.3"), ("host", "127.0.0.3"), ("backend", "nccl"), ("devices", "0")];
    for number in ["2", "7", "1:4", "x"] {
        let (plan, said) = planned(&nvidia(2), &options, &[("PADDLE_NNODES", number)], "").unwrap();
        assert_eq!((plan.nnodes, plan.world_size, said.len()), (2, 2, 0));
    }
    assert!(refusal(&[("nnodes", "2")], &[]).contains("the legacy launcher does not have this option"));
}

#[test]
fn modes_of_the_newer_launcher_are_refused() {
    for mode in ["rpc", "RPC", "junk"] {
        for options in [&[("run_mode", mode)][..], &[("run_mode", mode), ("backend", "auto")]] {
            let text = refusal(options, &[]);
            assert!(
                text.starts_with(&format!("--run_mode {mode}: is not a run mode of the legacy launcher; ")),
                "{text}"
            );
        }
        assert!(
            refusal(&[], &[("PADDLE_RUN_MODE", mode)])
                .starts_with(&format!("PADDLE_RUN_MODE {mode}: is not a run mode"))
        );
    }
}

#[test]
fn gloo_is_as_asked() {
    let gloo = |options: &[(&'static str, &str)], environ: &[(&str, &str)]| {
        let (plan, _) = planned(&nvidia(0), options, environ, "").unwrap();
        plan.ranks[0].env.get("PADDLE_WITH_GLOO").map(str::to_owned)
    };
    assert_eq!(gloo(&[], &[]).as_deref(), Some("0"));
    assert_eq!(gloo(&[("with_gloo", "2")], &[]).as_deref(), Some("2"));
    assert_eq!(gloo(&[("with_gloo", "2")], &[("PADDLE_WITH_GLOO", "1")]).as_deref(), Some("1"));
}

#[test]
fn options_that_only_the_newer_launcher_has_are_refused() {
    for (name, value) in [("gloo_port", "7000"), ("auto_parallel_config", "f.json"), ("auto_cluster_config", "true")] {
        let text = refusal(&[(name, value)], &[]);
        assert!(
            text.starts_with(&format!("--{name} {value}: the legacy launcher does not have this option; ")),
            "{text}"
        );
    }
    let environ = vars(&[]);
    let servers = [("server_num", "1"), ("worker_num", "1"), ("gloo_port", "7000")];
    assert!(matches!(spec(&servers, &environ).unwrap().job, JobKind::Ps(_)));
}

/// The warnings about these options and variables, or why they are refused.
fn warnings_about(options: &[(&'static str, &str)], environ: &[(&str, &str)]) -> Result<Vec<String>, String> {
    spec(options, &vars(environ)).map(|spec| spec.warnings).map_err(|error| error.to_string())
}

#[test]
fn a_mapping_file_takes_precedence_over_options() {
    let idle = [("devices", "0"), ("ips", "10.0.0.1"), ("nproc_per_node", "2")];
    let no_effect = |names: &[&str], with: &str| -> Result<Vec<String>, String> {
        Ok(names.iter().map(|n| format!("{n} has no effect with {with}: a file places the ranks")).collect())
    };
    let mapping = [("enable_auto_mapping", "1"), ("cluster_topo_path", "t"), ("selected_gpus", "0")];
    let expected =
        no_effect(&["--devices", "--selected_gpus", "PADDLE_NPROC_PER_NODE", "--ips"], "--enable_auto_mapping");
    assert_eq!(warnings_about(&[idle.as_slice(), &mapping].concat(), &[("PADDLE_NPROC_PER_NODE", "2")]), expected);
    assert_eq!(warnings_about(&mapping[..2], &[]), Ok(Vec::new()));
    let table = [("RANK_TABLE_FILE", "table.json")];
    assert_eq!(warnings_about(&idle, &table), no_effect(&["--devices", "--ips"], "RANK_TABLE_FILE"));
    assert_eq!(warnings_about(&[("nproc_per_node", "2")], &table), Ok(Vec::new()));
    assert_eq!(warnings_about(&idle, &[]), Ok(Vec::new()));
}

#[test]
fn devices_are_listed_once() {
    let both = |one, other| [("devices", one), ("selected_gpus", other)];
    assert_eq!(warnings_about(&both("0,1", "0, 1"), &[]), Ok(Vec::new()));
    let refused = "--selected_gpus 1,0: --devices is 0,1; give one of the two";
    assert_eq!(warnings_about(&both("0,1", "1,0"), &[]), Err(refused.into()));
    let said = "--selected_gpus has no effect: PADDLE_DEVICES is 3";
    assert_eq!(warnings_about(&[("selected_gpus", "1")], &[("PADDLE_DEVICES", "3")]), Ok(vec![said.into()]));
    let devices = spec(&both("", "1"), &vars(&[])).unwrap().devices;
    assert_eq!(devices, Some(vec!["1".to_owned()]));
}

#[test]
fn endpoints_that_the_platform_lists_need_no_ports_of_their_own() {
    let devices = [("devices", "0,1")];
    let with = |list| platform(&[("FLAGS_START_PORT", "65535"), ("DISTRIBUTED_TRAINER_ENDPOINTS", list)]);
    let all = "10.0.0.1:1,10.0.0.1:2,10.0.0.2:3,10.0.0.2:4";
    let (plan, said) = planned(&nvidia(2), &devices, &with(all), "").unwrap();
    assert_eq!(plan.ranks[0].env.get("PADDLE_TRAINER_ENDPOINTS"), Some(all));
    assert_eq!(said, Vec::<String>::new());
    let room = refusal(&devices, &platform(&[("FLAGS_START_PORT", "65535")]));
    assert!(room.starts_with("FLAGS_START_PORT 65535: leaves no room"), "{room}");
    let twice = refusal(&devices, &with("10.0.0.1:1,10.0.0.1:2,10.0.0.2:3, 10.0.0.1:1"));
    assert!(
        twice.starts_with("DISTRIBUTED_TRAINER_ENDPOINTS ") && twice.contains(": lists 10.0.0.1:1 twice; "),
        "{twice}"
    );
}

#[test]
fn empty_values_count_as_unset() {
    let names = [
        "FLAGS_START_PORT",
        "PADDLE_IPS",
        "PADDLE_DISTRI_BACKEND",
        "PADDLE_TRAINERS_NUM",
        "PADDLE_PORT",
        "RANK_TABLE_FILE",
        "PADDLE_RANK_MAPPING_PATH",
        "DISTRIBUTED_TRAINER_ENDPOINTS",
    ];
    let table = |options: &[(&'static str, &str)], environ: &[(&str, &str)]| {
        let text = variable_table(&nvidia(2), options, environ, r#"{"machines": [{"addr": "10.0.0.1"}]}"#);
        assert!(!text.contains("error: "), "{text}");
        text
    };
    for name in names {
        for mapping in [&[][..], &[("enable_auto_mapping", "1"), ("cluster_topo_path", "t")]] {
            assert_eq!(table(mapping, &[(name, "")]), table(mapping, &[]), "{name}");
        }
        let mut without = platform(&[]);
        without.retain(|(known, _)| *known != name);
        assert_eq!(table(&[], &platform(&[(name, "")])), table(&[], &without), "{name}");
    }
    assert_eq!(table(&[("ips", ""), ("backend", "")], &[]), table(&[], &[]));
}

#[test]
fn the_variable_of_modelarts_that_is_wrong_is_named() {
    let refused = |more: &[(&str, &str)]| {
        let all = [&[("RANK_TABLE_FILE", "table.json"), ("FLAGS_MODELARTS", "1")], more].concat();
        warnings_about(&[], &all).expect_err("a refusal")
    };
    let unset = "didn't set!; set it, or unset FLAGS_MODELARTS";
    assert_eq!(refused(&[]), format!("DLS_TASK_NUMBER: DLS_TASK_NUMBER {unset}"));
    let (three, first) = (("DLS_TASK_NUMBER", "3"), ("VC_CUSTOM0_HOSTS", "10.0.0.1"));
    assert_eq!(refused(&[three, first]), format!("VC_CUSTOM1_HOSTS: VC_CUSTOM1_HOSTS {unset}"));
    for (value, why) in [
        ("10.0.0.1", "VC_CUSTOM0_HOSTS has 10.0.0.1 already; give the address of one node, once"),
        ("[10.0.0.1] ", "VC_CUSTOM0_HOSTS has 10.0.0.1 already; give the address of one node, once"),
        ("10.0.0.2,10.0.0.3", "has several nodes; give the address of one node, once"),
        ("10.0.0.2:80", "10.0.0.2:80 is not an address; "),
    ] {
        let text = refused(&[three, first, ("VC_CUSTOM1_HOSTS", value)]);
        assert!(text.starts_with(&format!("VC_CUSTOM1_HOSTS {value}: {why}")), "{text}");
    }
}
