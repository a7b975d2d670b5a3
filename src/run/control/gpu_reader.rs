//! What processes use of the GPUs, read by a thread of its own: a call of the driver's library may hang.

use crate::net::thread;
use crate::probe::nvml::{GpuMonitor, GpuProcessUse};
use crossbeam_channel::{Receiver, Sender, bounded};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tracing::debug;

/// How long the driver may take for an answer; without one, nothing is known of the GPUs.
const PATIENCE: Duration = Duration::from_secs(2);

type Answer = Vec<GpuProcessUse>;

/// Reads the use of the GPUs. The thread and the driver's library are there from the first call on; the thread ends at once where
/// there is no driver. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct GpuReader(Arc<OnceLock<Option<Sender<Sender<Answer>>>>>);

/// A call that has begun.
#[derive(Debug)]
pub struct PendingGpuUse(Option<Receiver<Answer>>);

impl GpuReader {
    /// Begins to read, unless the driver has not answered earlier calls.
    pub fn begin(&self) -> PendingGpuUse {
        let begun = self.0.get_or_init(start).as_ref().and_then(|calls| {
            let (reply, answer) = bounded(1);
            calls.try_send(reply).ok().map(|()| answer)
        });
        PendingGpuUse(begun)
    }
}

impl PendingGpuUse {
    /// What was read; nothing if that takes too long.
    pub fn wait(self) -> Vec<GpuProcessUse> {
        self.0.and_then(|answer| answer.recv_timeout(PATIENCE).ok()).unwrap_or_default()
    }
}

fn start() -> Option<Sender<Sender<Answer>>> {
    let (calls, called) = bounded::<Sender<Answer>>(1);
    let body = move || {
        // The caller waits until this is dropped.
        let Ok(first) = called.recv() else { return };
        match GpuMonitor::open_all() {
            Ok(monitor) => {
                std::iter::once(first).chain(called).for_each(|reply| drop(reply.send(monitor.process_use())))
            }
            Err(error) => debug!("NVML is not available: {error}"),
        }
    };
    thread::spawn("rlaunch-gpus", body).ok().map(|_| calls)
}
