//! The samples of a run, thinned out so that a run of any length fits into the page.

use crate::model::ProcessLabel;
use crate::report::run_page::fields;
use crate::report::wording::sized;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

/// Ranks that have a line each. Of more, there is a band from the least to the most, with the median.
pub(super) const MOST_LINES: usize = 8;
/// Points of a curve: two of them become one when there are twice as many.
const MOST_POINTS: usize = 400;

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::report::run_page) enum Measure {
    Cpu,
    Memory,
    Gpu,
    GpuMemory,
}

impl Measure {
    pub const ALL: [Self; 4] = [Self::Cpu, Self::Memory, Self::Gpu, Self::GpuMemory];

    fn field(self) -> &'static str {
        match self {
            Self::Cpu => "cpu_percent",
            Self::Memory => "memory_bytes",
            Self::Gpu => "gpu_percent",
            Self::GpuMemory => "gpu_memory_bytes",
        }
    }

    pub fn title(self) -> &'static str {
        match self {
            Self::Cpu => "CPU",
            Self::Memory => "Memory",
            Self::Gpu => "GPU",
            Self::GpuMemory => "GPU mem.",
        }
    }

    pub fn shown(self, value: f64) -> String {
        match self {
            Self::Cpu | Self::Gpu => format!("{value:.0} %"),
            Self::Memory | Self::GpuMemory => sized(value as u64),
        }
    }
}

/// The values of all ranks at a time, or in a span of time.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Point {
    /// Seconds since the first event.
    pub at: f64,
    pub least: f64,
    pub median: f64,
    pub most: f64,
    /// The value of each rank, if there are few.
    pub ranks: BTreeMap<ProcessLabel, f64>,
    /// Samples in it.
    samples: usize,
}

impl Point {
    /// `None`: no rank has a value.
    fn of(at: f64, values: &[(ProcessLabel, f64)]) -> Option<Self> {
        let mut sorted: Vec<f64> = values.iter().map(|(_, value)| *value).collect();
        sorted.sort_by(f64::total_cmp);
        let (least, median, most) = (*sorted.first()?, sorted[sorted.len() / 2], *sorted.last()?);
        let ranks = if values.len() <= MOST_LINES { values.iter().copied().collect() } else { BTreeMap::new() };
        Some(Self { at, least, median, most, ranks, samples: 1 })
    }

    /// Takes a later one in. Peaks stay.
    fn absorb(&mut self, later: Self) {
        let (own, other) = (self.samples as f64, later.samples as f64);
        self.median = (self.median * own + later.median * other) / (own + other);
        self.least = self.least.min(later.least);
        self.most = self.most.max(later.most);
        for (label, value) in later.ranks {
            let most = self.ranks.entry(label).or_insert(value);
            *most = most.max(value);
        }
        self.samples += later.samples;
    }
}

/// One measure over time.
#[derive(Debug, Default)]
pub(super) struct Curve {
    pub points: Vec<Point>,
    /// Samples in a point.
    stride: usize,
    /// The most ranks that a sample had.
    pub most_ranks: usize,
}

impl Curve {
    fn add(&mut self, point: Point) {
        match self.points.last_mut() {
            Some(last) if last.samples < self.stride => last.absorb(point),
            _ => self.points.push(point),
        }
        if self.points.len() >= 2 * MOST_POINTS {
            let mut all = std::mem::take(&mut self.points).into_iter();
            while let Some(mut first) = all.next() {
                if let Some(second) = all.next() {
                    first.absorb(second);
                }
                self.points.push(first);
            }
            self.stride = self.points.first().map_or(1, |point| point.samples);
        }
    }

    /// The points, cut where there was no sample for long: between two attempts, or while the launcher was suspended.
    pub fn pieces(&self) -> Vec<&[Point]> {
        let (Some(first), Some(last)) = (self.points.first(), self.points.last()) else { return Vec::new() };
        let usual = (last.at - first.at) / self.points.len() as f64;
        self.points.chunk_by(|one, next| next.at - one.at <= 3.0 * usual).collect()
    }
}

/// All measures.
#[derive(Debug, Default)]
pub(in crate::report::run_page) struct Curves(BTreeMap<Measure, Curve>);

impl Curves {
    /// Adds a `sample` event, so many seconds after the first event.
    pub fn add(&mut self, event: &Value, at: f64) {
        let Some(ranks) = event["ranks"].as_array() else { return };
        for measure in Measure::ALL {
            let value =
                |rank: &Value| Some((fields::label(rank, "role", "rank")?, fields::number(rank, measure.field())?));
            let values: Vec<_> = ranks.iter().filter_map(value).collect();
            if let Some(point) = Point::of(at, &values) {
                let curve = self.0.entry(measure).or_default();
                curve.most_ranks = curve.most_ranks.max(values.len());
                curve.add(point);
            }
        }
    }

    /// The ranks that have lines.
    pub(super) fn labels(&self) -> BTreeSet<ProcessLabel> {
        let points = self.0.values().flat_map(|curve| &curve.points);
        points.flat_map(|point| point.ranks.keys().copied()).collect()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (Measure, &Curve)> {
        self.0.iter().map(|(measure, curve)| (*measure, curve))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn sample(values: &[f64]) -> Value {
        let rank = |(rank, value): (usize, &f64)| json!({ "role": "rank", "rank": rank, "cpu_percent": value });
        json!({ "ranks": values.iter().enumerate().map(rank).collect::<Vec<_>>() })
    }

    #[test]
    fn a_long_run_has_few_points_and_keeps_its_peaks() {
        let mut curves = Curves::default();
        for second in 0..10_000 {
            curves.add(&sample(&[if second == 777 { 900.0 } else { 50.0 }, 40.0]), f64::from(second));
        }
        let (measure, curve) = curves.iter().next().unwrap();
        assert_eq!((measure, curves.iter().count()), (Measure::Cpu, 1));
        assert!((MOST_POINTS / 2..2 * MOST_POINTS).contains(&curve.points.len()), "{}", curve.points.len());
        assert_eq!(curve.points.iter().map(|point| point.samples).sum::<usize>(), 10_000);
        assert_eq!(curve.points.iter().map(|point| point.most).fold(0.0, f64::max), 900.0);
        assert_eq!(curve.pieces().len(), 1);
    }

    #[test]
    fn a_curve_is_cut_where_no_rank_ran() {
        let mut curves = Curves::default();
        for at in [0.0, 1.0, 2.0, 3.0, 60.0, 61.0] {
            curves.add(&sample(&[1.0]), at);
        }
        curves.add(&json!({ "ranks": "none" }), 62.0);
        curves.add(&json!({ "ranks": [{ "role": "rank", "rank": 0, "cpu_percent": -1 }, 7] }), 63.0);
        let curve = curves.iter().next().unwrap().1;
        assert_eq!(curve.pieces().iter().map(|piece| piece.len()).collect::<Vec<_>>(), [4, 2]);
    }

    #[test]
    fn many_ranks_have_a_band() {
        let mut curves = Curves::default();
        curves.add(&sample(&(0..512).map(f64::from).collect::<Vec<_>>()), 0.0);
        let curve = curves.iter().next().unwrap().1;
        let point = &curve.points[0];
        assert_eq!((point.least, point.median, point.most, point.ranks.len()), (0.0, 256.0, 511.0, 0));
    }
}
