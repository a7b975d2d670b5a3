//! A sound machine, whose facts the tests of the checks change.

use crate::cli::common::interpreter::PythonFacts;
use crate::cli::doctor::facts::{
    CpuFacts, DeviceFacts, Facts, FolderFacts, FolderState, GpuFacts, LimitFacts, NameFacts, NetworkFacts, SystemFacts,
};
use crate::cli::doctor::finding::{Finding, Level};
use crate::plan::devices::machine::MachineDevices;
use crate::probe::disk::DiskSpace;
use crate::probe::nvml::DriverFault;
use crate::spec::options::EnvVars;
use crate::sys::clock::Discipline;
use std::time::Duration;

/// `open files warning, CPUs ok`.
pub(super) fn levels(findings: &[Finding]) -> String {
    findings.iter().map(|finding| format!("{} {}", finding.check, finding.level.name())).collect::<Vec<_>>().join(", ")
}

pub(super) fn name(name: &str, addresses: &[&str]) -> NameFacts {
    let addresses = addresses.iter().filter_map(|address| address.parse().ok()).collect();
    NameFacts { name: name.into(), addresses: Some(addresses) }
}

fn folder(path: &str) -> FolderFacts {
    let space = DiskSpace { total: 1 << 40, left: 1 << 39, files_left: Some(1 << 20), is_read_only: false, kind: None };
    FolderFacts { path: path.into(), state: FolderState::There { at: path.into(), space, writable: Ok(()) } }
}

pub(super) fn sound() -> Facts {
    Facts {
        system: SystemFacts {
            release: "6.1.0".into(),
            denied: Vec::new(),
            procfs: Ok(()),
            has_cgroup: true,
            memory: Some(1 << 36),
            wall: Duration::from_secs(1_800_000_000),
            clock: Some(Discipline { is_synchronized: true, largest_error: Duration::from_millis(5) }),
        },
        limits: LimitFacts {
            files: (1024, 1 << 20),
            files_needed: 100,
            processes: Some(60_000),
            cgroup_processes: None,
            locked: None,
            rdma: Vec::new(),
        },
        cpus: CpuFacts { allowed: Some(16), online: Some(16), quota: None },
        log_dir: folder("/data/log"),
        shared_memory: folder("/dev/shm"),
        devices: DeviceFacts {
            nodes: 0,
            gpus: GpuFacts::Fault(DriverFault::NoLibrary),
            machine: MachineDevices::default(),
            xids: None,
        },
        python: PythonFacts::default(),
        network: NetworkFacts {
            host: name("node1", &["10.0.0.1"]),
            localhost: name("localhost", &["127.0.0.1", "::1"]),
            interfaces: Some(vec!["lo".into(), "eth0".into()]),
            addresses: vec!["10.0.0.1".parse().unwrap(), "127.0.0.1".parse().unwrap()],
            free_ports: Some((32_768, 60_999)),
            any_port: Ok(()),
            masters: Vec::new(),
        },
        vars: EnvVars::new(),
        is_nested: false,
    }
}

#[test]
fn a_sound_machine_has_no_warning() {
    let found = super::findings(&sound());
    assert!(found.iter().all(|finding| finding.level == Level::Ok), "{found:#?}");
}
