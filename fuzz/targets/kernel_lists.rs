//! /proc/PID/stat and lists of CPUs.
#![no_main]

use libfuzzer_sys::fuzz_target;
use rlaunch::model::CpuSet;
use rlaunch::sys::process::procfs::stat::ProcStat;

fuzz_target!(|data: &[u8]| {
    if let Some(stat) = ProcStat::parse(data) {
        // A process can give itself any name.
        let ProcStat { state, parent, group, session, cpu_ticks, waited_ticks, started, .. } = &stat;
        let flags = if stat.exiting { 4 } else { 0 };
        let tail = format!(
            "{state} {parent} {group} {session} 0 0 {flags} 0 0 0 0 {cpu_ticks} 0 {waited_ticks} 0 0 0 0 0 {started}"
        );
        let again = ProcStat::parse(format!("1 ({}) {tail}", stat.name).as_bytes());
        assert_eq!(again.as_ref(), Some(&stat));
        let _ = (stat.is_gone(), stat.is_alive());
    }
    if let Some(cpus) = std::str::from_utf8(data).ok().and_then(CpuSet::parse) {
        assert_eq!(CpuSet::parse(&cpus.to_string()), Some(cpus));
    }
});
