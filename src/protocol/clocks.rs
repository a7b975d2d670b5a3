//! Warnings about wrong clocks, for people who read the logs of several nodes side by side. No decision depends on clocks.

use std::time::Duration;

/// How far a clock may be off without a warning.
const MAX_OFFSET: Duration = Duration::from_secs(10);
/// How many clocks are named.
const MAX_NAMED: usize = 8;

/// What a node's clock said when the node joined, in milliseconds, and when that was on the coordinator's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockReading {
    /// The node's clock.
    pub clock_ms: u64,
    /// The coordinator's clock.
    pub joined: Duration,
}

/// One line for each clock that is far from the median; `readings` with the names of their machines.
pub fn offset_warnings(readings: &[(&str, ClockReading)]) -> Vec<String> {
    let millis = |time: Duration| i64::try_from(time.as_millis()).unwrap_or(i64::MAX);
    let offset = |reading: &ClockReading| {
        i64::try_from(reading.clock_ms).unwrap_or(i64::MAX).saturating_sub(millis(reading.joined))
    };
    let mut all: Vec<i64> = readings.iter().map(|(_, reading)| offset(reading)).collect();
    all.sort_unstable();
    let Some(median) = all.get(all.len() / 2) else { return Vec::new() };
    let warning = |(host, reading): &(&str, ClockReading)| {
        let by = offset(reading).saturating_sub(*median);
        let direction = if by < 0 { "behind" } else { "ahead of" };
        let seconds = by.unsigned_abs() as f64 / 1000.0;
        (by.unsigned_abs() > MAX_OFFSET.as_millis() as u64).then(|| {
            format!("the clock of {host} is {seconds:.0} s {direction} that of other nodes; their logs cannot be read side by side")
        })
    };
    readings.iter().filter_map(warning).take(MAX_NAMED).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reading(clock_ms: u64, joined_ms: u64) -> ClockReading {
        ClockReading { clock_ms, joined: Duration::from_millis(joined_ms) }
    }

    #[test]
    fn only_clocks_are_compared_not_when_nodes_joined() {
        let all = [
            ("a", reading(1_000_000, 5_000)),
            ("b", reading(1_120_300, 125_000)),
            ("c", reading(1_995_000, 1_000_000)),
        ];
        assert_eq!(offset_warnings(&all), Vec::<String>::new());
        assert_eq!(offset_warnings(&[]), Vec::<String>::new());
    }

    #[test]
    fn a_wrong_clock_is_named_with_its_offset() {
        let all = [("a", reading(1_000_000, 0)), ("b", reading(1_000_900, 1_000)), ("c", reading(1_032_000, 2_000))];
        let warnings = offset_warnings(&all);
        assert_eq!(warnings.len(), 1);
        assert!(warnings[0].contains("the clock of c is 30 s ahead"), "{warnings:?}");
        let late = [("a", reading(1_000_000, 0)), ("b", reading(1_000_000, 10)), ("c", reading(0, 0))];
        assert!(offset_warnings(&late)[0].contains("c is 1000 s behind"), "{:?}", offset_warnings(&late));
        let absurd = [("a", reading(u64::MAX, 0)), ("b", reading(0, 1))];
        assert_eq!(offset_warnings(&absurd).len(), 1);
    }

    #[test]
    fn clocks_are_compared_with_the_median_from_10_seconds_on() {
        let all = |wrong: &[u64]| {
            let right = wrong.iter().map(|_| ("right", reading(100_000, 0)));
            let wrong = wrong.iter().map(|clock_ms| ("wrong", reading(*clock_ms, 0)));
            offset_warnings(&right.chain([("right", reading(100_000, 0))]).chain(wrong).collect::<Vec<_>>()).len()
        };
        for (clocks, warnings) in [
            (&[90_000, 110_000][..], 0),
            (&[89_999, 110_000], 1),
            (&[90_000, 110_001], 1),
            (&[0, 0, 0], 3),
            (&[0; 9], MAX_NAMED),
        ] {
            assert_eq!(all(clocks), warnings, "{clocks:?}");
        }
        let even =
            [("a", reading(0, 0)), ("b", reading(50_000, 0)), ("c", reading(50_000, 0)), ("d", reading(51_000, 0))];
        let warnings = offset_warnings(&even);
        assert!(matches!(&warnings[..], [one] if one.contains("the clock of a is 50 s behind")), "{warnings:?}");
    }
}
