//! Facts of the kernel, its limits and its CPUs.

use crate::cli::doctor::facts::{CpuFacts, LimitFacts, SystemFacts};
use crate::probe::limits::processes;
use crate::probe::{cpus as quotas, memory};
use crate::run::prepare::preflight;
use crate::sys::clock;
use crate::sys::denied_calls::denied_calls;
use crate::sys::process::cgroup::JobCgroup;
use crate::sys::process::{affinity, limits as own, procfs};
use nix::unistd::{AccessFlags, SysconfVar, access, sysconf};
use std::fs;
use std::path::Path;

pub(super) fn system(root: &Path) -> SystemFacts {
    let uname = nix::sys::utsname::uname();
    let own_cgroup = JobCgroup::find("doctor");
    SystemFacts {
        release: uname.map(|found| found.release().to_string_lossy().into_owned()).unwrap_or_default(),
        denied: denied_calls(),
        procfs: procfs::verify(),
        has_cgroup: own_cgroup.is_some_and(|group| {
            group.path().parent().is_some_and(|above| access(above, AccessFlags::W_OK | AccessFlags::X_OK).is_ok())
        }),
        memory: memory::total(root),
        wall: clock::wall(),
        clock: clock::discipline(),
    }
}

/// `ranks`: the number of ranks of a job that uses the whole machine.
pub(super) fn limits(root: &Path, ranks: usize) -> LimitFacts {
    let rdma = fs::read_dir(root.join("sys/class/infiniband")).into_iter().flatten().flatten();
    let mut rdma: Vec<String> = rdma.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    rdma.sort();
    LimitFacts {
        files: own::open_files(),
        files_needed: preflight::files_needed(ranks.max(1)),
        processes: own::processes(),
        cgroup_processes: processes::left_in_cgroup(root),
        locked: own::locked_memory(),
        rdma,
    }
}

pub(super) fn cpus(root: &Path) -> CpuFacts {
    let online = sysconf(SysconfVar::_NPROCESSORS_ONLN).ok().flatten();
    CpuFacts {
        allowed: affinity::own().ok().map(|cpus| cpus.len()),
        online: online.and_then(|count| usize::try_from(count).ok()),
        quota: quotas::quota(root),
    }
}
