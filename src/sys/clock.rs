//! Clocks.

use std::time::Duration;

/// Monotonic time since boot, standing still while the machine sleeps (`CLOCK_MONOTONIC`). The one
/// clock of supervision.
pub fn now() -> Duration {
    read(libc::CLOCK_MONOTONIC)
}

fn read(clock: libc::clockid_t) -> Duration {
    let mut ts = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `ts` is a timespec of ours that outlives the call; the clock ids used always exist.
    unsafe { libc::clock_gettime(clock, &mut ts) };
    Duration::new(ts.tv_sec as u64, ts.tv_nsec as u32)
}

/// The wall clock in local time, as `2026-11-21 02:57:53,456`.
pub fn local_timestamp() -> String {
    let now = read(libc::CLOCK_REALTIME);
    let seconds = now.as_secs() as libc::time_t;
    // SAFETY: tm is plain data, for which all zeroes is a value (its tm_zone may be null).
    let mut tm: libc::tm = unsafe { std::mem::zeroed() };
    // SAFETY: both pointers are to values of ours that outlive the call.
    unsafe { libc::localtime_r(&seconds, &mut tm) };
    format!(
        "{:04}-{:02}-{:02} {:02}:{:02}:{:02},{:03}",
        tm.tm_year + 1900,
        tm.tm_mon + 1,
        tm.tm_mday,
        tm.tm_hour,
        tm.tm_min,
        tm.tm_sec,
        now.subsec_millis()
    )
}
