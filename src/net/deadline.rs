//! Deadlines of blocking calls.

use std::io;
use std::time::Duration;

/// A monotonic clock: `sys::clock::now`, or that of a test.
pub type Clock = fn() -> Duration;

/// Returns the time that is left. A blocking call asks it before each wait, and ten times a second during one. The call returns
/// `TimedOut` when no time is left, and the error of this function if it returns one.
pub type TimeLeft<'a> = &'a mut dyn FnMut() -> io::Result<Duration>;

/// The time left until `end`.
pub fn until(clock: Clock, end: Duration) -> impl FnMut() -> io::Result<Duration> {
    move || Ok(end.saturating_sub(clock()))
}

/// The time left, or what is left of `limit` from now on if that is shorter.
pub fn at_most<'a>(
    clock: Clock,
    limit: Duration,
    left: TimeLeft<'a>,
) -> impl FnMut() -> io::Result<Duration> + use<'a> {
    let mut own = until(clock, clock() + limit);
    move || Ok(left()?.min(own()?))
}
