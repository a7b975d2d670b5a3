//! Which CPUs each rank gets: some near its device, by the rules of torchrun's `--numa-binding` (`torch.numa.binding` of
//! torch 2.15). A rank's device is that with the number of its local rank, of those that it sees.
//!
//! Where there is no device at all torchrun refuses. Here the NUMA nodes that have allowed CPUs get the ranks, in the
//! order of both and as evenly as it goes: of `n` ranks and `k` nodes, rank `r` gets node `r * k / n`, so that fewer ranks than nodes are
//! spread over them. Each rank then stands for a device on its node, and the same rules hold.

use crate::model::CpuSet;
use crate::spec::SpecError;
use crate::spec::torchrun::Numa;
use std::collections::BTreeMap;
use std::fmt;

/// Where one CPU is. What the kernel does not say is empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cpu {
    /// Its socket.
    pub package: Option<i32>,
    /// The CPUs on its physical core, itself included.
    pub core: CpuSet,
    /// The CPUs that share its highest cache for data, itself included.
    pub cache: CpuSet,
}

/// What there is to bind to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// The CPUs that this process may run on.
    pub allowed: CpuSet,
    /// All CPUs of each NUMA node.
    pub nodes: BTreeMap<u32, CpuSet>,
    /// Where the allowed CPUs are.
    pub cpus: BTreeMap<u16, Cpu>,
    /// The NUMA node of each device that a rank would see, in its order, as far as the kernel says.
    pub devices: Vec<Option<u32>>,
}

/// What one rank is bound to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bound {
    /// Its CPUs; never none.
    pub cpus: CpuSet,
    /// The NUMA node that they were chosen for.
    pub node: u32,
    /// The device that is there, if one was asked for.
    pub device: Option<usize>,
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plural = if self.cpus.len() == 1 { "" } else { "s" };
        write!(f, "CPU{plural} {} (NUMA node {}", self.cpus, self.node)?;
        self.device.map_or(Ok(()), |device| write!(f, ", device {device}"))?;
        f.write_str(")")
    }
}

/// What each of `ranks` local ranks is bound to.
pub fn bind(kind: Numa, facts: &Facts, ranks: usize) -> Result<Vec<Bound>, SpecError> {
    let seats = facts.seats(ranks);
    (0..ranks).map(|rank| facts.bind(kind, &seats, rank).map_err(|refusal| refusal.of(kind, rank))).collect()
}

/// Why a rank cannot be bound, and what to do.
struct Refusal {
    why: String,
    hint: &'static str,
}

impl Refusal {
    fn of(self, kind: Numa, rank: usize) -> SpecError {
        SpecError::new("--numa-binding", kind.name(), format!("local rank {rank}: {}", self.why), self.hint)
    }
}

fn refuse<T>(why: String, hint: &'static str) -> Result<T, Refusal> {
    Err(Refusal { why, hint })
}

const UNBOUND: &str = "leave the option out";

impl Facts {
    /// The node of each device, or of each rank where there is no device.
    fn seats(&self, ranks: usize) -> Vec<Option<u32>> {
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

    fn bind(&self, kind: Numa, seats: &[Option<u32>], rank: usize) -> Result<Bound, Refusal> {
        let node = self.node(seats, rank)?;
        let peers: Vec<usize> = (0..seats.len()).filter(|seat| seats[*seat] == Some(node)).collect();
        let place = peers.iter().position(|seat| *seat == rank).unwrap_or(0);
        let cpus = match kind {
            Numa::Node => self.allowed_on(node),
            Numa::Socket => self.socket(node)?,
            Numa::Exclusive => self.exclusive(node, place, peers.len())?,
            Numa::CoreComplex => self.core_complex(node, place)?,
        };
        Ok(Bound { cpus, node, device: (!self.devices.is_empty()).then_some(rank) })
    }

    /// The node that has the rank, with at least one allowed CPU.
    fn node(&self, seats: &[Option<u32>], rank: usize) -> Result<u32, Refusal> {
        let allowed = &self.allowed;
        let node = match seats.get(rank) {
            None => {
                let why = format!("there are only {} devices, and it would be bound near device {rank}", seats.len());
                return refuse(why, "start no more ranks than there are devices, or leave the option out");
            }
            Some(None) if self.devices.is_empty() => {
                return refuse(format!("no NUMA node has any of the allowed CPUs {allowed}"), UNBOUND);
            }
            Some(None) => {
                return refuse(format!("the kernel does not say which NUMA node device {rank} is on"), UNBOUND);
            }
            Some(Some(node)) => *node,
        };
        if self.allowed_on(node).is_empty() {
            let why = format!("NUMA node {node}, where device {rank} is, has none of the allowed CPUs {allowed}");
            return refuse(
                why,
                "let the launcher run on CPUs of that node too (taskset, cpuset), or leave the option out",
            );
        }
        Ok(node)
    }

    fn package(&self, node: u32) -> Option<i32> {
        self.cpus.get(&self.allowed_on(node).first()?)?.package
    }

    /// Nodes without allowed CPUs are passed over; torch fails at them.
    fn socket(&self, node: u32) -> Result<CpuSet, Refusal> {
        let Some(package) = self.package(node) else {
            return refuse(
                format!("the kernel does not say which socket NUMA node {node} is in"),
                "use --numa-binding node",
            );
        };
        let nodes = self.nodes.keys().filter(|other| self.package(**other) == Some(package));
        Ok(nodes.flat_map(|node| self.allowed_on(*node).iter().collect::<Vec<_>>()).collect())
    }

    /// The allowed CPUs of a node by what they share, in the order of the lowest CPU that shares it.
    fn shared(&self, node: u32, by: fn(&Cpu) -> &CpuSet, what: &str) -> Result<BTreeMap<u16, CpuSet>, Refusal> {
        let mut groups = BTreeMap::<u16, CpuSet>::new();
        for cpu in self.allowed_on(node).iter() {
            let Some(key) = self.cpus.get(&cpu).and_then(|place| by(place).first()) else {
                return refuse(
                    format!("the kernel does not say which CPUs share {what} with CPU {cpu}"),
                    "use --numa-binding node",
                );
            };
            groups.entry(key).or_default().extend([cpu]);
        }
        Ok(groups)
    }

    fn exclusive(&self, node: u32, place: usize, peers: usize) -> Result<CpuSet, Refusal> {
        let cores: Vec<CpuSet> = self.shared(node, |cpu| &cpu.core, "a core")?.into_values().collect();
        let (each, extra) = (cores.len() / peers, cores.len() % peers);
        if each == 0 {
            let (what, hint) = match self.devices.is_empty() {
                true => ("ranks", "start fewer ranks, or use --numa-binding node, which lets them share"),
                false => ("devices", "use --numa-binding node, which lets ranks share"),
            };
            let why =
                format!("NUMA node {node} has fewer allowed physical cores ({}) than {what} ({peers})", cores.len());
            return refuse(why, hint);
        }
        let first = place * each + place.min(extra);
        let own = cores.into_iter().skip(first).take(each + usize::from(place < extra));
        Ok(own.flat_map(|core| core.iter().collect::<Vec<_>>()).collect())
    }

    fn core_complex(&self, node: u32, place: usize) -> Result<CpuSet, Refusal> {
        let mut complexes: Vec<CpuSet> = self.shared(node, |cpu| &cpu.cache, "a cache")?.into_values().collect();
        // Stable: those of one size stay in the order of their lowest CPU.
        complexes.sort_by_key(|complex| std::cmp::Reverse(complex.len()));
        let place = place % complexes.len().max(1);
        Ok(complexes.swap_remove(place))
    }
}
