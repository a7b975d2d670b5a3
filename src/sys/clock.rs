//! Clocks.

use std::time::Duration;

/// Monotonic time since boot, standing still while the machine sleeps (`CLOCK_MONOTONIC`). The one
/// clock of supervision.
pub fn now() -> Duration {
    read(libc::CLOCK_MONOTONIC)
}

/// Time since the epoch, as whoever sets the clock has it.
pub fn wall() -> Duration {
    read(libc::CLOCK_REALTIME)
}

fn read(clock: libc::clockid_t) -> Duration {
    let mut ts = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `ts` is a timespec of ours that outlives the call; the clock ids used always exist.
    unsafe { libc::clock_gettime(clock, &mut ts) };
    Duration::new(ts.tv_sec as u64, ts.tv_nsec as u32)
}

/// The wall clock in UTC, as RFC 3339 has it: `2026-11-21T01:57:53.456789Z`.
pub fn utc_timestamp() -> String {
    let now = read(libc::CLOCK_REALTIME);
    let tm = broken_down(now, libc::gmtime_r);
    format!(
        "{:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{:06}Z",
        tm.tm_year + 1900,
        tm.tm_mon + 1,
        tm.tm_mday,
        tm.tm_hour,
        tm.tm_min,
        tm.tm_sec,
        now.subsec_micros()
    )
}

fn broken_down(
    time: Duration,
    how: unsafe extern "C" fn(*const libc::time_t, *mut libc::tm) -> *mut libc::tm,
) -> libc::tm {
    let seconds = time.as_secs() as libc::time_t;
    // SAFETY: tm is plain data, for which all zeroes is a value (its tm_zone may be null).
    let mut tm: libc::tm = unsafe { std::mem::zeroed() };
    // SAFETY: `how` is gmtime_r or localtime_r; both pointers are to values of ours that outlive the call.
    unsafe { how(&seconds, &mut tm) };
    tm
}

/// The wall clock in local time, as `2026-11-21 02:57:53,456`.
pub fn local_timestamp() -> String {
    let now = read(libc::CLOCK_REALTIME);
    let tm = broken_down(now, libc::localtime_r);
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
