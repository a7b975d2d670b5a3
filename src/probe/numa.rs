//! NUMA and cache topology of CPUs and devices, from /sys (Documentation/ABI/stable/sysfs-devices-node,
//! sysfs-devices-system-cpu and testing/sysfs-bus-pci of Linux).

use super::torch::PciAddress;
use crate::model::CpuSet;
use crate::plan::devices::affinity::{CpuTopology, TopologyFacts};
use std::collections::BTreeMap;
use std::fs::{read_dir, read_to_string};
use std::path::Path;

/// The topology for binding ranks. `root`: `/`, or a directory that replaces it; `allowed`: the affinity mask; `devices`:
/// the visible devices, in their order.
pub fn facts(root: &Path, allowed: CpuSet, devices: &[PciAddress]) -> TopologyFacts {
    let mut nodes = nodes(&root.join("sys/devices/system/node"));
    if nodes.is_empty() {
        // A kernel without NUMA.
        nodes.insert(0, allowed.clone());
    }
    let cpus = allowed.iter().map(|number| (number, cpu(root, number))).collect();
    let devices = devices.iter().map(|place| node_of(root, place.as_deref()?)).collect();
    TopologyFacts { allowed, nodes, cpus, devices }
}

fn nodes(folder: &Path) -> BTreeMap<u32, CpuSet> {
    let node = |name: String| Some((numbered(&name, "node")?, set(&folder.join(name).join("cpulist"))?));
    names(folder).into_iter().filter_map(node).collect()
}

fn cpu(root: &Path, number: u16) -> CpuTopology {
    let folder = root.join(format!("sys/devices/system/cpu/cpu{number}"));
    let package = read_to_string(folder.join("topology/physical_package_id"));
    CpuTopology {
        package: package.ok().and_then(|text| text.trim().parse().ok()),
        core: set(&folder.join("topology/thread_siblings_list")).unwrap_or_default(),
        cache: cache(&folder.join("cache")).unwrap_or_default(),
    }
}

/// CPUs that share the highest-level data cache.
fn cache(folder: &Path) -> Option<CpuSet> {
    let indexes = names(folder).into_iter().filter_map(|name| Some((numbered(&name, "index")?, folder.join(name))));
    let caches = indexes.filter_map(|(index, cache)| {
        let read = |name| read_to_string(cache.join(name)).ok();
        let level: u32 = read("level")?.trim().parse().ok()?;
        matches!(read("type")?.trim(), "Unified" | "Data").then_some((level, std::cmp::Reverse(index), cache))
    });
    let (_, _, highest) = caches.max()?;
    set(&highest.join("shared_cpu_list"))
}

/// The node of the device at this PCI address. The kernel reports -1 on machines with one node, which counts as 0.
pub fn node_of(root: &Path, address: &str) -> Option<u32> {
    let text = read_to_string(root.join("sys/bus/pci/devices").join(address).join("numa_node")).ok()?;
    text.trim().parse::<i32>().ok().map(|node| node.max(0).unsigned_abs())
}

fn set(path: &Path) -> Option<CpuSet> {
    CpuSet::parse(&read_to_string(path).ok()?)
}

fn names(folder: &Path) -> Vec<String> {
    let entries = read_dir(folder).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().into_string().ok()).collect()
}

fn numbered(name: &str, prefix: &str) -> Option<u32> {
    name.strip_prefix(prefix).filter(|number| number.bytes().all(|byte| byte.is_ascii_digit()))?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(text: &str) -> CpuSet {
        CpuSet::parse(text).unwrap()
    }

    #[test]
    fn reported_topology_is_read_and_the_rest_is_empty() {
        let root = std::env::temp_dir().join(format!("rlaunch-numa-{}", std::process::id()));
        let write = |path: &str, text: &str| {
            let path = root.join("sys").join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        for (node, cpus) in [("node0", "0-1\n"), ("node2", "2-3\n"), ("node7", "\n"), ("nodes", "9\n")] {
            write(&format!("devices/system/node/{node}/cpulist"), cpus);
        }
        let cpu0 = "devices/system/cpu/cpu0";
        write(&format!("{cpu0}/topology/physical_package_id"), "1\n");
        write(&format!("{cpu0}/topology/thread_siblings_list"), "0,2\n");
        for (index, level, kind, shared) in [
            (0, "1", "Data", "0,2"),
            (1, "4", "Instruction", "0"),
            (2, "3", "Unified", "0-3"),
            (3, "2", "Unified", "0,2"),
        ] {
            for (name, text) in [("level", level), ("type", kind), ("shared_cpu_list", shared)] {
                write(&format!("{cpu0}/cache/index{index}/{name}"), text);
            }
        }
        write(&format!("{cpu0}/cache/uevent"), "");
        write("bus/pci/devices/0000:3b:00.0/numa_node", "2\n");
        write("bus/pci/devices/0000:5e:00.0/numa_node", "-1\n");
        let place = |address: &str| Some(address.to_owned());
        let devices = [place("0000:3b:00.0"), place("0000:5e:00.0"), place("0000:99:00.0"), None];
        let facts = facts(&root, set("0-2"), &devices);
        std::fs::remove_dir_all(&root).unwrap();
        let nodes = BTreeMap::from([(0, set("0-1")), (2, set("2-3")), (7, set(""))]);
        let cpu0 = CpuTopology { package: Some(1), core: set("0,2"), cache: set("0-3") };
        let cpus = BTreeMap::from([(0, cpu0), (1, CpuTopology::default()), (2, CpuTopology::default())]);
        assert_eq!(
            facts,
            TopologyFacts { allowed: set("0-2"), nodes, cpus, devices: vec![Some(2), Some(0), None, None] }
        );
    }

    #[test]
    fn a_kernel_without_numa_has_one_node() {
        let facts = facts(Path::new("/nowhere"), set("1-2"), &[]);
        assert_eq!(facts.nodes, BTreeMap::from([(0, set("1-2"))]));
    }
}
