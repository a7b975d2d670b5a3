//! Jobs with parameter servers whose nodes find each other: who is asked to, and what each node then runs.

use super::ps::{ask, facts, table_of};
use proptest::prelude::*;
use rlaunch::model::{Endpoint, Role};
use rlaunch::plan::Plan;
use rlaunch::plan::ps::{self, PsNode, WorkerDevices};
use rlaunch::spec::paddle::job::JobKind;
use rlaunch::spec::paddle::ps::{PsLauncher, PsProcesses, PsSpec};
use rlaunch::spec::rendezvous::ElasticLevel;

/// The plan of node `own` of a job whose nodes have found each other; each has these numbers of servers and workers.
fn planned_of_nodes(nodes: &[(usize, usize)], own: usize, host: impl Fn(usize) -> String) -> Plan {
    let mut port = 40_000;
    let mut endpoints = |node: usize, count: usize| -> Vec<Endpoint> {
        let next = |_| {
            port += 1;
            Endpoint::new(host(node), port)
        };
        (0..count).map(next).collect()
    };
    let nodes: Vec<PsNode> = nodes
        .iter()
        .enumerate()
        .map(|(node, (servers, workers))| PsNode {
            servers: endpoints(node, *servers),
            workers: endpoints(node, *workers),
        })
        .collect();
    let (spec, vars) = ask(&format!("--run_mode ps --nnodes {}", nodes.len()));
    let spec = spec.unwrap();
    let JobKind::Ps(PsSpec::Processes(laid)) = &spec.job else { panic!("{:?}", spec.job) };
    let laid = PsProcesses { launcher: PsLauncher::Launch { nnodes: Some(nodes.len()) }, ..(**laid).clone() };
    let layout = ps::layout_of_nodes(&nodes, own, Endpoint::new(host(0), 6767));
    ps::plan(&spec, &laid, &vars, &facts(), &WorkerDevices::default(), &layout).unwrap()
}

#[test]
fn of_a_node_whose_job_has_found_the_others() {
    let plan = planned_of_nodes(&[(1, 2), (2, 1), (1, 1)], 1, |node| format!("10.0.0.{}", node + 1));
    insta::assert_snapshot!(table_of(&plan));
}

#[test]
fn nodes_that_find_each_other_are_asked_for_by_their_number() {
    let rendezvous = |words: &str| ask(words).0.unwrap().rendezvous;
    assert_eq!(rendezvous("--server_num 1"), None);
    assert_eq!(rendezvous("--server_num 1 --nnodes 1 --master etcd://a:1"), None);
    assert_eq!(rendezvous("--servers a:1,b:1 --trainers a:2 --nnodes 2 --master a:3"), None, "they are listed");
    let found = rendezvous("--server_num 1 --nnodes 2 --master 10.0.0.1:6768 --rank 1 --elastic_level 1").unwrap();
    assert_eq!((found.nodes, found.node_rank, found.elastic_level), ((2, 2), Some(1), ElasticLevel::Off));
    let spec = ask("--trainer_num 2 --nnodes 2").0.unwrap();
    let JobKind::Ps(here) = spec.job else { panic!("{:?}", spec.job) };
    let PsSpec::Processes(there) = here.at("10.0.0.7") else { panic!("by number") };
    assert!(there.addresses().chain([&there.http]).all(|address| address.host == "10.0.0.7"));
}

proptest! {
    /// Whatever the nodes have, and also if they share an address: each process runs on one node, with a number of its own.
    #[test]
    fn nodes_that_found_each_other_share_the_processes(
        nodes in prop::collection::vec((1usize..4, 1usize..4), 1..5), same_host in any::<bool>()
    ) {
        let host = |node: usize| if same_host { "10.0.0.1".to_owned() } else { format!("10.0.0.{node}") };
        let plans: Vec<Plan> = (0..nodes.len()).map(|own| planned_of_nodes(&nodes, own, host)).collect();
        let ranks: Vec<_> = plans.iter().flat_map(|plan| &plan.ranks).collect();
        for (role, list) in [(Role::Server, "PADDLE_PSERVERS_IP_PORT_LIST"), (Role::Trainer, "PADDLE_TRAINER_ENDPOINTS")] {
            let of_role: Vec<_> = ranks.iter().filter(|rank| rank.role == role).collect();
            let numbers: Vec<usize> = of_role.iter().map(|rank| rank.rank).collect();
            prop_assert_eq!(numbers, (0..of_role.len()).collect::<Vec<_>>());
            let own: Vec<String> = of_role.iter().map(|rank| rank.endpoint.as_ref().unwrap().to_string()).collect();
            for rank in &ranks {
                prop_assert_eq!(rank.env.get(list).map(str::to_owned), Some(own.join(",")));
            }
        }
        let count = nodes.len().to_string();
        prop_assert!(plans.iter().all(|plan| plan.nnodes == nodes.len()));
        prop_assert!(ranks.iter().all(|rank| rank.env.get("PADDLE_NNODES") == Some(&count)));
    }
}
