//! Planning a large job, all nodes of it: its time and memory. One JSON object on stdout,
//! which `bench.py plan` reads.
#![allow(clippy::expect_used)] // A bench fails by panicking.
#![allow(clippy::disallowed_methods)] // It measures time by itself.

use rlaunch::framework::Binding;
use rlaunch::model::EnvDelta;
use rlaunch::plan::cluster::{Cluster, ClusterNode};
use rlaunch::plan::devices::assign::DeviceShare;
use rlaunch::plan::{LaunchContext, Plan, collective};
use rlaunch::spec::options::EnvVars;
use rlaunch::spec::paddle::launch;
use rlaunch::spec::paddle::options::merge;
use std::collections::BTreeMap;
use std::time::Instant;

const ON_A_NODE: usize = 8;

/// The plans of the first `planned` of so many nodes.
fn plans(nodes: usize, planned: usize) -> Vec<Plan> {
    let vars = EnvVars::new();
    let spec = launch::check(&merge(&BTreeMap::new(), &vars), &vars, &["train.py".into()]).expect("options");
    let facts = LaunchContext {
        python: "python".into(),
        log_dir: "/log".into(),
        pod_name: "abcdef".into(),
        gloo_tmpdir: String::new(),
    };
    let binding = |i: usize| Binding::Selected { kind: "gpu".into(), indices: i.to_string() };
    let shares: Vec<_> = (0..ON_A_NODE).map(|i| DeviceShare { binding: binding(i), lists: EnvDelta::new() }).collect();
    let node = |i: usize| ClusterNode {
        host: format!("10.{}.{}.1", i / 250, i % 250),
        ports: (6070..).take(ON_A_NODE).collect(),
    };
    let cluster = Cluster::new((0..nodes).map(node).collect(), 0);
    let plan = |own: usize| {
        let cluster = Cluster { own, first_rank: own * ON_A_NODE, ..cluster.clone() };
        collective::plan(&spec, &vars, &facts, &shares, &cluster).expect("a plan")
    };
    (0..planned).map(plan).collect()
}

/// Of this process, in bytes.
fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").expect("/proc");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("VmRSS");
    line.trim().trim_end_matches(" kB").parse::<usize>().expect("a number") * 1024
}

fn main() {
    let mut grown = Vec::new();
    let mut kept = Vec::new();
    for nodes in [1250, 2500, 5000] {
        let before = resident();
        kept.push(plans(nodes, nodes));
        grown.push((resident() - before) / (nodes * ON_A_NODE));
    }
    let ranks: Vec<usize> = kept.iter().map(|plans| plans.iter().map(|plan| plan.ranks.len()).sum()).collect();
    drop(kept);
    let all = median(|| assert_eq!(plans(1250, 1250)[1249].ranks[7].rank, 9999));
    let one = median(|| assert_eq!(plans(1250, 1)[0].ranks.len(), ON_A_NODE));
    println!("{}", serde_json::json!({ "ranks": ranks, "all_ms": all, "one_ms": one, "bytes_a_rank": grown }));
}

/// Of 21 runs, in milliseconds.
fn median(run: impl Fn()) -> f64 {
    let once = |_| {
        let start = Instant::now();
        run();
        start.elapsed().as_secs_f64() * 1000.0
    };
    let mut times: Vec<f64> = (0..21).map(once).collect();
    times.sort_by(f64::total_cmp);
    times[10]
}
