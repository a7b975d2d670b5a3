//! CPU affinity: binds each rank to CPUs near its device, by the rules of torchrun's `--numa-binding`
//! (`torch.numa.binding` of torch 2.15). The device of a rank is the visible one with the number of its local rank.
//!
//! Without any device, torchrun fails. rlaunch distributes the ranks evenly over the NUMA nodes with allowed CPUs: of `n`
//! ranks and `k` nodes, rank `r` gets node `r * k / n`. Each rank then counts as a device on its node, and the same
//! rules apply.

use crate::model::CpuSet;
use crate::spec::SpecError;
use crate::spec::torchrun::NumaBinding;
use std::collections::BTreeMap;
use std::fmt;

/// Topology of one CPU. What the kernel does not report is empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CpuTopology {
    /// Socket.
    pub package: Option<i32>,
    /// CPUs on its physical core, itself included.
    pub core: CpuSet,
    /// CPUs that share its highest-level data cache, itself included.
    pub cache: CpuSet,
}

/// Topology of the machine, as far as binding depends on it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TopologyFacts {
    /// CPUs that this process may run on.
    pub allowed: CpuSet,
    /// All CPUs of each NUMA node.
    pub nodes: BTreeMap<u32, CpuSet>,
    /// Topology of the allowed CPUs.
    pub cpus: BTreeMap<u16, CpuTopology>,
    /// NUMA node of each visible device, in their order; `None` if the kernel does not report it.
    pub devices: Vec<Option<u32>>,
}

/// Binding of one rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CpuBinding {
    /// Its CPUs, at least one.
    pub cpus: CpuSet,
    /// NUMA node of the CPUs.
    pub node: u32,
    /// The device of the rank, if there are devices.
    pub device: Option<usize>,
}

impl fmt::Display for CpuBinding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plural = if self.cpus.len() == 1 { "" } else { "s" };
        write!(f, "CPU{plural} {} (NUMA node {}", self.cpus, self.node)?;
        self.device.map_or(Ok(()), |device| write!(f, ", device {device}"))?;
        f.write_str(")")
    }
}

/// Binds each of `ranks` local ranks.
pub fn bind(kind: NumaBinding, facts: &TopologyFacts, ranks: usize) -> Result<Vec<CpuBinding>, SpecError> {
    let rank_nodes = facts.rank_nodes(ranks);
    (0..ranks).map(|rank| facts.bind(kind, &rank_nodes, rank).map_err(|error| error.of(kind, rank))).collect()
}

/// Why a rank cannot be bound, and the remedy.
struct AffinityError {
    why: String,
    hint: &'static str,
}

impl AffinityError {
    fn of(self, kind: NumaBinding, rank: usize) -> SpecError {
        SpecError::new("--numa-binding", kind.name(), format!("local rank {rank}: {}", self.why), self.hint)
    }
}

fn refuse<T>(why: String, hint: &'static str) -> Result<T, AffinityError> {
    Err(AffinityError { why, hint })
}

const UNBOUND: &str = "leave the option out";

impl TopologyFacts {
    /// The node of each device, or of each rank if there is no device.
    fn rank_nodes(&self, ranks: usize) -> Vec<Option<u32>> {
        if !self.devices.is_empty() {
            let only = self.nodes.keys().next().copied().filter(|_| self.nodes.len() == 1);
            return self.devices.iter().map(|node| node.or(only)).collect();
        }
        let nodes: Vec<u32> = self.nodes.keys().copied().filter(|node| !self.allowed_on(*node).is_empty()).collect();
        (0..ranks).map(|rank| nodes.get(rank * nodes.len() / ranks).copied()).collect()
    }

    fn allowed_on(&self, node: u32) -> CpuSet {
        self.nodes.get(&node).map_or_else(CpuSet::default, |cpus| cpus.intersect(&self.allowed))
    }

    fn bind(&self, kind: NumaBinding, rank_nodes: &[Option<u32>], rank: usize) -> Result<CpuBinding, AffinityError> {
        let node = self.node(rank_nodes, rank)?;
        let peers: Vec<usize> = (0..rank_nodes.len()).filter(|at| rank_nodes[*at] == Some(node)).collect();
        let place = peers.iter().position(|peer| *peer == rank).unwrap_or(0);
        let cpus = match kind {
            NumaBinding::Node => self.allowed_on(node),
            NumaBinding::Socket => self.socket(node)?,
            NumaBinding::Exclusive => self.exclusive(node, place, peers.len())?,
            NumaBinding::CoreComplex => self.core_complex(node, place)?,
        };
        Ok(CpuBinding { cpus, node, device: (!self.devices.is_empty()).then_some(rank) })
    }

    /// The node of a rank, which has at least one allowed CPU.
    fn node(&self, rank_nodes: &[Option<u32>], rank: usize) -> Result<u32, AffinityError> {
        let allowed = &self.allowed;
        let node = match rank_nodes.get(rank) {
            None => {
                let why = format!(
                    "there are only {} devices, and it would be bound to CPUs near device {rank}",
                    rank_nodes.len()
                );
                return refuse(why, "start at most one rank per device, or leave the option out");
            }
            Some(None) if self.devices.is_empty() => {
                return refuse(format!("no NUMA node has any of the allowed CPUs {allowed}"), UNBOUND);
            }
            Some(None) => {
                return refuse(format!("the kernel does not report the NUMA node of device {rank}"), UNBOUND);
            }
            Some(Some(node)) => *node,
        };
        if self.allowed_on(node).is_empty() {
            let why = format!("NUMA node {node} of device {rank} has none of the allowed CPUs {allowed}");
            return refuse(
                why,
                "allow the launcher to run on CPUs of that node (taskset, cpuset), or leave the option out",
            );
        }
        Ok(node)
    }

    fn package(&self, node: u32) -> Option<i32> {
        self.cpus.get(&self.allowed_on(node).first()?)?.package
    }

    /// The allowed CPUs of the socket of a node. Nodes without allowed CPUs are skipped; torch fails on them.
    fn socket(&self, node: u32) -> Result<CpuSet, AffinityError> {
        let Some(package) = self.package(node) else {
            return refuse(
                format!("the kernel does not report the socket of NUMA node {node}"),
                "use --numa-binding node",
            );
        };
        let nodes = self.nodes.keys().filter(|other| self.package(**other) == Some(package));
        Ok(nodes.flat_map(|node| self.allowed_on(*node).iter().collect::<Vec<_>>()).collect())
    }

    /// The allowed CPUs of a node, grouped by a shared core or cache, in the order of the lowest CPU of each group.
    fn shared(
        &self,
        node: u32,
        by: fn(&CpuTopology) -> &CpuSet,
        what: &str,
    ) -> Result<BTreeMap<u16, CpuSet>, AffinityError> {
        let mut groups = BTreeMap::<u16, CpuSet>::new();
        for cpu in self.allowed_on(node).iter() {
            let Some(key) = self.cpus.get(&cpu).and_then(|place| by(place).first()) else {
                return refuse(
                    format!("the kernel does not report which CPUs share {what} with CPU {cpu}"),
                    "use --numa-binding node",
                );
            };
            groups.entry(key).or_default().extend([cpu]);
        }
        Ok(groups)
    }

    fn exclusive(&self, node: u32, place: usize, peers: usize) -> Result<CpuSet, AffinityError> {
        let cores: Vec<CpuSet> = self.shared(node, |cpu| &cpu.core, "a core")?.into_values().collect();
        let (each, extra) = (cores.len() / peers, cores.len() % peers);
        if each == 0 {
            let (what, hint) = match self.devices.is_empty() {
                true => ("ranks", "start fewer ranks, or use --numa-binding node, which lets ranks share CPUs"),
                false => ("devices", "use --numa-binding node, which lets ranks share CPUs"),
            };
            let why =
                format!("NUMA node {node} has fewer allowed physical cores ({}) than {what} ({peers})", cores.len());
            return refuse(why, hint);
        }
        let first = place * each + place.min(extra);
        let own = cores.into_iter().skip(first).take(each + usize::from(place < extra));
        Ok(own.flat_map(|core| core.iter().collect::<Vec<_>>()).collect())
    }

    fn core_complex(&self, node: u32, place: usize) -> Result<CpuSet, AffinityError> {
        let mut complexes: Vec<CpuSet> = self.shared(node, |cpu| &cpu.cache, "a cache")?.into_values().collect();
        // The sort is stable: complexes of equal size stay in the order of their lowest CPU.
        complexes.sort_by_key(|complex| std::cmp::Reverse(complex.len()));
        let place = place % complexes.len().max(1);
        Ok(complexes.swap_remove(place))
    }
}
