//! Whose clock is wrong: for people, who read logs of several nodes side by side. Nothing here is decided by clocks.

use std::time::Duration;

/// How far a clock may be off until somebody is told.
const APART: Duration = Duration::from_secs(10);
/// How many are named.
const NAMED: usize = 8;

/// What a clock said when its node came, in milliseconds, and when that was here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reading {
    /// There.
    pub clock_ms: u64,
    /// Here, on the clock of the agreement.
    pub came: Duration,
}

/// One line for each clock that is far from what most say; `readings` with the names of their machines.
pub fn apart(readings: &[(&str, Reading)]) -> Vec<String> {
    let millis = |time: Duration| i64::try_from(time.as_millis()).unwrap_or(i64::MAX);
    let offset =
        |reading: &Reading| i64::try_from(reading.clock_ms).unwrap_or(i64::MAX).saturating_sub(millis(reading.came));
    let mut all: Vec<i64> = readings.iter().map(|(_, reading)| offset(reading)).collect();
    all.sort_unstable();
    let Some(middle) = all.get(all.len() / 2) else { return Vec::new() };
    let off = |(host, reading): &(&str, Reading)| {
        let by = offset(reading).saturating_sub(*middle);
        let way = if by < 0 { "behind" } else { "ahead of" };
        let seconds = by.unsigned_abs() as f64 / 1000.0;
        (by.unsigned_abs() > APART.as_millis() as u64)
            .then(|| format!("the clock of {host} is {seconds:.0} s {way} that of other nodes; their logs cannot be read side by side"))
    };
    readings.iter().filter_map(off).take(NAMED).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reading(clock_ms: u64, came_ms: u64) -> Reading {
        Reading { clock_ms, came: Duration::from_millis(came_ms) }
    }

    #[test]
    fn only_clocks_are_compared_not_when_nodes_came() {
        let all = [
            ("a", reading(1_000_000, 5_000)),
            ("b", reading(1_120_300, 125_000)),
            ("c", reading(1_995_000, 1_000_000)),
        ];
        assert_eq!(apart(&all), Vec::<String>::new());
        assert_eq!(apart(&[]), Vec::<String>::new());
    }

    #[test]
    fn who_is_off_is_named_with_how_much() {
        let all = [("a", reading(1_000_000, 0)), ("b", reading(1_000_900, 1_000)), ("c", reading(1_032_000, 2_000))];
        let said = apart(&all);
        assert_eq!(said.len(), 1);
        assert!(said[0].contains("the clock of c is 30 s ahead"), "{said:?}");
        let late = [("a", reading(1_000_000, 0)), ("b", reading(1_000_000, 10)), ("c", reading(0, 0))];
        assert!(apart(&late)[0].contains("c is 1000 s behind"), "{:?}", apart(&late));
        let absurd = [("a", reading(u64::MAX, 0)), ("b", reading(0, 1))];
        assert_eq!(apart(&absurd).len(), 1);
    }
}
