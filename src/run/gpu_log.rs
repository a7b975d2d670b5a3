//! `{job_id}.gpu.log`: what the job's GPUs are and, every 5 s, how busy they are. A thread of the supervisor writes it,
//! for which nobody waits: it ends with the process, even inside a driver that hangs.

use super::logs::{self, plain};
use crate::log::gpu;
use crate::plan::visible::Device;
use crate::probe::nvml::Watched;
use crate::sys::{clock, signals};
use crossbeam_channel::tick;
use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::time::Duration;
use tracing::dispatcher::{get_default, with_default};
use tracing::{Dispatch, debug, warn};

/// As in Paddle.
const PERIOD: Duration = Duration::from_secs(5);

/// Begins the log of these GPUs, anew. No error of it is one of the job's: it is said once, and no more is written.
pub fn start(path: &Path, gpus: &[Device]) {
    let file = match logs::open(path, true) {
        Ok(file) => file,
        Err(error) => return warn!("no log of the GPUs is kept: {}", logs::refused(path, &error)),
    };
    let gpus = gpus.to_vec();
    // Log lines go where this thread's go.
    let messages = get_default(Dispatch::clone);
    let body = move || {
        // The loop wakes up for them, not this thread.
        let _held = signals::hold();
        with_default(&messages, || {
            if let Err(error) = keep(file, &gpus) {
                warn!("the log of the GPUs cannot be written any more: {}", plain(&error));
            }
        });
    };
    if let Err(error) = std::thread::Builder::new().name("gpu-log".into()).spawn(body) {
        warn!("no log of the GPUs is kept: {}", plain(&error));
    }
}

fn keep(mut file: File, gpus: &[Device]) -> io::Result<()> {
    let watched = match Watched::open(gpus) {
        Ok(watched) => watched,
        Err(error) => {
            debug!("no driver tells of the GPUs: {error}");
            return append(&mut file, &gpu::head(&[], &[]));
        }
    };
    append(&mut file, &gpu::head(&watched.gpus(), &watched.processes()))?;
    let ticks = tick(PERIOD);
    loop {
        append(&mut file, &gpu::sample(&watched.usage(), &clock::local_timestamp_with_slashes()))?;
        // It never fails.
        let _ = ticks.recv();
    }
}

/// Whole lines or none: half a one would spoil the file for whoever reads it.
fn append(file: &mut File, text: &str) -> io::Result<()> {
    let length = file.metadata()?.len();
    file.write_all(text.as_bytes()).inspect_err(|_| drop(file.set_len(length)))
}
