//! A timer on the clock of leases: a descriptor that is readable once a time has come, at once after the machine has slept
//! through it (timerfd_create(2), CLOCK_BOOTTIME).

use crate::sys::io::fd;
use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

/// A timer.
#[derive(Debug)]
pub struct BootTimer(TimerFd);

impl BootTimer {
    /// A timer that is not set.
    pub fn new() -> io::Result<Self> {
        let timer = TimerFd::new(ClockId::CLOCK_BOOTTIME, TimerFlags::TFD_CLOEXEC | TimerFlags::TFD_NONBLOCK)?;
        let fd = fd::above_stdio(timer.into())?;
        // SAFETY: it is a timer, or a copy of its descriptor.
        Ok(Self(unsafe { TimerFd::from_owned_fd(fd) }))
    }

    /// Becomes readable at `at` (`clock::boot`), or at once if that is over; `None`: never.
    pub fn set(&self, at: Option<Duration>) -> io::Result<()> {
        match at {
            // An expiration at 0 would turn it off.
            Some(at) => {
                let at = TimeSpec::from_duration(at.max(Duration::from_nanos(1)));
                self.0.set(Expiration::OneShot(at), TimerSetTimeFlags::TFD_TIMER_ABSTIME)?;
            }
            None => self.0.unset()?,
        }
        Ok(())
    }
}

impl AsFd for BootTimer {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
