//! The lines of `{job_id}.gpu.log`, as Paddle's launcher writes them: nvidia-smi's with "," instead of ", ". Memory is in
//! MiB, utilization in percent, both without units.

use crate::report::console::escape::{ColorPolicy, clean};

/// A GPU. `None`: the driver does not report the value.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GpuRow {
    /// The driver's number.
    pub index: u32,
    /// `GPU-...`.
    pub uuid: Option<String>,
    /// The version of the driver.
    pub driver: Option<String>,
    /// The product.
    pub name: Option<String>,
    /// The number on the board.
    pub serial: Option<String>,
    /// Whether a display is active on it.
    pub display_active: Option<bool>,
    /// Whether a display is connected.
    pub display_mode: Option<bool>,
}

/// A process that computes on a GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GpuProcess {
    /// Its pid.
    pub pid: u32,
    /// Its program.
    pub name: Option<String>,
    /// The GPU's UUID.
    pub gpu_uuid: Option<String>,
    /// The GPU's product.
    pub gpu_name: Option<String>,
    /// GPU memory that it uses, in bytes.
    pub used: Option<u64>,
}

/// One sample of a GPU's use.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GpuUsage {
    /// The driver's number.
    pub index: u32,
    /// Compute utilization, in percent.
    pub utilization: Option<u32>,
    /// Its memory.
    pub memory: Option<GpuMemory>,
}

/// The memory of a GPU, in bytes. The driver's own share is neither used nor free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it")]
pub struct GpuMemory {
    pub total: u64,
    pub used: u64,
    pub free: u64,
}

const GPUS: &str = "index,uuid,driver_version,name,gpu_serial,display_active,display_mode";
const PROCESSES: &str = "pid,process_name,gpu_uuid,gpu_name,used_memory";
const SAMPLES: &str = "index,utilization_gpu,memory_total,memory_used,memory_free,timestamp";

/// The head of the log: the GPUs, the processes on them, and the header of the samples.
pub fn head(gpus: &[GpuRow], processes: &[GpuProcess]) -> String {
    let enabled = |is: &Option<bool>| is.map_or(MISSING, |is| if is { "Enabled" } else { "Disabled" }).to_owned();
    let gpus = gpus.iter().map(|gpu| {
        row([
            gpu.index.to_string(),
            text(&gpu.uuid),
            text(&gpu.driver),
            text(&gpu.name),
            text(&gpu.serial),
            enabled(&gpu.display_active),
            enabled(&gpu.display_mode),
        ])
    });
    let processes = processes.iter().map(|process| {
        row([
            process.pid.to_string(),
            text(&process.name),
            text(&process.gpu_uuid),
            text(&process.gpu_name),
            number(process.used.map(mib)),
        ])
    });
    let (gpus, processes): (String, String) = (gpus.collect(), processes.collect());
    format!("{GPUS}\n{gpus}\n{PROCESSES}\n{processes}\n{SAMPLES}\n")
}

/// One sample. `time`: `2026/11/21 13:30:00.123`, local.
pub fn sample(usages: &[GpuUsage], time: &str) -> String {
    let line = |usage: &GpuUsage| {
        let memory = |part: fn(&GpuMemory) -> u64| number(usage.memory.as_ref().map(part).map(mib));
        row([
            usage.index.to_string(),
            number(usage.utilization),
            memory(|memory| memory.total),
            memory(|memory| memory.used),
            memory(|memory| memory.free),
            time.to_owned(),
        ])
    };
    usages.iter().map(line).collect()
}

const MISSING: &str = "[N/A]";

fn row<const N: usize>(fields: [String; N]) -> String {
    fields.join(",") + "\n"
}

fn number(value: Option<impl ToString>) -> String {
    value.map_or_else(|| MISSING.to_owned(), |value| value.to_string())
}

/// A process chooses its own name, so line breaks and control characters are removed.
fn text(value: &Option<String>) -> String {
    let Some(value) = value else { return MISSING.to_owned() };
    let mut safe = Vec::new();
    clean(&mut safe, value.as_bytes(), ColorPolicy::Drop);
    String::from_utf8_lossy(&safe).into_owned()
}

fn mib(bytes: u64) -> u64 {
    bytes >> 20
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn a_gpu_of_which_all_is_known() {
        let gpu = GpuRow {
            index: 1,
            uuid: Some("GPU-a1".into()),
            driver: Some("580.65.06".into()),
            name: Some("NVIDIA H200".into()),
            serial: Some("1654".into()),
            display_active: Some(false),
            display_mode: Some(true),
        };
        let process = GpuProcess {
            pid: 7,
            name: Some("/usr/bin/py\nthon\x1b[31m".into()),
            gpu_uuid: Some("GPU-a1".into()),
            gpu_name: Some("NVIDIA H200".into()),
            used: Some(3 * MIB + 1),
        };
        let head = head(&[gpu], &[process]);
        let lines: Vec<_> = head.lines().collect();
        assert_eq!(
            lines,
            [
                GPUS,
                "1,GPU-a1,580.65.06,NVIDIA H200,1654,Disabled,Enabled",
                "",
                PROCESSES,
                "7,/usr/bin/python,GPU-a1,NVIDIA H200,3",
                "",
                SAMPLES
            ]
        );
        let memory = Some(GpuMemory { total: 100 * MIB, used: 30 * MIB, free: 70 * MIB - 1 });
        let usages =
            [GpuUsage { index: 1, utilization: Some(42), memory }, GpuUsage { index: 3, ..GpuUsage::default() }];
        assert_eq!(
            sample(&usages, "2026/11/21 13:30:00.123"),
            "1,42,100,30,69,2026/11/21 13:30:00.123\n3,[N/A],[N/A],[N/A],[N/A],2026/11/21 13:30:00.123\n"
        );
    }

    #[test]
    fn what_is_not_known_is_said_to_be_so() {
        let head = head(&[GpuRow::default()], &[GpuProcess { pid: 7, ..GpuProcess::default() }]);
        let unknown = format!(
            "{GPUS}\n0,[N/A],[N/A],[N/A],[N/A],[N/A],[N/A]\n\n{PROCESSES}\n7,[N/A],[N/A],[N/A],[N/A]\n\n{SAMPLES}\n"
        );
        assert_eq!(head, unknown);
    }
}
