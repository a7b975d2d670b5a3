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
    let now = wall();
    format!("{}.{:06}Z", seconds(now, ['-', 'T'], libc::gmtime_r), now.subsec_micros())
}

/// The wall clock in local time, as `2026-11-21 02:57:53,456`.
pub fn local_timestamp() -> String {
    let now = wall();
    format!("{},{:03}", seconds(now, ['-', ' '], libc::localtime_r), now.subsec_millis())
}

/// The same in nvidia-smi's form: `2026/11/21 02:57:53.456`.
pub fn local_timestamp_with_slashes() -> String {
    let now = wall();
    format!("{}.{:03}", seconds(now, ['/', ' '], libc::localtime_r), now.subsec_millis())
}

/// A time of the wall clock in local time, as `2026-11-21_02:57:53`.
pub fn local_seconds(time: Duration) -> String {
    seconds(time, ['-', '_'], libc::localtime_r)
}

/// The same as Google's log lines begin: `1121 02:57:53.456789`.
pub fn local_timestamp_as_glog() -> String {
    let now = wall();
    let text = seconds(now, ['-', ' '], libc::localtime_r);
    let (date, time) = text.split_once(' ').unwrap_or_default();
    let (_, day) = date.split_once('-').unwrap_or_default();
    format!("{} {time}.{:06}", day.replace('-', ""), now.subsec_micros())
}

/// Date and time to the second, with these between the parts of the date and behind it.
fn seconds(
    time: Duration,
    [within, behind]: [char; 2],
    broken_down: unsafe extern "C" fn(*const libc::time_t, *mut libc::tm) -> *mut libc::tm,
) -> String {
    let seconds = time.as_secs() as libc::time_t;
    // SAFETY: tm is plain data, for which all zeroes is a value (its tm_zone may be null).
    let mut tm: libc::tm = unsafe { std::mem::zeroed() };
    // SAFETY: it is gmtime_r or localtime_r; both pointers are to values of ours that outlive the call.
    unsafe { broken_down(&seconds, &mut tm) };
    let (year, month) = (tm.tm_year + 1900, tm.tm_mon + 1);
    let (day, hour, minute, second) = (tm.tm_mday, tm.tm_hour, tm.tm_min, tm.tm_sec);
    format!("{year:04}{within}{month:02}{within}{day:02}{behind}{hour:02}:{minute:02}:{second:02}")
}
