//! `{job_id}.gpu.log`: the GPUs of a job and, every 5 s, their utilization. A thread of the supervisor process writes it. The
//! process does not wait for this thread, which may wait for the driver or a disk.

use crate::net::thread;
use crate::plan::devices::visible_devices::Device;
use crate::report::gpu_log;
use crate::run::gpu_reader::GpuReader;
use crate::run::output::log_files;
use crate::run::output::log_files::plain;
use crate::sys::clock;
use crossbeam_channel::tick;
use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::time::Duration;
use tracing::warn;

/// The same as in Paddle.
const PERIOD: Duration = Duration::from_secs(5);

/// Starts the log of these GPUs. On a full disk a sample is left out. Another error ends the log with a warning and does not
/// affect the job.
pub fn start(path: &Path, gpus: &[Device], reader: GpuReader) {
    let file = match log_files::open(path, true) {
        Ok(file) => file,
        Err(error) => return warn!("the GPU log is not written: {}", log_files::unusable(path, &error)),
    };
    let gpus = gpus.to_vec();
    let body = move || {
        if let Err(error) = write_samples(file, gpus, &reader) {
            warn!("the GPU log ends here: {}", plain(&error));
        }
    };
    if let Err(error) = thread::spawn("gpu-log", body) {
        warn!("the GPU log is not written: {}", plain(&error));
    }
}

fn write_samples(mut file: File, gpus: Vec<Device>, reader: &GpuReader) -> io::Result<()> {
    let begun = reader.ask(move |monitor| {
        let numbers = monitor.numbers(&gpus);
        (gpu_log::head(&monitor.gpus(&numbers), &monitor.processes(&numbers)), numbers)
    });
    let Some((head, numbers)) = begun.wait_without_limit() else {
        return append(&mut file, &gpu_log::head(&[], &[]));
    };
    // Samples without what they are of would tell nothing.
    append(&mut file, &head)?;
    let ticks = tick(PERIOD);
    let mut left_out = 0;
    loop {
        let numbers = numbers.clone();
        if let Some(usage) = reader.ask(move |monitor| monitor.usage(&numbers)).wait_without_limit() {
            match append(&mut file, &gpu_log::sample(&usage, &clock::local_timestamp_with_slashes())) {
                Ok(()) if left_out > 0 => {
                    warn!("the GPU log goes on; {left_out} samples are missing in it");
                    left_out = 0;
                }
                Ok(()) => {}
                Err(error) if log_files::has_no_room(&error) => {
                    if left_out == 0 {
                        warn!("the GPU log is not written for now: {}", plain(&error));
                    }
                    left_out += 1;
                }
                Err(error) => return Err(error),
            }
        }
        // A tick channel is never closed.
        let _ = ticks.recv();
    }
}

/// Appends whole lines or nothing, so that readers see no partial line.
fn append(file: &mut File, text: &str) -> io::Result<()> {
    let length = file.metadata()?.len();
    file.write_all(text.as_bytes()).inspect_err(|_| drop(file.set_len(length)))
}
