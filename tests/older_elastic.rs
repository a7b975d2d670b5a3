//! Elastic jobs in the older launcher's words: what their options and variables come to, and what their ranks are told.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // A test fails by panicking.

use rlaunch::dialect::{Binding, is_declared};
use rlaunch::model::{Endpoint, EnvPatch};
use rlaunch::plan::HostFacts;
use rlaunch::plan::devices::{Share, Visible};
use rlaunch::plan::legacy::{Ground, Itself, Member, Site, plan};
use rlaunch::rendezvous::agree::{
    Coordinator, End, Failure, Offer, OnFailure, OnLoss, Phase, Record, Rules, Standing, record::FORMAT,
};
use rlaunch::spec::job::Job;
use rlaunch::spec::legacy::{Layout, Start};
use rlaunch::spec::meeting::{At, Level};
use rlaunch::spec::older_elastic::{AfterFailure, Elastic};
use rlaunch::spec::options::{Vars, merge};
use rlaunch::spec::{LaunchSpec, SpecError, launch};
use std::collections::BTreeMap;
use std::time::Duration;

fn checked(options: &[(&'static str, &str)], environ: &[(&str, &str)]) -> Result<LaunchSpec, SpecError> {
    let vars: Vars = environ.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    let flags: BTreeMap<_, _> = options.iter().map(|(name, value)| (*name, (*value).to_owned())).collect();
    launch::check(&merge(&flags, &vars), &vars, &["train.py".into()])
}

fn elastic(options: &[(&'static str, &str)], environ: &[(&str, &str)]) -> Elastic {
    let all = [[("elastic_server", "10.0.0.9:2379"), ("job_id", "j")].as_slice(), options].concat();
    let spec = checked(&all, environ).unwrap();
    let Job::Legacy(older) = spec.job else { panic!("not the older launcher") };
    let elastic = older.elastic.expect("an elastic job");
    assert_eq!(spec.meeting.as_ref(), Some(&elastic.meeting));
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
        matches!(checked(&legacy, environ).unwrap().job, Job::Legacy(older) if older.elastic.is_some())
    };
    assert!(is_elastic(&[], &ON));
    for missing in ON {
        let some: Vec<_> = ON.into_iter().filter(|one| *one != missing).collect();
        assert!(!is_elastic(&[], &some), "without {}", missing.0);
    }
    assert!(is_elastic(&[("np", "2")], &ON[..2]));
    let service = [("PADDLE_ELASTIC_ETCD_SERVICE_HOST", "s"), ("PADDLE_ELASTIC_ETCD_SERVICE_PORT", "23"), ON[1], ON[2]];
    assert!(is_elastic(&[], &service));
    assert_eq!(checked(&[], &ON).unwrap().job, Job::Collective, "they are the older launcher's variables");
    assert!(refused(&[("np", "2")], &[]).contains("needs --elastic_server, --job_id and --np"));
}

#[test]
fn the_command_line_beats_the_variables() {
    let spec = checked(&[("elastic_server", "a:1"), ("job_id", "mine"), ("np", "3:4")], &ON).unwrap();
    assert_eq!(spec.job_id, "mine");
    let meeting = spec.meeting.unwrap();
    assert_eq!((meeting.name.as_str(), meeting.nodes), ("mine", (3, 4)));
    let At::Etcd(etcd) = meeting.at else { panic!("no etcd") };
    assert_eq!((etcd.endpoints, etcd.tls), (vec![Endpoint::new("a", 1)], false));
    let spec = checked(&[("legacy", "1")], &ON).unwrap();
    assert_eq!((spec.job_id.as_str(), spec.meeting.unwrap().nodes), ("j", (2, 2)));
}

#[test]
fn numbers_of_nodes_are_fixed_or_a_range() {
    let of = |np, environ: &[(&str, &str)]| {
        let elastic = elastic(&[("np", np)], environ);
        (elastic.meeting.nodes, elastic.after_failure.status())
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
            .contains("is no level")
    );
}

#[test]
fn a_list_counts_nodes_and_places_them() {
    let found = elastic(&[("np", "2"), ("ips", "a,b,c"), ("host", "b")], &[]);
    assert_eq!((found.meeting.nodes, found.place, found.meeting.rank), ((3, 3), Some(1), None));
    let found = elastic(&[("np", "1:9"), ("ips", "a,b,c"), ("host", "d")], &[]);
    assert_eq!((found.meeting.nodes, found.place, found.usual), ((1, 9), None, 3));
    let cloud = [("PADDLE_TRAINERS", "a,b"), ("POD_IP", "b"), ("PADDLE_TRAINER_ID", "1"), ("TRAINER_PORTS_NUM", "1")];
    let found = elastic(&[("np", "2")], &[cloud.as_slice(), &[("PADDLE_PORT", "7000")]].concat());
    assert_eq!((found.place, found.meeting.rank, found.ports), (Some(1), Some(1), Some((7000, "PADDLE_PORT"))));
    assert_eq!(found.meeting.host.as_deref(), Some("b"));
    let found = elastic(&[("np", "1:9")], &cloud);
    assert_eq!(
        (found.place, found.meeting.rank, found.usual),
        (Some(1), None, 2),
        "numbers are those of the beginning"
    );
}

#[test]
fn times_are_as_they_were() {
    let times = |environ: &[(&str, &str)]| {
        let meeting = elastic(&[("np", "1:2")], environ).meeting;
        [meeting.last_call, meeting.join, meeting.lease].map(|time| time.as_secs())
    };
    assert_eq!(times(&[]), [120, 1200, 60]);
    assert_eq!(times(&[("PADDLE_ELASTIC_TIMEOUT", "5"), ("PADDLE_ELASTIC_TTL", "6")]), [5, 120, 6]);
    assert_eq!(times(&[("RLAUNCH_JOIN_TIMEOUT", "7"), ("RLAUNCH_LEASE", "8")]), [120, 7, 8]);
    let text = refused(&[("legacy", "1")], &[ON[0], ON[1], ON[2], ("PADDLE_ELASTIC_TTL", "1")]);
    assert!(text.starts_with("PADDLE_ELASTIC_TTL 1: "), "{text}");
    assert_eq!(elastic(&[("np", "1:2")], &[]).meeting.level, Level::Hold);
}

#[test]
fn this_node_is_laid_out_alone() {
    let spec = checked(&[("elastic_server", "a:1"), ("job_id", "j"), ("np", "2"), ("host", "b")], &[]).unwrap();
    let Job::Legacy(older) = spec.job else { panic!("not the older launcher") };
    let Layout::Nodes(list, start) = older.layout else { panic!("no list") };
    assert_eq!((list.hosts.len(), list.hosts[0].name.as_str(), start), (1, "b", Start::Free));
    let fixed = elastic(&[("np", "2")], &[("FLAGS_START_PORT", "6100"), ("PADDLE_PORT", "7000")]);
    assert_eq!(fixed.ports, Some((6100, "FLAGS_START_PORT")), "the other one is the platform's");
}

#[test]
fn what_has_no_effect_is_said_and_what_cannot_be_is_refused() {
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
    assert!(no(("server_num", "1")).contains("no job with parameter servers is elastic"));
    assert!(no(("master", "a:1")).contains("no such option"));
    assert!(
        refused(&[("elastic_server", "nowhere"), ("job_id", "j"), ("np", "2")], &[]).contains("no address of an etcd")
    );
    let mapping = ("enable_auto_mapping", "1");
    assert!(no(mapping).contains("where its nodes are"));
}

#[test]
fn ranks_are_told_of_nodes_with_their_own_numbers_of_ranks() {
    let spec = checked(&[("elastic_server", "a:1"), ("job_id", "j"), ("np", "2"), ("host", "b")], &[]).unwrap();
    let Job::Legacy(older) = &spec.job else { panic!("not the older launcher") };
    let share = |indices: &str| Share {
        binding: Binding::Selected { kind: "gpu".into(), indices: indices.into() },
        lists: EnvPatch::new(),
    };
    let rank = |rank, host, port, gpus| Member { rank, endpoint: Endpoint::new(host, port), share: share(gpus) };
    let nodes = vec![vec![rank(0, "a", 1, "0,1")], vec![rank(1, "b", 2, "2"), rank(2, "b", 3, "3")]];
    let interface = Some("eth0".into());
    let site = Site { nodes, own: 1, ports_from: String::new(), warnings: Vec::new(), interface };
    let visible = Visible { kind: "gpu", from: None, devices: Vec::new(), all: false };
    let ground = Ground { backend: "nccl", words: None, visible };
    let facts = HostFacts {
        python: "python".into(),
        log_dir: "/log".into(),
        pod_name: "abcdef".into(),
        temporary: "/tmp/x".into(),
    };
    let itself = Itself { folder: "/tmp/own".into(), mapping: "/m.json".into(), args: String::new() };
    let plan = plan(&spec, older, &Vars::new(), &facts, (&site, &ground, &itself)).unwrap();
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
    rules: Rules,
}

impl Agreed {
    fn new(rules: Rules) -> Self {
        Self { coordinator: Coordinator::new(Duration::ZERO), rules }
    }

    fn says(&mut self, id: &str, standing: Standing, at: u64) {
        let offer = Offer { name: id.into(), rules: self.rules.clone(), ..Offer::default() };
        self.coordinator.record(id, Record { format: FORMAT, offer, standing }, Duration::from_secs(at));
    }

    fn turn(&mut self, at: u64) -> (u64, Phase) {
        self.coordinator.turn(Duration::from_secs(at));
        let state = self.coordinator.state();
        (state.round, state.phase.clone())
    }
}

fn rules() -> Rules {
    Rules {
        door: "paddle, older".into(),
        min: 1,
        max: 4,
        last_call_ms: 120_000,
        at_once: Some(2),
        join_ms: 1_200_000,
        on_failure: OnFailure::Hold,
        on_loss: OnLoss::Regroup,
        ..Rules::default()
    }
}

#[test]
fn as_many_as_are_usual_wait_for_no_more() {
    let mut job = Agreed::new(rules());
    job.says("a", Standing::Ready { seen: 0 }, 0);
    assert_eq!(job.turn(0), (0, Phase::Gathering));
    job.says("b", Standing::Ready { seen: 0 }, 1);
    assert_eq!(job.turn(1), (1, Phase::Running));
    for id in ["a", "b"] {
        job.says(id, Standing::Runs { round: 1 }, 2);
    }
    job.coordinator.gone("b", Duration::ZERO, Duration::from_secs(3));
    assert!(matches!(job.turn(3), (1, Phase::Stopping { .. })));
    job.says("a", Standing::Ready { seen: 1 }, 4);
    assert_eq!(job.turn(4), (1, Phase::Gathering), "fewer than before wait");
    job.says("c", Standing::Ready { seen: 1 }, 5);
    assert_eq!(job.turn(5), (2, Phase::Running), "one came in its place");
}

#[test]
fn a_wish_to_launch_again_uses_nothing_up_and_sends_nobody_away() {
    for on_failure in [OnFailure::Hold, OnFailure::Restart, OnFailure::End] {
        let mut job = Agreed::new(Rules { on_failure, restarts: 0, ..rules() });
        for id in ["a", "b"] {
            job.says(id, Standing::Ready { seen: 0 }, 0);
        }
        for round in 1..=3 {
            assert_eq!(job.turn(round), (round, Phase::Running), "{on_failure:?}");
            job.says("b", Standing::Runs { round }, round);
            let failure = Failure { again: true, status: 101, ..Failure::default() };
            job.says("a", Standing::Failed { round, failure }, round);
            assert!(matches!(job.turn(round), (_, Phase::Stopping { end: None, .. })));
            for id in ["a", "b"] {
                job.says(id, Standing::Ready { seen: round }, round);
            }
        }
        job.turn(4);
        assert_eq!((job.coordinator.state().failures, &job.coordinator.state().goes), (0, &None));
    }
    let mut job = Agreed::new(Rules { on_failure: OnFailure::End, ..rules() });
    for id in ["a", "b"] {
        job.says(id, Standing::Ready { seen: 0 }, 0);
    }
    job.turn(0);
    job.says("a", Standing::Failed { round: 1, failure: Failure::default() }, 1);
    job.says("b", Standing::Ready { seen: 1 }, 1);
    assert!(matches!(job.turn(1), (1, Phase::Ended { end: End::Failed { .. } })), "a failure ends it");
    assert_eq!([AfterFailure::StartAgain, AfterFailure::Without].map(AfterFailure::status), [101, 3]);
}
