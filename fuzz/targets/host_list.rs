//! Slurm's lists of hosts: bounded, of valid names only, and the same after an expansion.
#![no_main]

use libfuzzer_sys::fuzz_target;
use rlaunch::spec::scheduler::hostlist::{MOST, expand};

fuzz_target!(|list: &str| {
    let Ok(hosts) = expand(list) else { return };
    assert!((1..=MOST).contains(&hosts.len()));
    assert!(hosts.iter().all(|host| host.len() <= 255 && !host.contains(['[', ']', ',', ' '])));
    assert_eq!(expand(&hosts.join(",")).as_deref(), Ok(&hosts[..]));
});
