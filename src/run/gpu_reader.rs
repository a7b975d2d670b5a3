//! The NVIDIA driver's library, used by one thread of the process alone: a call may hang, and its descriptors are those of one table.
//! `nvmlInit` opens them once a process, so a thread with a table of its own (unshare(2), CLONE_FILES) would use other files under the
//! same numbers. The launcher asks from several such threads.

use crate::net::thread;
use crate::probe::nvml::GpuMonitor;
use crate::sys::process::current;
use crossbeam_channel::{Receiver, Sender, bounded};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tracing::debug;

/// How long the driver may take for an answer; without one, nothing is known of the GPUs.
const PATIENCE: Duration = Duration::from_secs(2);
/// Questions that wait while the driver hangs.
const MOST_WAITING: usize = 16;

type Question = Box<dyn FnOnce(&GpuMonitor) + Send>;

/// Asks the driver. The thread and the driver's library are there from the first question on. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct GpuReader(Arc<OnceLock<Option<Sender<Question>>>>);

/// An answer that comes, unless there is no driver.
#[derive(Debug)]
pub struct PendingAnswer<T>(Option<Receiver<T>>);

impl GpuReader {
    /// Asks, unless too many questions wait for the driver.
    pub fn ask<T: Send + 'static>(&self, question: impl FnOnce(&GpuMonitor) -> T + Send + 'static) -> PendingAnswer<T> {
        let (reply, answer) = bounded(1);
        // The asker may have given up.
        let question: Question = Box::new(move |monitor| drop(reply.send(question(monitor))));
        let questions = self.0.get_or_init(start).as_ref();
        PendingAnswer(questions.and_then(|questions| questions.try_send(question).ok()).map(|()| answer))
    }
}

impl<T> PendingAnswer<T> {
    /// The answer; `None` if it takes too long.
    pub fn wait(self) -> Option<T> {
        self.0?.recv_timeout(PATIENCE).ok()
    }

    /// The answer, however long it takes.
    pub fn wait_without_limit(self) -> Option<T> {
        self.0?.recv().ok()
    }
}

fn start() -> Option<Sender<Question>> {
    let (questions, asked) = bounded::<Question>(MOST_WAITING);
    let body = move || {
        // A lifeline kills the rest of a rank's process group when its last copy closes: this thread, which may hang, must not hold any.
        if let Err(error) = current::keep_descriptors(&[]) {
            debug!("the thread of the GPUs has no table of descriptors of its own: {error}");
        }
        match GpuMonitor::open() {
            Ok(monitor) => asked.iter().for_each(|question| question(&monitor)),
            Err(error) => {
                debug!("NVML is not available: {error}");
                // An asker waits until its question is dropped.
                asked.iter().for_each(drop);
            }
        }
    };
    thread::spawn("rlaunch-gpus", body).ok().map(|_| questions)
}
