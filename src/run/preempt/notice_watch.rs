//! Waits for notices that no signal brings: a file that appears, and the end of the time that a scheduler gives the job. Runs on a
//! thread of its own, because a look at a file may hang.

use super::link::{Notice, NoticeCause, PreemptLink};
use crate::net::thread;
use crate::spec::scheduler::preempt::PreemptSpec;
use crate::sys::clock;
use std::io;
use std::time::Duration;

/// How often the file is looked for. No event says so: inotify sees nothing that another machine does on a network file system.
const INTERVAL: Duration = Duration::from_secs(1);
/// The longest pause: the wall clock, by which schedulers count, may be set meanwhile.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// Watches, if there is anything to watch. `time_limit`: when the scheduler ends the job, since the epoch.
pub fn start(spec: &PreemptSpec, time_limit: Option<Duration>, link: &PreemptLink) -> io::Result<()> {
    if spec.file.is_none() && time_limit.is_none() {
        return Ok(());
    }
    let (spec, link) = (spec.clone(), link.clone());
    thread::spawn("rlaunch-notice", move || watch(&spec, time_limit, &link)).map(drop)
}

fn watch(spec: &PreemptSpec, time_limit: Option<Duration>, link: &PreemptLink) {
    loop {
        let left = time_limit.map(|at| at.saturating_sub(clock::wall()));
        let cause = match (&spec.file, left) {
            (Some(file), _) if file.exists() => NoticeCause::File,
            (_, Some(left)) if left <= spec.time => NoticeCause::TimeLimit,
            _ => {
                let until = left.map_or(LONGEST_PAUSE, |left| (left - spec.time).min(LONGEST_PAUSE));
                std::thread::park_timeout(if spec.file.is_some() { until.min(INTERVAL) } else { until });
                continue;
            }
        };
        let time = left.map_or(spec.time, |left| left.min(spec.time));
        link.request(Notice { cause, ends: clock::now().saturating_add(time), kills: None });
        // At the time limit, ranks that have not asked yet may do so later.
        std::thread::park_timeout(INTERVAL);
        if cause == NoticeCause::File || link.notice().is_some() {
            return;
        }
    }
}
