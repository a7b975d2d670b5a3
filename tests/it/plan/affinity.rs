//! Which CPUs ranks are bound to, on machines of several shapes. Tables are snapshots.

use proptest::prelude::*;
use rlaunch::model::CpuSet;
use rlaunch::plan::devices::affinity::{CpuBinding, CpuTopology, TopologyFacts, bind};
use rlaunch::spec::torchrun::NumaBinding;
use std::collections::BTreeSet;

/// A machine whose second threads are numbered after all first ones, as x86 has them.
#[derive(Clone, Copy, Debug)]
struct Shape {
    sockets: u16,
    /// In each socket.
    nodes: u16,
    /// In each node.
    cores: u16,
    /// In each core.
    threads: u16,
    /// Cores that share their last cache.
    complex: u16,
}

impl Shape {
    fn all_cores(&self) -> u16 {
        self.sockets * self.nodes * self.cores
    }

    fn of_cores(&self, cores: impl Iterator<Item = u16>) -> CpuSet {
        let cores: Vec<u16> = cores.collect();
        (0..self.threads).flat_map(|thread| cores.iter().map(move |core| thread * self.all_cores() + core)).collect()
    }

    fn facts(&self, devices: &[u32]) -> TopologyFacts {
        let nodes = (0..self.sockets * self.nodes).map(|node| {
            let first = node * self.cores;
            (u32::from(node), self.of_cores(first..first + self.cores))
        });
        let cpu = |number: u16| {
            let core = number % self.all_cores();
            let complex = core / self.complex * self.complex;
            CpuTopology {
                package: Some(i32::from(core / (self.nodes * self.cores))),
                core: self.of_cores(core..core + 1),
                cache: self.of_cores(complex..complex + self.complex),
            }
        };
        let all = 0..self.all_cores() * self.threads;
        TopologyFacts {
            allowed: all.clone().collect(),
            nodes: nodes.collect(),
            cpus: all.map(|number| (number, cpu(number))).collect(),
            devices: devices.iter().copied().map(Some).collect(),
        }
    }
}

const SMALL: Shape = Shape { sockets: 1, nodes: 1, cores: 4, threads: 1, complex: 4 };
const TWO_SOCKETS: Shape = Shape { sockets: 2, nodes: 2, cores: 8, threads: 2, complex: 8 };
const AMD: Shape = Shape { sockets: 1, nodes: 2, cores: 24, threads: 2, complex: 8 };

fn only(mut facts: TopologyFacts, allowed: &str) -> TopologyFacts {
    facts.allowed = CpuSet::parse(allowed).unwrap();
    facts.cpus.retain(|cpu, _| facts.allowed.iter().any(|allowed| allowed == *cpu));
    facts
}

fn table(cases: &[(&str, TopologyFacts, usize)]) -> String {
    let mut text = String::new();
    for (name, facts, ranks) in cases {
        text += &format!("{name}, {ranks} ranks\n");
        for kind in NumaBinding::ALL {
            text += &format!("  {}\n", kind.name());
            match bind(kind, facts, *ranks) {
                Ok(bound) => {
                    bound.iter().enumerate().for_each(|(rank, bound)| text += &format!("    {rank}: {bound}\n"))
                }
                Err(error) => text += &format!("    error: {error}\n"),
            }
        }
    }
    text
}

#[test]
fn one_node_with_four_cpus() {
    insta::assert_snapshot!(table(&[
        ("no device", SMALL.facts(&[]), 1),
        ("no device", SMALL.facts(&[]), 3),
        ("no device", SMALL.facts(&[]), 5),
        ("two devices", SMALL.facts(&[0, 0]), 1),
        ("two devices", SMALL.facts(&[0, 0]), 2),
        ("two devices", SMALL.facts(&[0, 0]), 3),
    ]));
}

#[test]
fn two_sockets_with_two_nodes_each() {
    insta::assert_snapshot!(table(&[
        ("two devices a node", TWO_SOCKETS.facts(&[0, 0, 1, 1, 2, 2, 3, 3]), 8),
        ("devices in no order", TWO_SOCKETS.facts(&[3, 0, 3, 3]), 4),
        ("no device", TWO_SOCKETS.facts(&[]), 2),
        ("no device", TWO_SOCKETS.facts(&[]), 4),
        ("no device", TWO_SOCKETS.facts(&[]), 6),
    ]));
}

#[test]
fn core_complexes_of_eight() {
    insta::assert_snapshot!(table(&[
        ("four devices a node", AMD.facts(&[0, 0, 0, 0, 1, 1, 1, 1]), 8),
        ("no device", AMD.facts(&[]), 6),
        // Of the first complex half is left: it comes last.
        ("a mask", only(AMD.facts(&[0, 0, 0]), "4-23,48-71"), 3),
    ]));
}

#[test]
fn a_mask_leaves_a_part() {
    insta::assert_snapshot!(table(&[
        ("of one socket's two nodes", only(TWO_SOCKETS.facts(&[0, 1]), "2-9,34"), 2),
        ("nothing for the second device", only(TWO_SOCKETS.facts(&[0, 1]), "0-7"), 2),
        ("nodes 1 and 3, no device", only(TWO_SOCKETS.facts(&[]), "8-10,24-27"), 3),
        ("one CPU, no device", only(SMALL.facts(&[]), "3"), 2),
    ]));
}

#[test]
fn missing_kernel_topology_is_reported() {
    let mut unknown = SMALL.facts(&[]);
    unknown.cpus.values_mut().for_each(|cpu| *cpu = CpuTopology::default());
    let mut lost = TWO_SOCKETS.facts(&[0, 0]);
    lost.devices[1] = None;
    let mut single = SMALL.facts(&[0, 0]);
    single.devices[1] = None;
    let mut elsewhere = SMALL.facts(&[]);
    elsewhere.allowed = CpuSet::parse("9").unwrap();
    insta::assert_snapshot!(table(&[
        ("nothing of cores, sockets and caches", unknown, 1),
        ("nothing of the second device", lost.clone(), 2),
        ("nothing of a device without a rank", lost, 1),
        ("nothing of a device, but there is one node", single, 2),
        ("a device on a node that is not shown", SMALL.facts(&[5]), 1),
        ("allowed CPUs on no node", elsewhere, 1),
    ]));
}

fn shapes() -> impl Strategy<Value = Shape> {
    (1..3u16, 1..4u16, 1..9u16, 1..3u16, 1..5u16).prop_map(|(sockets, nodes, cores, threads, complex)| {
        let complex = complex.min(cores);
        Shape { sockets, nodes, cores: cores / complex * complex, threads, complex }
    })
}

proptest! {
    #[test]
    fn no_rank_is_bound_to_no_cpu_or_beyond_the_mask(
        shape in shapes(),
        devices in prop::collection::vec(0..6u32, 0..9),
        mask in prop::collection::btree_set(0..96u16, 0..96),
        ranks in 0..10usize,
    ) {
        let devices: Vec<u32> = devices.iter().map(|node| node % u32::from(shape.sockets * shape.nodes)).collect();
        let facts = shape.facts(&devices);
        let allowed: CpuSet = mask.iter().copied().collect();
        let facts = only(facts.clone(), &allowed.intersect(&facts.allowed).to_string());
        for kind in NumaBinding::ALL {
            let Ok(bound) = bind(kind, &facts, ranks) else { continue };
            prop_assert_eq!(bound.len(), ranks);
            for CpuBinding { cpus, node, .. } in &bound {
                prop_assert!(!cpus.is_empty());
                prop_assert_eq!(&cpus.intersect(&facts.allowed), cpus);
                let own = facts.nodes[node].clone();
                prop_assert!(kind == NumaBinding::Socket || cpus.intersect(&own) == *cpus);
            }
            if kind == NumaBinding::Exclusive {
                let all: BTreeSet<u16> = bound.iter().flat_map(|bound| bound.cpus.iter()).collect();
                prop_assert_eq!(all.len(), bound.iter().map(|bound| bound.cpus.len()).sum::<usize>());
            }
        }
    }

    #[test]
    fn ranks_without_devices_are_spread_evenly_and_in_order(shape in shapes(), ranks in 1..20usize) {
        let bound = bind(NumaBinding::Node, &shape.facts(&[]), ranks).unwrap();
        let nodes: Vec<u32> = bound.iter().map(|bound| bound.node).collect();
        prop_assert!(nodes.is_sorted());
        let on = |node: u32| nodes.iter().filter(|n| **n == node).count();
        let counts: Vec<usize> = (0..u32::from(shape.sockets * shape.nodes)).map(on).collect();
        prop_assert!(counts.iter().max().unwrap() - counts.iter().min().unwrap() <= 1, "{counts:?}");
    }
}
