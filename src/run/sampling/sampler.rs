//! The thread "rlaunch-sampler": measures what the ranks use at intervals, for the journal and for the metrics file. It exists only
//! if the user wants one of these.

use super::metrics_text::render;
use super::queue::{RankSample, SampleQueue};
use crate::net::thread;
use crate::probe::nvml::GpuMonitor;
use crate::report::job_status::{JobStatus, LaunchPhase, RankStatus};
use crate::run::control::live_status::LiveStatus;
use crate::run::control::rank_facts::{Moment, RankFacts};
use crate::run::gpu_reader::GpuReader;
use crate::run::launch::Launch;
use crate::run::output::log_files;
use crate::spec::records::sampling::SamplingSpec;
use crate::sys::clock;
use crate::sys::io::fd;
use crate::sys::io::poll::Poller;
use crate::sys::process::current;
use crossbeam_channel::{Receiver, Sender, TryRecvError, bounded};
use nix::sys::eventfd::{EfdFlags, EventFd};
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tracing::{debug, warn};

/// How often the metrics file is written without `--sample`.
const METRICS_INTERVAL: Duration = Duration::from_secs(15);
/// How long the last write of the metrics file is waited for: its disk may hang.
const END: Duration = Duration::from_secs(1);
/// The collector runs as another user.
const METRICS_MODE: u32 = 0o644;

/// A sampler that runs. Dropping it ends it.
pub struct Sampler {
    wakeup: Arc<EventFd>,
    /// Receives the launcher's exit status; closed when there is none.
    exit_status: Option<Sender<i32>>,
    /// Closes when the thread ends.
    ended: Receiver<()>,
}

impl Sampler {
    /// Starts the thread, if the user wants samples or metrics.
    pub fn start(launch: &Launch<'_>) -> io::Result<Option<Self>> {
        if launch.sampling == SamplingSpec::default() {
            return Ok(None);
        }
        let wakeup = Arc::new(fd::eventfd(EfdFlags::EFD_NONBLOCK)?);
        launch.status.wake_at_phases(&wakeup);
        let kept = [wakeup.as_raw_fd(), launch.samples.open()?];
        let (exit_status, end) = bounded(1);
        let (guard, ended) = bounded::<()>(0);
        let state = SamplerThread {
            spec: launch.sampling.clone(),
            status: launch.status.clone(),
            queue: launch.samples.clone(),
            gpus: launch.gpu_reader.clone(),
            wakeup: Arc::clone(&wakeup),
            end,
            has_warned: false,
        };
        thread::spawn("rlaunch-sampler", move || {
            let _guard = guard;
            if let Err(error) = state.run(kept) {
                warn!("no more samples of the ranks are taken: {error}");
            }
        })?;
        Ok(Some(Self { wakeup, exit_status: Some(exit_status), ended }))
    }

    /// Ends the thread after a last write of the metrics file.
    pub fn end(self, exit_status: i32) {
        if let Some(sender) = &self.exit_status {
            // The channel has room for one, and one is sent.
            let _ = sender.try_send(exit_status);
        }
    }
}

impl Drop for Sampler {
    fn drop(&mut self) {
        self.exit_status = None;
        let _ = self.wakeup.write(1);
        let _ = self.ended.recv_timeout(END);
    }
}

struct SamplerThread {
    spec: SamplingSpec,
    status: LiveStatus,
    queue: SampleQueue,
    gpus: GpuReader,
    wakeup: Arc<EventFd>,
    end: Receiver<i32>,
    has_warned: bool,
}

impl SamplerThread {
    fn run(mut self, kept: [RawFd; 2]) -> io::Result<()> {
        // A lifeline kills the rest of a rank's process group when its last copy closes: this thread, which may hang at a disk or a GPU,
        // must not hold any.
        if let Err(error) = current::keep_descriptors(&kept) {
            debug!("the sampler's thread has no table of descriptors of its own: {error}");
        }
        let poll = Poller::new()?;
        poll.readable(&*self.wakeup, 0)?;
        let interval = self.spec.interval.unwrap_or(METRICS_INTERVAL);
        let mut before = Moment::now();
        let mut due = clock::now() + interval;
        self.write_metrics(&self.status.get(), &[], None);
        loop {
            poll.wait(Some(due.saturating_sub(clock::now())))?;
            let is_woken = self.wakeup.read().is_ok();
            let end = match self.end.try_recv() {
                Ok(exit_status) => Some(Some(exit_status)),
                Err(TryRecvError::Disconnected) => Some(None),
                Err(TryRecvError::Empty) => None,
            };
            if let Some(exit_status) = end {
                let status = JobStatus { phase: LaunchPhase::Ended, ..self.status.get() };
                self.write_metrics(&status, &[], exit_status);
                return Ok(());
            }
            let is_due = clock::now() >= due;
            if !(is_due || is_woken && self.spec.metrics_file.is_some()) {
                continue;
            }
            let status = self.status.get();
            let gpu_use = self.gpus.ask(GpuMonitor::process_use);
            let after = Moment::now();
            let facts = RankFacts::between(&status, (&before, &after), &gpu_use.wait().unwrap_or_default());
            if is_due {
                before = after;
                due = clock::now().max(due) + interval;
                if self.spec.interval.is_some() && status.ranks.iter().any(RankStatus::is_alive) {
                    let living = status.ranks.iter().zip(&facts).filter(|(rank, _)| rank.is_alive());
                    self.queue.push(living.map(|(rank, facts)| RankSample::new(rank, facts.clone())).collect());
                }
            }
            self.write_metrics(&status, &facts, None);
        }
    }

    fn write_metrics(&mut self, status: &JobStatus, facts: &[RankFacts], exit_status: Option<i32>) {
        let Some(path) = self.spec.metrics_file.clone() else { return };
        if let Err(error) = log_files::replace_with_mode(&path, &render(status, facts, exit_status), METRICS_MODE)
            && !std::mem::replace(&mut self.has_warned, true)
        {
            warn!("cannot write --metrics_file: {}", log_files::unusable(Path::new(&path), &error));
        }
    }
}
