//! Elastic jobs of the legacy launcher: their checked options and variables, and the variables of their ranks.

use rlaunch::framework::{Binding, is_declared};
use rlaunch::model::{Endpoint, EnvDelta};
use rlaunch::plan::LaunchContext;
use rlaunch::plan::devices::assign::{DeviceShare, VisibleDevices};
use rlaunch::plan::legacy::{DeviceBackend, LauncherInfo, LegacyRank, RankLayout, plan};
use rlaunch::protocol::record::FORMAT;
use rlaunch::protocol::{
    Coordinator, Departure, JobEnd, JobPhase, JobRules, NodeInfo, NodeRecord, NodeStatus, OnFailure, OnNodeLoss,
    RankFailure,
};
use rlaunch::spec::legacy::collective::{NodeSource, StartPort};
use rlaunch::spec::legacy::elastic::{AfterFailure, LegacyElasticSpec};
use rlaunch::spec::options::EnvVars;
use rlaunch::spec::paddle::job::JobKind;
use rlaunch::spec::paddle::launch;
use rlaunch::spec::paddle::options::merge;
use rlaunch::spec::rendezvous::{BackendSpec, ElasticLevel};
use rlaunch::spec::{LaunchSpec, SpecError};
use std::collections::BTreeMap;
use std::time::Duration;

fn checked(options: &[(&'static str, &str)], environ: &[(&str, &str)]) -> Result<LaunchSpec, SpecError> {
    let vars: EnvVars = environ.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    let flags: BTreeMap<_, _> = options.iter().map(|(name, value)| (*name, (*value).to_owned())).collect();
    launch::check(&merge(&flags, &vars), &vars, &["train.py".into()])
}

fn elastic(options: &[(&'static str, &str)], environ: &[(&str, &str)]) -> LegacyElasticSpec {
    let all = [[("elastic_server", "10.0.0.9:2379"), ("job_id", "j")].as_slice(), options].concat();
    let spec = checked(&all, environ).unwrap();
    let JobKind::Legacy(legacy) = spec.job else { panic!("not the legacy launcher") };
    let elastic = legacy.elastic.expect("an elastic job");
    assert_eq!(spec.rendezvous.as_ref(), Some(&elastic.rendezvous));
    elastic
}

fn refused(options: &[(&'static str, &str)], environ: &[(&str, &str)]) -> String {
    checked(options, environ).expect_err("refused").to_string()
}

const ON: [(&str, &str); 3] =
    [("PADDLE_ELASTIC_SERVER", "e:2379"), ("PADDLE_ELASTIC_JOB_ID", "j"), ("PADDLE_ELASTIC_NP", "2")];

#[test]
fn a_job_is_elastic_by_its_server_name_and_number_of_nodes() {
    let is_elastic = |options: &[(&'static str, &str)], environ: &[(&str, &str)]| {
        let legacy = [[("legacy", "1")].as_slice(), options].concat();
        matches!(checked(&legacy, environ).unwrap().job, JobKind::Legacy(legacy) if legacy.elastic.is_some())
    };
    assert!(is_elastic(&[], &ON));
    for missing in ON {
        let some: Vec<_> = ON.into_iter().filter(|one| *one != missing).collect();
        assert!(!is_elastic(&[], &some), "without {}", missing.0);
    }
    assert!(is_elastic(&[("np", "2")], &ON[..2]));
    let service = [("PADDLE_ELASTIC_ETCD_SERVICE_HOST", "s"), ("PADDLE_ELASTIC_ETCD_SERVICE_PORT", "23"), ON[1], ON[2]];
    assert!(is_elastic(&[], &service));
    assert_eq!(checked(&[], &ON).unwrap().job, JobKind::Collective, "they are the legacy launcher's variables");
    assert!(refused(&[("np", "2")], &[]).contains("needs --elastic_server, --job_id and --np"));
}

#[test]
fn the_command_line_beats_the_variables() {
    let spec = checked(&[("elastic_server", "a:1"), ("job_id", "mine"), ("np", "3:4")], &ON).unwrap();
    assert_eq!(spec.job_id, "mine");
    let rendezvous = spec.rendezvous.unwrap();
    assert_eq!((rendezvous.job_name.as_str(), rendezvous.nodes), ("mine", (3, 4)));
    let BackendSpec::Etcd(etcd) = rendezvous.backend else { panic!("no etcd") };
    assert_eq!((etcd.endpoints, etcd.tls), (vec![Endpoint::new("a", 1)], false));
    let spec = checked(&[("legacy", "1")], &ON).unwrap();
    assert_eq!((spec.job_id.as_str(), spec.rendezvous.unwrap().nodes), ("j", (2, 2)));
}

#[test]
fn numbers_of_nodes_are_fixed_or_a_range() {
    let of = |np, environ: &[(&str, &str)]| {
        let elastic = elastic(&[("np", np)], environ);
        (elastic.rendezvous.nodes, elastic.after_failure.status())
    };
    let level_2 = [("PADDLE_ELASTIC_FAULT_TOLERANC_LEVEL", "2")];
    assert_eq!(of("2", &[]), ((2, 2), 101));
    assert_eq!(of("2", &level_2), ((2, 2), 3));
    assert_eq!(of("0", &level_2), ((1, 1), 101), "one is 1:1");
    assert_eq!(of("3:3", &level_2), ((3, 3), 101));
    assert_eq!(of("2:4", &[]), ((2, 4), 3));
    assert_eq!(of("4:2", &[]), ((4, 4), 101), "the most are no fewer than the least");
    for np in ["two", "1:2:3", "", "9999999"] {
        let options = [("elastic_server", "a:1"), ("job_id", "j"), ("np", np)];
        let text = refused(&options, &[("PADDLE_ELASTIC_NP", np)]);
        assert!(text.contains("np"), "{text}");
    }
    assert!(
        refused(&[("legacy", "1")], &[ON[0], ON[1], ON[2], ("PADDLE_ELASTIC_FAULT_TOLERANC_LEVEL", "3")])
            .contains("is not a level")
    );
}

#[test]
fn a_list_counts_nodes_and_places_them() {
    let found = elastic(&[("np", "2"), ("ips", "a,b,c"), ("host", "b")], &[]);
    assert_eq!((found.rendezvous.nodes, found.place, found.rendezvous.node_rank), ((3, 3), Some(1), None));
    let found = elastic(&[("np", "1:9"), ("ips", "a,b,c"), ("host", "d")], &[]);
    assert_eq!((found.rendezvous.nodes, found.place, found.usual), ((1, 9), None, 3));
    let cloud = [("PADDLE_TRAINERS", "a,b"), ("POD_IP", "b"), ("PADDLE_TRAINER_ID", "1"), ("TRAINER_PORTS_NUM", "1")];
    let found = elastic(&[("np", "2")], &[cloud.as_slice(), &[("PADDLE_PORT", "7000")]].concat());
    assert_eq!((found.place, found.rendezvous.node_rank, found.ports), (Some(1), Some(1), Some((7000, "PADDLE_PORT"))));
    assert_eq!(found.rendezvous.host.as_deref(), Some("b"));
    let found = elastic(&[("np", "1:9")], &cloud);
    assert_eq!(
        (found.place, found.rendezvous.node_rank, found.usual),
        (Some(1), None, 2),
        "numbers are those of the beginning"
    );
}

#[test]
fn times_are_as_they_were() {
    let times = |environ: &[(&str, &str)]| {
        let rendezvous = elastic(&[("np", "1:2")], environ).rendezvous;
        [rendezvous.last_call, rendezvous.join_timeout, rendezvous.heartbeat_timeout].map(|time| time.as_secs())
    };
    assert_eq!(times(&[]), [120, 1200, 60]);
    assert_eq!(times(&[("PADDLE_ELASTIC_TIMEOUT", "5"), ("PADDLE_ELASTIC_TTL", "6")]), [5, 120, 6]);
    assert_eq!(times(&[("RLAUNCH_JOIN_TIMEOUT", "7"), ("RLAUNCH_HEARTBEAT_TIMEOUT", "8")]), [120, 7, 8]);
    let text = refused(&[("legacy", "1")], &[ON[0], ON[1], ON[2], ("PADDLE_ELASTIC_TTL", "1")]);
    assert!(text.starts_with("PADDLE_ELASTIC_TTL 1: "), "{text}");
    assert_eq!(elastic(&[("np", "1:2")], &[]).rendezvous.elastic_level, ElasticLevel::Hold);
}

#[test]
fn this_node_is_laid_out_alone() {
    let spec = checked(&[("elastic_server", "a:1"), ("job_id", "j"), ("np", "2"), ("host", "b")], &[]).unwrap();
    let JobKind::Legacy(legacy) = spec.job else { panic!("not the legacy launcher") };
    let NodeSource::Nodes(list, start) = legacy.node_source else { panic!("no list") };
    assert_eq!((list.hosts.len(), list.hosts[0].name.as_str(), start), (1, "b", StartPort::Free));
    let fixed = elastic(&[("np", "2")], &[("FLAGS_START_PORT", "6100"), ("PADDLE_PORT", "7000")]);
    assert_eq!(fixed.ports, Some((6100, "FLAGS_START_PORT")), "the other one is the platform's");
}

#[test]
fn options_without_effect_warn_and_contradictions_are_refused() {
    let said = |options: &[(&'static str, &str)], environ: &[(&str, &str)]| {
        let all = [[("elastic_server", "a:1"), ("job_id", "j"), ("np", "2")].as_slice(), options].concat();
        checked(&all, environ).unwrap().warnings.join("\n")
    };
    assert!(said(&[("scale", "1")], &[]).contains("--scale 1 has no effect"));
    assert!(said(&[("force", "True")], &[]).contains("--force True has no effect"));
    assert!(said(&[], &[("PADDLE_ELASTIC_FORCE", "1")]).contains("PADDLE_ELASTIC_FORCE 1 has no effect"));
    assert!(said(&[("max_restart", "2")], &[]).contains("--max_restart has no effect"));
    assert_eq!(said(&[], &[]), "");
    let no =
        |more: (&'static str, &str)| refused(&[("elastic_server", "a:1"), ("job_id", "j"), ("np", "2"), more], &[]);
    assert!(no(("server_num", "1")).contains("a job with parameter servers cannot be elastic"));
    assert!(no(("master", "a:1")).contains("does not have this option"));
    assert!(
        refused(&[("elastic_server", "nowhere"), ("job_id", "j"), ("np", "2")], &[])
            .contains("is not an address of etcd")
    );
    let mapping = ("enable_auto_mapping", "1");
    assert!(no(mapping).contains("cannot be combined with an elastic job"));
}

#[test]
fn ranks_see_nodes_with_different_numbers_of_ranks() {
    let spec = checked(&[("elastic_server", "a:1"), ("job_id", "j"), ("np", "2"), ("host", "b")], &[]).unwrap();
    let JobKind::Legacy(legacy) = &spec.job else { panic!("not the legacy launcher") };
    let share = |indices: &str| DeviceShare {
        binding: Binding::Selected { kind: "gpu".into(), indices: indices.into() },
        lists: EnvDelta::new(),
    };
    let rank = |rank, host, port, gpus| LegacyRank { rank, endpoint: Endpoint::new(host, port), share: share(gpus) };
    let nodes = vec![vec![rank(0, "a", 1, "0,1")], vec![rank(1, "b", 2, "2"), rank(2, "b", 3, "3")]];
    let interface = Some("eth0".into());
    let site = RankLayout { nodes, own: 1, ports_from: String::new(), warnings: Vec::new(), interface };
    let visible = VisibleDevices { kind: "gpu", from: None, devices: Vec::new(), all: false };
    let ground = DeviceBackend { backend: "nccl", message: None, visible };
    let facts = LaunchContext {
        python: "python".into(),
        log_dir: "/log".into(),
        pod_name: "abcdef".into(),
        gloo_tmpdir: "/tmp/x".into(),
    };
    let itself = LauncherInfo { gloo_dir: "/tmp/own".into(), mapping: "/m.json".into(), args: String::new() };
    let plan = plan(&spec, legacy, &EnvVars::new(), &facts, (&site, &ground, &itself)).unwrap();
    assert_eq!((plan.nnodes, plan.world_size, plan.ranks.len()), (2, 3, 2));
    let env = |local: usize, name: &str| plan.ranks[local].env.get(name).map(str::to_owned).unwrap_or_default();
    assert_eq!([env(0, "PADDLE_TRAINER_ID"), env(1, "PADDLE_TRAINER_ID")], ["1", "2"]);
    assert_eq!([env(0, "PADDLE_RANK_IN_NODE"), env(1, "PADDLE_RANK_IN_NODE")], ["0", "1"]);
    for (name, value) in [
        ("PADDLE_TRAINERS", "a,b"),
        ("PADDLE_TRAINERS_NUM", "3"),
        ("PADDLE_TRAINER_ENDPOINTS", "a:1,b:2,b:3"),
        ("DISTRIBUTED_TRAINER_ENDPOINTS", "a:1,b:2,b:3"),
        ("PADDLE_WORLD_DEVICE_IDS", "0:1,2,3"),
        ("GLOO_SOCKET_IFNAME", "eth0"),
    ] {
        assert_eq!((env(0, name), env(1, name)), (value.to_owned(), value.to_owned()), "{name}");
    }
    assert!(plan.ranks.iter().all(|rank| rank.env.vars().iter().all(|(name, _)| is_declared(name))));
}

// --- The agreement, as such jobs use it. -------------------------------------------------------------------------

struct Agreed {
    coordinator: Coordinator,
    rules: JobRules,
}

impl Agreed {
    fn new(rules: JobRules) -> Self {
        Self { coordinator: Coordinator::new(Duration::ZERO), rules }
    }

    fn record(&mut self, id: &str, standing: NodeStatus, at: u64) {
        let offer = NodeInfo { name: id.into(), rules: self.rules.clone(), ..NodeInfo::default() };
        self.coordinator.record(
            id,
            NodeRecord { format: FORMAT, info: offer, status: standing },
            Duration::from_secs(at),
        );
    }

    fn turn(&mut self, at: u64) -> (u64, JobPhase) {
        self.coordinator.turn(Duration::from_secs(at));
        let state = self.coordinator.state();
        (state.round, state.phase.clone())
    }
}

fn rules() -> JobRules {
    JobRules {
        frontend: "paddle, legacy".into(),
        min: 1,
        max: 4,
        last_call_ms: 120_000,
        no_last_call_at: Some(2),
        join_ms: 1_200_000,
        on_failure: OnFailure::Hold,
        on_loss: OnNodeLoss::Regroup,
        ..JobRules::default()
    }
}

#[test]
fn as_many_as_are_usual_wait_for_no_more() {
    let mut job = Agreed::new(rules());
    job.record("a", NodeStatus::Ready { seen: 0 }, 0);
    assert_eq!(job.turn(0), (0, JobPhase::Gathering));
    job.record("b", NodeStatus::Ready { seen: 0 }, 1);
    assert_eq!(job.turn(1), (1, JobPhase::Running));
    for id in ["a", "b"] {
        job.record(id, NodeStatus::runs(1), 2);
    }
    job.coordinator.gone("b", Departure::Left, Duration::from_secs(3));
    assert!(matches!(job.turn(3), (1, JobPhase::Stopping { .. })));
    job.record("a", NodeStatus::Ready { seen: 1 }, 4);
    assert_eq!(job.turn(4), (1, JobPhase::Gathering), "fewer than before wait");
    job.record("c", NodeStatus::Ready { seen: 1 }, 5);
    assert_eq!(job.turn(5), (2, JobPhase::Running), "one came in its place");
}

#[test]
fn a_relaunch_request_uses_up_no_restart_and_removes_no_node() {
    for on_failure in [OnFailure::Hold, OnFailure::Restart, OnFailure::End] {
        let mut job = Agreed::new(JobRules { on_failure, restarts: 0, ..rules() });
        for id in ["a", "b"] {
            job.record(id, NodeStatus::Ready { seen: 0 }, 0);
        }
        for round in 1..=3 {
            assert_eq!(job.turn(round), (round, JobPhase::Running), "{on_failure:?}");
            job.record("b", NodeStatus::runs(round), round);
            let failure = RankFailure { again: true, status: 101, ..RankFailure::default() };
            job.record("a", NodeStatus::Failed { round, failure }, round);
            assert!(matches!(job.turn(round), (_, JobPhase::Stopping { end: None, .. })));
            for id in ["a", "b"] {
                job.record(id, NodeStatus::Ready { seen: round }, round);
            }
        }
        job.turn(4);
        assert_eq!((job.coordinator.state().failures, &job.coordinator.state().held_failure), (0, &None));
    }
    let mut job = Agreed::new(JobRules { on_failure: OnFailure::End, ..rules() });
    for id in ["a", "b"] {
        job.record(id, NodeStatus::Ready { seen: 0 }, 0);
    }
    job.turn(0);
    job.record("a", NodeStatus::Failed { round: 1, failure: RankFailure::default() }, 1);
    job.record("b", NodeStatus::Ready { seen: 1 }, 1);
    assert!(matches!(job.turn(1), (1, JobPhase::Ended { end: JobEnd::Failed { .. } })), "a failure ends it");
    assert_eq!([AfterFailure::AwaitRestart, AfterFailure::GoOnWithout].map(AfterFailure::status), [101, 3]);
}
