//! Intel GPUs, by their render nodes.
//!
//! A GPU counts if its driver is xe or i915, which Level Zero uses, and if this process may open its node in /dev/dri: in
//! /sys, a container sees all GPUs of the host. As in torch, an integrated GPU counts only if there is no other
//! (torch, c10/xpu/XPUFunctions.cpp, "Device Management"). A GPU with two tiles counts as one.

use nix::unistd::{AccessFlags, access};
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

const VENDOR: &str = "0x8086";
const DRIVERS: [&str; 2] = ["xe", "i915"];
/// PCI address of the integrated GPU, the same in every processor.
const INTEGRATED: &str = "0000:00:02.0";

/// PCI addresses (`0000:03:00.0`) of the GPUs that torch would count, in ascending order. `root`: `/`, or a directory that
/// replaces it.
pub fn gpus(root: &Path) -> Vec<String> {
    let nodes = fs::read_dir(root.join("sys/class/drm")).into_iter().flatten().flatten();
    let nodes = nodes.filter_map(|node| node.file_name().into_string().ok());
    // Level Zero orders GPUs by address.
    let found: BTreeSet<String> =
        nodes.filter(|node| node.starts_with("renderD")).filter_map(|node| address(root, &node)).collect();
    let (integrated, discrete): (Vec<_>, Vec<_>) = found.into_iter().partition(|address| address == INTEGRATED);
    if discrete.is_empty() { integrated } else { discrete }
}

fn address(root: &Path, node: &str) -> Option<String> {
    let device = root.join("sys/class/drm").join(node).join("device");
    let name = |link: &Path| Some(fs::read_link(link).ok()?.file_name()?.to_str()?.to_owned());
    let ours = fs::read_to_string(device.join("vendor")).ok()?.trim() == VENDOR
        && DRIVERS.contains(&name(&device.join("driver"))?.as_str())
        && access(&root.join("dev/dri").join(node), AccessFlags::R_OK | AccessFlags::W_OK).is_ok();
    name(&device).filter(|_| ours)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn add(root: &Path, node: u32, address: &str, vendor: &str, driver: &str) {
        let device = root.join("sys/devices").join(address);
        let of_node = root.join(format!("sys/class/drm/renderD{node}"));
        fs::create_dir_all(&device).unwrap();
        fs::create_dir_all(&of_node).unwrap();
        fs::create_dir_all(root.join("dev/dri")).unwrap();
        fs::write(device.join("vendor"), format!("{vendor}\n")).unwrap();
        symlink(format!("../../bus/pci/drivers/{driver}"), device.join("driver")).unwrap();
        symlink(format!("../../../devices/{address}"), of_node.join("device")).unwrap();
        fs::write(root.join(format!("dev/dri/renderD{node}")), "").unwrap();
    }

    #[test]
    fn usable_discrete_gpus_count_otherwise_the_integrated_one() {
        let root = std::env::temp_dir().join(format!("rlaunch-intel-{}", std::process::id()));
        assert!(gpus(&root).is_empty());
        add(&root, 128, INTEGRATED, "0x8086", "i915");
        fs::create_dir_all(root.join("sys/class/drm/card0")).unwrap();
        assert_eq!(gpus(&root), [INTEGRATED]);
        add(&root, 129, "0000:b3:00.0", "0x8086", "xe");
        add(&root, 130, "0000:03:00.0", "0x8086", "xe");
        add(&root, 131, "0000:04:00.0", "0x10de", "nvidia");
        add(&root, 132, "0000:05:00.0", "0x8086", "vfio-pci");
        assert_eq!(gpus(&root), ["0000:03:00.0", "0000:b3:00.0"]);
        fs::remove_file(root.join("dev/dri/renderD129")).unwrap();
        assert_eq!(gpus(&root), ["0000:03:00.0"], "one that a container does not have");
        fs::remove_dir_all(&root).unwrap();
    }
}
