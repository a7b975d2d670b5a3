//! GPUs and other devices: driver, memory errors, faults since boot, memory in use and by which processes, visible lists.

use crate::cli::doctor::facts::{DeviceFacts, Facts, GpuFacts, GpuState};
use crate::cli::doctor::finding::{Finding, error, ok, unknown, warning};
use crate::plan::devices::machine::MachineDevices;
use crate::plan::devices::visible_devices::{self, Device, VisibleList};
use crate::probe::memory::size;
use crate::probe::nvml::DriverFault;
use crate::spec::options::EnvVars;

const CUDA: &str = "CUDA_VISIBLE_DEVICES";

/// Memory of an idle GPU that the driver and a display use, as a part of all.
const IDLE_PART: u64 = 10;

/// Xids that mean a fault of the GPU or its links, not of a program: NVIDIA's "XID Errors".
const FAULTS: [(u32, &str); 11] = [
    (48, "memory error that ECC could not correct"),
    (61, "internal fault"),
    (62, "internal fault"),
    (63, "memory row or page retired"),
    (64, "memory row or page could not be retired"),
    (74, "NVLink error"),
    (79, "fell off the bus"),
    (94, "contained memory error"),
    (95, "uncontained memory error"),
    (119, "its GSP does not answer"),
    (120, "fault of its GSP"),
];

pub(super) fn check(facts: &Facts) -> Vec<Finding> {
    let mut found = driver(&facts.devices);
    if let GpuFacts::Found { gpus, .. } = &facts.devices.gpus {
        found.extend(gpus.iter().filter_map(fault));
        found.extend(gpus.iter().filter_map(in_use));
        found.extend(xids(&facts.devices));
        found.extend(mixed(gpus, &facts.vars));
    }
    found.extend(visible(&facts.devices, &facts.vars));
    found
}

fn driver(facts: &DeviceFacts) -> Vec<Finding> {
    let nodes = facts.nodes;
    let other = match facts.machine.devices() {
        ("gpu", _) => Vec::new(),
        (kind, count) => vec![ok("devices", format!("{count} of type {kind}, by their files in /dev"))],
    };
    let finding = match &facts.gpus {
        GpuFacts::Found { driver, gpus } => {
            let driver = driver.as_deref().unwrap_or("of unknown version");
            let names: Vec<&str> = gpus.iter().filter_map(|gpu| gpu.name.as_deref()).collect();
            let named = match names.split_first() {
                Some((first, rest)) if rest.iter().all(|name| name == first) => format!(" ({first})"),
                Some(_) => format!(" ({})", names.join(", ")),
                None => String::new(),
            };
            ok("GPUs", format!("{}{named}, driver {driver}", gpus.len()))
        }
        GpuFacts::Hangs => error(
            "GPUs",
            "NVIDIA's driver does not answer: ranks hang when they open a GPU",
            "look for Xid in dmesg, and for processes in state D; a reboot is often the only way",
        ),
        GpuFacts::Fault(DriverFault::NoLibrary) if nodes > 0 => warning(
            "GPUs",
            format!(
                "/dev has {nodes} NVIDIA GPUs, but the driver's library libnvidia-ml.so.1 is not found: rlaunch counts no GPU"
            ),
            "in a container, set NVIDIA_DRIVER_CAPABILITIES=compute,utility; else install the driver, or fix LD_LIBRARY_PATH",
        ),
        GpuFacts::Fault(DriverFault::NoLibrary) => {
            ok("GPUs", "no NVIDIA driver: ranks run on other devices, or on CPUs")
        }
        GpuFacts::Fault(DriverFault::NotLoaded) => warning(
            "GPUs",
            "NVIDIA's library is installed, but its kernel module is not loaded: no rank gets a GPU",
            "modprobe nvidia; in a container, start it with --gpus all",
        ),
        GpuFacts::Fault(DriverFault::Mismatch) => error(
            "GPUs",
            "NVIDIA's library and kernel module are of different versions, as after an upgrade: CUDA does not start",
            "reboot, or stop all programs on GPUs and reload the module",
        ),
        GpuFacts::Fault(DriverFault::Other(why)) => {
            error("GPUs", format!("NVIDIA's driver fails: {why}"), "look at nvidia-smi and dmesg")
        }
    };
    [vec![finding], other].concat()
}

fn fault(gpu: &GpuState) -> Option<Finding> {
    let index = gpu.index;
    if gpu.is_lost {
        return Some(error(
            "GPU fault",
            format!("the driver has lost GPU {index}: no rank can use it"),
            format!("nvidia-smi --gpu-reset -i {index}, or reboot; leave it out meanwhile (--gpus)"),
        ));
    }
    if gpu.is_prohibited {
        return Some(error(
            "GPU fault",
            format!("GPU {index} admits no program (compute mode \"prohibited\")"),
            format!("nvidia-smi -i {index} -c DEFAULT; or leave it out (--gpus)"),
        ));
    }
    if let Some(count @ 1..) = gpu.ecc_errors {
        return Some(warning(
            "GPU fault",
            format!(
                "GPU {index} has {count} memory errors that ECC could not correct, since the driver was loaded: each ends a program"
            ),
            format!("nvidia-smi --gpu-reset -i {index}; if they come again, replace it"),
        ));
    }
    gpu.pages_pending.then(|| {
        warning(
            "GPU fault",
            format!("GPU {index} retires bad memory at its next reset, and may fail until then"),
            format!("nvidia-smi --gpu-reset -i {index} while no program uses it"),
        )
    })
}

/// A GPU whose memory other processes use.
fn in_use(gpu: &GpuState) -> Option<Finding> {
    let (used, total) = gpu.memory?;
    if used <= total / IDLE_PART {
        return None;
    }
    let by = match gpu.holders.is_empty() {
        true => "by processes that are not visible here".to_owned(),
        false => format!("by {}", gpu.holders.join(", ")),
    };
    Some(warning(
        "GPU memory",
        format!("GPU {}: {} of {} in use {by}", gpu.index, size(used), size(total)),
        "stop them, or choose other GPUs: --gpus, or CUDA_VISIBLE_DEVICES",
    ))
}

fn xids(facts: &DeviceFacts) -> Vec<Finding> {
    let Some(all) = &facts.xids else {
        return vec![unknown(
            "GPU log",
            "the kernel's messages on faults of GPUs (Xid) cannot be read: root only, or not in this container",
        )];
    };
    let fault = |(place, number): &(String, u32)| {
        let (_, means) = FAULTS.iter().find(|(known, _)| known == number)?;
        Some(warning(
            "GPU log",
            format!("since the machine started, GPU {place} had Xid {number}: {means}"),
            "dmesg | grep Xid shows when; if it comes again, reset or replace the GPU",
        ))
    };
    let found: Vec<Finding> = all.iter().filter_map(fault).collect();
    if found.is_empty() { vec![ok("GPU log", "the kernel has no message on a fault of a GPU (Xid)")] } else { found }
}

/// GPUs of several models, which CUDA numbers in another order than the driver.
fn mixed(gpus: &[GpuState], vars: &EnvVars) -> Option<Finding> {
    let is_mixed = gpus.iter().any(|gpu| gpu.name != gpus[0].name && gpu.name.is_some());
    let is_set = vars.get("CUDA_DEVICE_ORDER").is_some_and(|order| order == "PCI_BUS_ID");
    (is_mixed && !is_set).then(|| {
        warning(
            "GPU order",
            "the GPUs are of several models: CUDA numbers the fastest first, and nvidia-smi by PCI address",
            "export CUDA_DEVICE_ORDER=PCI_BUS_ID",
        )
    })
}

/// The visible list of CUDA.
fn visible(facts: &DeviceFacts, vars: &EnvVars) -> Option<Finding> {
    let text = vars.get(CUDA)?;
    let count = facts.machine.gpus.len();
    let shown = crate::spec::shown(text);
    let give = format!("give numbers below {count}, or UUIDs of nvidia-smi -L; or unset {CUDA}");
    let has_driver = matches!(facts.gpus, GpuFacts::Found { .. });
    match visible_devices::of_cuda(CUDA, text) {
        Err(refused) => Some(error(CUDA, format!("{shown}: {}", refused.why), refused.hint.unwrap_or_default())),
        Ok(VisibleList::All) => {
            Some(warning(CUDA, "all: CUDA does not know this value, and finds no GPU", format!("unset {CUDA}")))
        }
        Ok(VisibleList::These(devices)) if devices.is_empty() => Some(match count {
            0 => ok(CUDA, "it is empty, and there is no GPU that it hides"),
            _ => warning(CUDA, format!("'{shown}' hides all {count} GPUs: ranks run on CPUs"), format!("unset {CUDA}")),
        }),
        Ok(VisibleList::These(_)) if !has_driver => Some(warning(
            CUDA,
            format!("{shown}, but NVIDIA's driver shows no GPU: ranks get devices that they do not have"),
            format!("unset {CUDA}"),
        )),
        Ok(VisibleList::These(devices)) => Some(match unknown_one(&facts.machine, &devices) {
            Some(device) => error(
                CUDA,
                format!("{shown}: there is no GPU {device}, and CUDA silently hides it and all that follow"),
                give,
            ),
            None => ok(CUDA, format!("{shown}: shows {} of {count}", devices.len())),
        }),
    }
}

fn unknown_one<'a>(machine: &MachineDevices, devices: &'a [Device]) -> Option<&'a Device> {
    devices.iter().find(|device| machine.number(device).is_none())
}

#[cfg(test)]
mod tests {
    use super::super::sound::{levels, sound};
    use super::*;
    use crate::plan::devices::machine::GpuDevice;

    const GIB: u64 = 1 << 30;

    fn gpu(index: u32) -> GpuState {
        GpuState {
            index,
            name: Some("H100".into()),
            memory: Some((GIB, 80 * GIB)),
            ecc_errors: Some(0),
            ..GpuState::default()
        }
    }

    fn machine(gpus: Vec<GpuState>) -> Facts {
        let mut facts = sound();
        let device = |gpu: &GpuState| GpuDevice { uuid: format!("GPU-a{}", gpu.index), migs: Vec::new() };
        facts.devices.machine.gpus = gpus.iter().map(device).collect();
        facts.devices.gpus = GpuFacts::Found { driver: Some("580.65.06".into()), gpus };
        facts.devices.xids = Some(Vec::new());
        facts
    }

    #[test]
    fn healthy_gpus_are_one_line() {
        let found = check(&machine(vec![gpu(0), gpu(1)]));
        assert_eq!(levels(&found), "GPUs ok, GPU log ok");
        assert_eq!(found[0].text, "2 (H100), driver 580.65.06");
    }

    #[test]
    fn faults_of_gpus_are_found() {
        let used = GpuState { memory: Some((70 * GIB, 80 * GIB)), holders: vec!["python (pid 7)".into()], ..gpu(0) };
        let mut facts = machine(vec![
            used,
            GpuState { ecc_errors: Some(2), ..gpu(1) },
            GpuState { is_lost: true, memory: None, ..gpu(2) },
            GpuState { pages_pending: true, ..gpu(3) },
            GpuState { is_prohibited: true, name: Some("L4".into()), ..gpu(4) },
        ]);
        facts.devices.xids = Some(vec![("0000:3b:00".into(), 79), ("0000:3b:00".into(), 13)]);
        let found = check(&facts);
        assert_eq!(
            levels(&found),
            "GPUs ok, GPU fault warning, GPU fault error, GPU fault warning, GPU fault error, GPU memory warning, \
             GPU log warning, GPU order warning"
        );
        assert!(found[5].text.contains("70.0 GiB of 80.0 GiB in use by python (pid 7)"));
        facts.devices.xids = None;
        facts.vars.insert("CUDA_DEVICE_ORDER".into(), "PCI_BUS_ID".into());
        assert!(levels(&check(&facts)).ends_with("GPU log unknown"));
    }

    #[test]
    fn faults_of_the_driver_are_found() {
        let of = |gpus: GpuFacts, nodes: usize| {
            let mut facts = sound();
            facts.devices.gpus = gpus;
            facts.devices.nodes = nodes;
            levels(&check(&facts))
        };
        assert_eq!(of(GpuFacts::Fault(DriverFault::NoLibrary), 0), "GPUs ok");
        assert_eq!(of(GpuFacts::Fault(DriverFault::NoLibrary), 8), "GPUs warning");
        assert_eq!(of(GpuFacts::Fault(DriverFault::NotLoaded), 0), "GPUs warning");
        assert_eq!(of(GpuFacts::Fault(DriverFault::Mismatch), 0), "GPUs error");
        assert_eq!(of(GpuFacts::Fault(DriverFault::Other("x".into())), 0), "GPUs error");
        assert_eq!(of(GpuFacts::Hangs, 0), "GPUs error");
    }

    #[test]
    fn visible_lists_that_cuda_misreads_are_found() {
        let of = |gpus: Vec<GpuState>, list: &str| {
            let mut facts = machine(gpus);
            facts.vars.insert(CUDA.into(), list.into());
            visible(&facts.devices, &facts.vars).map(|found| format!("{} {}", found.level.name(), found.text)).unwrap()
        };
        let two = || vec![gpu(0), gpu(1)];
        assert_eq!(of(two(), "1"), "ok 1: shows 1 of 2");
        assert_eq!(of(two(), "GPU-a1"), "ok GPU-a1: shows 1 of 2");
        assert!(of(two(), "").starts_with("warning '' hides all 2 GPUs"));
        assert!(of(two(), "all").starts_with("warning all"));
        assert!(of(two(), "0,5").starts_with("error 0,5: there is no GPU 5"));
        assert!(of(two(), "0,0").starts_with("error 0,0: '0' occurs twice"));
        assert!(of(vec![], "").starts_with("ok"));
        let mut facts = sound();
        facts.vars.insert(CUDA.into(), "0".into());
        assert_eq!(levels(&check(&facts)), "GPUs ok, CUDA_VISIBLE_DEVICES warning");
    }
}
