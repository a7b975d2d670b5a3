//! Limits of files, processes, locked memory and CPUs.

use crate::cli::doctor::facts::{CpuFacts, Facts, LimitFacts};
use crate::cli::doctor::finding::{Finding, error, ok, unknown, warning};
use crate::probe::memory::size;

/// A rank with data loaders has a few hundred files open.
const FEW_FILES: u64 = 1024;
/// Each rank has a thread for each of its CPUs in several libraries, and processes of data loaders.
const FEW_PROCESSES: u64 = 1024;
/// The room that the ranks of one job want at least.
const LITTLE_ROOM: u64 = 256;

pub(super) fn check(facts: &Facts) -> Vec<Finding> {
    let gpus = facts.devices.machine.devices().1;
    vec![files(&facts.limits), processes(&facts.limits), locked(&facts.limits), cpus(&facts.cpus, gpus)]
}

fn files(facts: &LimitFacts) -> Finding {
    let ((soft, hard), needed) = (facts.files, facts.files_needed);
    let shown = |limit: u64| if limit >= 1 << 62 { "no limit".to_owned() } else { limit.to_string() };
    if hard < needed {
        return error(
            "open files",
            format!("the hard limit is {hard}, and the launcher needs {needed} for the ranks of this machine"),
            "raise it as root: `nofile` in /etc/security/limits.conf, LimitNOFILE= of a unit, docker run --ulimit nofile=1048576",
        );
    }
    if soft < FEW_FILES {
        let raise = if hard >= FEW_FILES {
            format!("ulimit -Sn {}", hard.min(65_536))
        } else {
            "raise `nofile` in /etc/security/limits.conf".into()
        };
        let text =
            format!("the soft limit is {soft}, and ranks inherit it: data loaders fail with \"Too many open files\"");
        return warning("open files", text, format!("{raise}, before the job starts"));
    }
    ok("open files", format!("{}, which ranks may raise to {}", shown(soft), shown(hard)))
}

fn processes(facts: &LimitFacts) -> Finding {
    let means = "ranks fail with \"can't start new thread\" or EAGAIN";
    match (facts.processes, facts.cgroup_processes) {
        (_, Some(left)) if left < LITTLE_ROOM => warning(
            "processes",
            format!("the cgroup has room for {left} more processes and threads: {means}"),
            "raise pids.max: TasksMax= of a unit, docker run --pids-limit -1, podPidsLimit of the kubelet",
        ),
        (Some(limit), _) if limit < FEW_PROCESSES => warning(
            "processes",
            format!("this user may have {limit} processes and threads: {means}"),
            format!("ulimit -u {FEW_PROCESSES} or more, or `nproc` in /etc/security/limits.conf"),
        ),
        (user, cgroup) => {
            let limit = user.map_or("this user has no limit".into(), |limit| format!("at most {limit} of this user"));
            let room = cgroup.map_or(String::new(), |left| format!("; the cgroup has room for {left} more"));
            ok("processes", format!("{limit}{room}"))
        }
    }
}

fn locked(facts: &LimitFacts) -> Finding {
    match (facts.locked, &facts.rdma[..]) {
        (Some(limit), [device, ..]) => warning(
            "locked memory",
            format!(
                "at most {}, but RDMA registers memory of any size: NCCL fails on {device} (ibv_reg_mr)",
                size(limit)
            ),
            "ulimit -l unlimited, `memlock` in /etc/security/limits.conf, docker run --ulimit memlock=-1",
        ),
        (Some(limit), []) => {
            ok("locked memory", format!("at most {}; only RDMA needs more, and there is no device", size(limit)))
        }
        (None, _) => ok("locked memory", "no limit"),
    }
}

fn cpus(facts: &CpuFacts, devices: usize) -> Finding {
    let (Some(allowed), online) = (facts.allowed, facts.online) else {
        return unknown("CPUs", "the kernel does not report the affinity mask");
    };
    let of = online.filter(|online| *online > allowed).map_or(String::new(), |online| format!(" of {online}"));
    let plural = if allowed == 1 && of.is_empty() { "" } else { "s" };
    let has = format!("this process may use {allowed}{of} CPU{plural}");
    let share = format!("{devices} ranks, one for each device, share {}", if allowed == 1 { "it" } else { "them" });
    if !of.is_empty() && (allowed == 1 || allowed < devices) {
        let means = if devices > 1 { share } else { "ranks and their data loaders share it".into() };
        return warning(
            "CPUs",
            format!("{has}, by its affinity mask: {means}"),
            "start without taskset; srun --cpus-per-task=N, or a larger cpuset of the container",
        );
    }
    if allowed < devices {
        return warning("CPUs", format!("{has}: {share}"), "use a machine with more CPUs, or fewer devices (--gpus)");
    }
    let Some(quota) = facts.quota else { return ok("CPUs", has) };
    if quota.is_below_cpus(devices.max(1)) {
        return warning(
            "CPUs",
            format!("the cgroup's quota is worth {quota} CPUs: the kernel stops all ranks for the rest of each period"),
            "raise it: docker run --cpus, limits.cpu of the pod, CPUQuota= of a unit",
        );
    }
    ok("CPUs", format!("{has}, with a cgroup quota worth {quota}"))
}

#[cfg(test)]
mod tests {
    use super::super::sound::{levels, sound};
    use super::*;
    use crate::cli::doctor::finding::Level;
    use crate::plan::devices::machine::GpuDevice;
    use crate::plan::devices::threads::CpuQuota;

    #[test]
    fn low_limits_are_found() {
        let mut facts = sound();
        facts.limits.files = (256, 256);
        facts.limits.processes = Some(100);
        facts.limits.locked = Some(8 << 20);
        facts.limits.rdma = vec!["mlx5_0".into()];
        facts.cpus.allowed = Some(1);
        assert_eq!(
            levels(&check(&facts)),
            "open files warning, processes warning, locked memory warning, CPUs warning"
        );
        facts.limits.files_needed = 257;
        facts.limits.cgroup_processes = Some(3);
        assert_eq!(files(&facts.limits).level, Level::Error);
        assert!(processes(&facts.limits).text.contains("room for 3 more"));
        facts.limits.rdma.clear();
        assert_eq!(locked(&facts.limits).level, Level::Ok);
        facts.cpus.allowed = None;
        assert_eq!(cpus(&facts.cpus, 0).level, Level::Unknown);
    }

    #[test]
    fn cpus_are_few_beside_the_machine_or_the_gpus() {
        let mut facts = sound();
        facts.cpus = CpuFacts { allowed: Some(1), online: Some(1), quota: None };
        assert_eq!(cpus(&facts.cpus, 1).level, Level::Ok, "a machine with one CPU");
        facts.devices.machine.gpus = vec![GpuDevice::default(); 8];
        facts.cpus = CpuFacts { allowed: Some(4), online: Some(64), quota: None };
        assert!(check(&facts)[3].text.contains("4 of 64 CPUs"), "{:?}", check(&facts)[3]);
        facts.cpus =
            CpuFacts { allowed: Some(64), online: Some(64), quota: Some(CpuQuota { time: 400_000, period: 100_000 }) };
        assert!(check(&facts)[3].text.contains("worth 4 CPUs"));
        assert_eq!(cpus(&facts.cpus, 4).level, Level::Ok);
    }
}
