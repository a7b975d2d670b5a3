//! The lines of `{job_id}.gpu.log`: those of Paddle's launcher, which are nvidia-smi's with "," for ", ". Numbers have no
//! units: memory is in MiB, utilization in percent.

use super::escape::{Colours, clean};

/// What is known of a GPU. `None` anywhere: the driver does not say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Gpu {
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
    /// Whether a display shows something from it.
    pub display_active: Option<bool>,
    /// Whether a display is connected.
    pub display_mode: Option<bool>,
}

/// A process that computes on a GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Process {
    /// Its id.
    pub pid: u32,
    /// Its program.
    pub name: Option<String>,
    /// The GPU's UUID.
    pub gpu_uuid: Option<String>,
    /// The GPU's product.
    pub gpu_name: Option<String>,
    /// What it has of the GPU's memory, in bytes.
    pub used: Option<u64>,
}

/// How busy a GPU is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// The driver's number.
    pub index: u32,
    /// How much of the last moment it computed, in percent.
    pub utilization: Option<u32>,
    /// Its memory.
    pub memory: Option<Memory>,
}

/// The memory of a GPU, in bytes. What the driver keeps for itself is neither used nor free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it")]
pub struct Memory {
    pub total: u64,
    pub used: u64,
    pub free: u64,
}

const GPUS: &str = "index,uuid,driver_version,name,gpu_serial,display_active,display_mode";
const PROCESSES: &str = "pid,process_name,gpu_uuid,gpu_name,used_memory";
const SAMPLES: &str = "index,utilization_gpu,memory_total,memory_used,memory_free,timestamp";

/// What is written once: the GPUs, who computes on them, and what the samples below are.
pub fn head(gpus: &[Gpu], processes: &[Process]) -> String {
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

/// What is written at each look. `time`: `2026/11/21 13:30:00.123`, local.
pub fn sample(usages: &[Usage], time: &str) -> String {
    let line = |usage: &Usage| {
        let memory = |part: fn(&Memory) -> u64| number(usage.memory.as_ref().map(part).map(mib));
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

/// A process chooses its own name: no line break or control character gets into a row.
fn text(value: &Option<String>) -> String {
    let Some(value) = value else { return MISSING.to_owned() };
    let mut safe = Vec::new();
    clean(&mut safe, value.as_bytes(), Colours::Drop);
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
        let gpu = Gpu {
            index: 1,
            uuid: Some("GPU-a1".into()),
            driver: Some("580.65.06".into()),
            name: Some("NVIDIA H200".into()),
            serial: Some("1654".into()),
            display_active: Some(false),
            display_mode: Some(true),
        };
        let process = Process {
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
        let memory = Some(Memory { total: 100 * MIB, used: 30 * MIB, free: 70 * MIB - 1 });
        let usages = [Usage { index: 1, utilization: Some(42), memory }, Usage { index: 3, ..Usage::default() }];
        assert_eq!(
            sample(&usages, "2026/11/21 13:30:00.123"),
            "1,42,100,30,69,2026/11/21 13:30:00.123\n3,[N/A],[N/A],[N/A],[N/A],2026/11/21 13:30:00.123\n"
        );
    }

    #[test]
    fn what_is_not_known_is_said_to_be_so() {
        let head = head(&[Gpu::default()], &[Process { pid: 7, ..Process::default() }]);
        let unknown = format!(
            "{GPUS}\n0,[N/A],[N/A],[N/A],[N/A],[N/A],[N/A]\n\n{PROCESSES}\n7,[N/A],[N/A],[N/A],[N/A]\n\n{SAMPLES}\n"
        );
        assert_eq!(head, unknown);
    }
}
