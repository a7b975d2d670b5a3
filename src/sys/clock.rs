//! Clocks and timestamps.

use std::time::Duration;

/// Monotonic time since boot without the time in which the machine sleeps (`CLOCK_MONOTONIC`): the clock of
/// supervision.
pub fn now() -> Duration {
    read(libc::CLOCK_MONOTONIC)
}

/// Time since boot with the time in which the machine sleeps (`CLOCK_BOOTTIME`): the clock of leases, because other machines do
/// not sleep with this one.
pub fn boot() -> Duration {
    read(libc::CLOCK_BOOTTIME)
}

/// Wall-clock time since the epoch.
pub fn wall() -> Duration {
    read(libc::CLOCK_REALTIME)
}

/// How the kernel keeps the wall clock (adjtimex(2)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Discipline {
    /// Whether a program such as chrony or ntpd corrects it.
    pub is_synchronized: bool,
    /// By how much it may be wrong at most, as far as that program knows.
    pub largest_error: Duration,
}

/// How the wall clock is kept; `None` if this process may not know.
pub fn discipline() -> Option<Discipline> {
    // SAFETY: timex is plain data, for which all zeroes is a valid value; modes 0 only reads.
    let mut found: libc::timex = unsafe { std::mem::zeroed() };
    // SAFETY: `found` is a local value that outlives the call.
    let state = unsafe { libc::adjtimex(&mut found) };
    (state >= 0).then(|| Discipline {
        is_synchronized: state != libc::TIME_ERROR && found.status & libc::STA_UNSYNC == 0,
        largest_error: Duration::from_micros(u64::try_from(found.maxerror).unwrap_or_default()),
    })
}

fn read(clock: libc::clockid_t) -> Duration {
    let mut ts = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `ts` is a local timespec that outlives the call; these clock ids always exist.
    unsafe { libc::clock_gettime(clock, &mut ts) };
    Duration::new(ts.tv_sec as u64, ts.tv_nsec as u32)
}

/// The wall clock in UTC in RFC 3339 format: `2026-11-21T01:57:53.456789Z`.
pub fn utc_timestamp() -> String {
    utc(wall())
}

/// A time of the wall clock in the form of `utc_timestamp`: such texts sort by time.
pub fn utc(time: Duration) -> String {
    format!("{}.{:06}Z", seconds(time, ['-', 'T'], libc::gmtime_r), time.subsec_micros())
}

/// The wall clock in local time, as `2026-11-21 02:57:53,456`.
pub fn local_timestamp() -> String {
    let now = wall();
    format!("{},{:03}", seconds(now, ['-', ' '], libc::localtime_r), now.subsec_millis())
}

/// The same in nvidia-smi's format: `2026/11/21 02:57:53.456`.
pub fn local_timestamp_with_slashes() -> String {
    let now = wall();
    format!("{}.{:03}", seconds(now, ['/', ' '], libc::localtime_r), now.subsec_millis())
}

/// A time of the wall clock in local time, as `2026-11-21_02:57:53`.
pub fn local_seconds(time: Duration) -> String {
    seconds(time, ['-', '_'], libc::localtime_r)
}

/// Date and time to the second. `within` separates the parts of the date, `behind` follows it.
fn seconds(
    time: Duration,
    [within, behind]: [char; 2],
    broken_down: unsafe extern "C" fn(*const libc::time_t, *mut libc::tm) -> *mut libc::tm,
) -> String {
    let seconds = time.as_secs() as libc::time_t;
    // SAFETY: tm is plain data, for which all zeroes is a valid value (tm_zone may be null).
    let mut tm: libc::tm = unsafe { std::mem::zeroed() };
    // SAFETY: `broken_down` is gmtime_r or localtime_r; both pointers are to local values that outlive the call.
    unsafe { broken_down(&seconds, &mut tm) };
    let (year, month) = (tm.tm_year + 1900, tm.tm_mon + 1);
    let (day, hour, minute, second) = (tm.tm_mday, tm.tm_hour, tm.tm_min, tm.tm_sec);
    format!("{year:04}{within}{month:02}{within}{day:02}{behind}{hour:02}:{minute:02}:{second:02}")
}
