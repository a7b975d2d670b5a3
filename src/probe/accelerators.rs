//! Devices of the machine; those of vendors other than NVIDIA are counted by their nodes in /dev. No framework is asked.

use crate::model::accelerator::{CUSTOM, XPU_NODE};
use crate::plan::devices::machine::MachineDevices;
use std::path::Path;

/// Nodes of GPUs beside `nvidia0`: of AMD's driver, which Hygon's also has, of Windows (WSL 2), and of NVIDIA's small boards.
const GPU_NODES: [&str; 3] = ["kfd", "dxg", "nvhost-gpu"];

/// All devices of this machine. `root`: `/`, or a directory that replaces it.
pub fn machine(root: &Path) -> MachineDevices {
    let names = node_names(root);
    let count = |node: &str| names.iter().filter(|name| is_numbered(name, node)).count();
    let custom = CUSTOM.iter().filter_map(|custom| Some((custom.kind, count(custom.node?))));
    MachineDevices {
        gpus: super::nvml::gpus(),
        xpus: count(XPU_NODE),
        custom: custom.into_iter().find(|(_, n)| *n > 0),
        has_gpu_node: names.iter().any(|name| is_numbered(name, "nvidia") || GPU_NODES.contains(&name.as_str())),
    }
}

fn node_names(root: &Path) -> Vec<String> {
    let nodes = std::fs::read_dir(root.join("dev")).into_iter().flatten().flatten();
    nodes.filter_map(|node| node.file_name().into_string().ok()).collect()
}

fn is_numbered(name: &str, node: &str) -> bool {
    name.strip_prefix(node).is_some_and(|number| !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_with_a_number_are_counted() {
        let root = std::env::temp_dir().join(format!("rlaunch-nodes-{}", std::process::id()));
        let dev = root.join("dev");
        std::fs::create_dir_all(&dev).unwrap();
        let seen = |names: &[&str]| {
            for name in names {
                std::fs::write(dev.join(name), "").unwrap();
            }
            let machine = machine(&root);
            (machine.xpus, machine.custom)
        };
        let has_gpu = || machine(&root).has_gpu_node;
        assert_eq!(seen(&["null", "xpuctrl", "davinci_manager", "xpu", "xpu0x"]), (0, None));
        assert_eq!(seen(&["xpu0", "xpu1"]), (2, None));
        assert_eq!(seen(&["cambricon_dev0", "cambricon_ctl"]), (2, Some(("mlu", 1))));
        assert_eq!(seen(&["davinci0", "davinci1", "davinci10"]), (2, Some(("npu", 3))));
        assert_eq!(seen(&["nvidia-caps", "nvidia"]).0, 2);
        assert!(!has_gpu());
        for node in ["nvidia3", "kfd"] {
            std::fs::write(dev.join(node), "").unwrap();
            assert!(has_gpu(), "{node}");
            std::fs::remove_file(dev.join(node)).unwrap();
        }
        std::fs::remove_dir_all(&root).unwrap();
        let machine = machine(&root);
        assert_eq!((machine.xpus, machine.custom), (0, None));
    }
}
