//! Facts of devices: what NVIDIA's driver says, and the kernel's messages on faults of its GPUs.

use crate::cli::doctor::facts::{DeviceFacts, GpuFacts, GpuState};
use crate::net::thread;
use crate::plan::devices::machine::MachineDevices;
use crate::probe::accelerators;
use crate::probe::memory::size;
use crate::probe::nvml::{GpuHealth, GpuMonitor};
use crate::report::gpu_log::{GpuProcess, GpuRow, GpuUsage};
use std::fs::OpenOptions;
use std::io::{ErrorKind, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::Duration;

/// How long the driver may take. Without persistence mode it starts the GPUs first.
const PATIENCE: Duration = Duration::from_secs(20);

/// The kernel's messages that are read at most.
const MOST_MESSAGES: usize = 100_000;

pub(super) fn find(root: &Path) -> DeviceFacts {
    let at = root.to_owned();
    // The driver stays open meanwhile: without persistence mode, each start takes seconds.
    let ask = move || match GpuMonitor::open() {
        Ok(monitor) => (gpus(&monitor), accelerators::machine(&at)),
        Err(error) => (GpuFacts::Fault(error.into()), accelerators::machine(&at)),
    };
    let asked = thread::within(PATIENCE, ask);
    let (gpus, machine) = asked.unwrap_or((GpuFacts::Hangs, MachineDevices::default()));
    let xids = match gpus {
        GpuFacts::Found { .. } => messages(&root.join("dev/kmsg")).map(|text| xids(&text)),
        _ => None,
    };
    let names = std::fs::read_dir(root.join("dev")).into_iter().flatten().flatten();
    let names = names.filter_map(|node| node.file_name().into_string().ok());
    let is_gpu = |name: &String| name.strip_prefix("nvidia").is_some_and(|number| number.parse::<u32>().is_ok());
    DeviceFacts { nodes: names.filter(is_gpu).count(), gpus, machine, xids }
}

fn gpus(monitor: &GpuMonitor) -> GpuFacts {
    let numbers = monitor.all();
    let rows = monitor.gpus(&numbers);
    let processes = monitor.processes(&numbers);
    let driver = rows.first().and_then(|row| row.driver.clone());
    let each = rows.into_iter().zip(monitor.usage(&numbers)).zip(monitor.health(&numbers));
    let state = |((row, usage), health): ((GpuRow, GpuUsage), GpuHealth)| {
        let own = processes.iter().filter(|process| row.uuid.is_some() && process.gpu_uuid == row.uuid);
        let holder = |process: &GpuProcess| {
            let name = process.name.as_deref().map_or("a process", |name| name.rsplit('/').next().unwrap_or(name));
            let used = process.used.map_or(String::new(), |bytes| format!(" with {}", size(bytes)));
            format!("{name} (pid {}){used}", process.pid)
        };
        GpuState {
            index: row.index,
            holders: own.map(holder).collect(),
            name: row.name,
            memory: usage.memory.map(|memory| (memory.used, memory.total)),
            is_lost: health.is_lost,
            ecc_errors: health.ecc_errors,
            pages_pending: health.pages_pending,
            is_prohibited: health.is_prohibited,
        }
    };
    GpuFacts::Found { driver, gpus: each.map(state).collect() }
}

/// The messages of the kernel that are left; `None` if this process may not read them.
fn messages(path: &Path) -> Option<String> {
    let mut log = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path).ok()?;
    let mut text = Vec::new();
    // One message a read; longer ones fail (Documentation/ABI/testing/dev-kmsg of Linux).
    let mut message = vec![0; 8192];
    for _ in 0..MOST_MESSAGES {
        match log.read(&mut message) {
            Ok(0) => break,
            Ok(length) => text.extend_from_slice(&message[..length]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => break,
            // Messages were overwritten meanwhile.
            Err(error) if error.kind() == ErrorKind::BrokenPipe => {}
            Err(_) => return None,
        }
    }
    Some(String::from_utf8_lossy(&text).into_owned())
}

/// Addresses and numbers in lines such as `NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.`
fn xids(text: &str) -> Vec<(String, u32)> {
    let mut found: Vec<(String, u32)> = Vec::new();
    for rest in text.lines().filter_map(|line| line.split_once("NVRM: Xid (").map(|(_, rest)| rest)) {
        let Some((place, rest)) = rest.split_once("): ") else { continue };
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        let Ok(number) = rest[..digits].parse() else { continue };
        let xid = (place.trim_start_matches("PCI:").to_owned(), number);
        if !found.contains(&xid) {
            found.push(xid);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_of_gpus_are_read_from_the_kernels_messages() {
        let text = "6,1,2,-;Linux\n3,4,5,-;NVRM: Xid (PCI:0000:3b:00): 79, pid=7, GPU has fallen off the bus.\n \
                    SUBSYSTEM=pci\n3,5,6,-;NVRM: Xid (PCI:0000:3b:00): 79, again\n3,6,7,-;NVRM: Xid (0000:af:00): 13\n\
                    3,7,8,-;NVRM: Xid (odd\n3,7,8,-;NVRM: Xid (x): y\n";
        assert_eq!(xids(text), [("0000:3b:00".to_owned(), 79), ("0000:af:00".to_owned(), 13)]);
        assert_eq!(messages(Path::new("/nowhere")), None);
    }
}
