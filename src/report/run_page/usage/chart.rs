//! The curves as lanes of the timeline, in SVG.

use super::curves::{Curve, Curves, MOST_LINES, Measure, Point};
use crate::model::ProcessLabel;
use crate::report::run_page::html;
use std::collections::BTreeSet;
use std::fmt::Write;

/// Units of the drawing, which is stretched to its lane.
const WIDTH: f64 = 1000.0;
const HEIGHT: f64 = 100.0;

/// A lane for each measure. `percent`: where in the timeline a time is.
pub(in crate::report::run_page) fn lanes(curves: &Curves, percent: impl Fn(f64) -> f64) -> String {
    let x = |at: f64| percent(at) / 100.0 * WIDTH;
    let labels = curves.labels();
    curves.iter().map(|(measure, curve)| lane((measure, curve), &labels, &x)).collect()
}

fn lane((measure, curve): (Measure, &Curve), labels: &BTreeSet<ProcessLabel>, x: &dyn Fn(f64) -> f64) -> String {
    let most = curve.points.iter().map(|point| point.most).fold(0.0, f64::max);
    // Half a line's width stays free above the highest point.
    let y = |value: f64| HEIGHT * (1.0 - 0.97 * value / most.max(1e-9));
    let (title, limit) = (measure.title(), html::text(&measure.shown(most)));
    let mut lane = format!(
        "<div class=\"lane chart\"><span class=\"name\">{title}<i>up to {limit}</i></span><div class=\"track\">\
        <svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" preserveAspectRatio=\"none\" role=\"img\" aria-label=\"{title} of the ranks, up to {limit}\">"
    );
    let line = |points: &mut dyn Iterator<Item = (f64, f64)>| {
        let text: Vec<String> = points.map(|(at, value)| format!("{:.1},{:.1}", x(at), y(value))).collect();
        text.join(" ")
    };
    for piece in curve.pieces() {
        if curve.most_ranks > MOST_LINES {
            let upper = piece.iter().map(|point| (point.at, point.most));
            let lower = piece.iter().rev().map(|point| (point.at, point.least));
            let (band, median) = (line(&mut upper.chain(lower)), line(&mut piece.iter().map(|p| (p.at, p.median))));
            let _ = write!(lane, "<polygon points=\"{band}\"></polygon><polyline points=\"{median}\"></polyline>");
            continue;
        }
        for (number, label) in labels.iter().enumerate() {
            let value = |point: &Point| Some((point.at, *point.ranks.get(label)?));
            let (points, name) = (line(&mut piece.iter().filter_map(value)), html::text(&label.to_string()));
            if !points.is_empty() {
                let _ =
                    write!(lane, "<polyline class=\"c{number}\" points=\"{points}\"><title>{name}</title></polyline>");
            }
        }
    }
    lane + "</svg></div></div>\n"
}

/// What the colours and the band mean; empty without curves.
pub(in crate::report::run_page) fn legend(curves: &Curves) -> String {
    let Some((_, curve)) = curves.iter().next() else { return String::new() };
    if curve.most_ranks > MOST_LINES {
        return "<span><i class=\"p band\"></i>least to most of the ranks, with the median</span>".to_owned();
    }
    let one = |(number, label): (usize, &ProcessLabel)| {
        format!("<span><i class=\"p c{number}\"></i>{}</span>", html::text(&label.to_string()))
    };
    curves.labels().iter().take(MOST_LINES).enumerate().map(one).collect()
}
