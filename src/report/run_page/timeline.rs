//! The timeline: a lane for the job and for each rank, as HTML that needs no script.

use super::event_text::{Weight, seconds};
use super::html;
use super::phases::{PhaseKind, RankLane, RankPhase};
use super::rank_rows::{FEW, RankRow};
use super::record::RunRecord;
use super::usage::chart;
use std::collections::BTreeMap;
use std::fmt::Write;

/// Phases that are drawn, of all lanes together.
const MOST_PHASES: usize = 20_000;
/// Phases of a lane that are drawn in any case.
const LEAST_PHASES: usize = 3;
/// Vertical lines for events.
const MOST_LINES: usize = 100;
/// Steps between the marks of the axis, in seconds. Larger ones are whole days.
const STEPS: [f64; 25] = [
    0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 15.0, 30.0, 60.0, 120.0, 300.0, 600.0,
    900.0, 1800.0, 3600.0, 7200.0, 21_600.0, 43_200.0,
];
/// Marks of the axis, about.
const MARKS: f64 = 8.0;
/// Percent of the width that the name of a phase needs.
const NARROW: f64 = 6.0;
const LEGEND: [PhaseKind; 6] = [
    PhaseKind::Starting,
    PhaseKind::Running,
    PhaseKind::Succeeded,
    PhaseKind::Stopped,
    PhaseKind::Stopping,
    PhaseKind::Failed,
];

/// The section, or nothing if no event is known.
pub(super) fn timeline(record: &RunRecord, rows: &[RankRow]) -> String {
    if record.job.phases.is_empty() && record.lanes.is_empty() {
        return String::new();
    }
    let scale = Scale { span: record.seconds.max(0.001) };
    let mut page = String::from(
        "<section id=\"timeline\"><h2>Timeline<span class=\"zoom\" data-zoom></span></h2>\n<p class=\"legend\">",
    );
    let is_used =
        |kind: PhaseKind| record.lanes.values().any(|lane| lane.phases.iter().any(|phase| phase.kind == kind));
    for kind in LEGEND.into_iter().filter(|kind| is_used(*kind)) {
        let _ = write!(page, "<span><i class=\"p {0}\"></i>{0}</span>", kind.name());
    }
    page += &chart::legend(&record.curves);
    page += "</p>\n";
    page += "<div class=\"scroll lanes\" tabindex=\"0\" role=\"region\" aria-label=\"Timeline of the ranks\"><div class=\"wide\">\n";
    page += &axis(&scale);
    page += &event_lines(record, &scale);
    page += "<div class=\"lane job\"><span class=\"name\">job</span><div class=\"track\">";
    for phase in last(&record.job.phases, MOST_PHASES / 10) {
        let (begin, end) = (phase.begin, phase.end.unwrap_or(record.seconds));
        let title = format!("{}: {} to {}, {}", phase.name, seconds(begin), seconds(end), seconds(end - begin));
        let is_narrow = scale.percent(end) - scale.percent(begin) < NARROW;
        let name = if is_narrow { String::new() } else { html::text(&phase.name) };
        let title = html::text(&title);
        let _ = write!(page, "<b class=\"p job\" style=\"{}\" title=\"{title}\">{name}</b>", scale.place(begin, end));
    }
    page += "</div></div>\n";
    page += &chart::lanes(&record.curves, |at| scale.percent(at));
    let states: BTreeMap<_, _> = rows.iter().map(|row| (row.label, row)).collect();
    let most = (MOST_PHASES / record.lanes.len().max(1)).max(LEAST_PHASES);
    let mut hidden = 0;
    let mut lanes: Vec<_> = record.lanes.iter().collect();
    if lanes.len() > FEW {
        // The sort is stable.
        let has_failed = |lane: &RankLane| lane.phases.iter().any(|phase| phase.kind == PhaseKind::Failed);
        lanes.sort_by_key(|(_, lane)| !has_failed(lane));
    }
    for (label, lane) in lanes {
        let row = states.get(label);
        let class = if row.is_some_and(|row| row.has_failed()) { " bad" } else { "" };
        let name = html::text(&label.to_string());
        let link = html::text(&anchor(&label.to_string()));
        let _ = write!(
            page,
            "<div class=\"lane{class}\"><a class=\"name\" href=\"#{link}\">{name}</a><div class=\"track\">"
        );
        hidden += lane.phases.len().saturating_sub(most);
        for phase in last(&lane.phases, most) {
            page += &segment(phase, record.seconds, &scale);
        }
        page += "</div></div>\n";
    }
    page += "</div></div>\n";
    if hidden > 0 {
        let _ = writeln!(page, "<p class=\"note\">{hidden} phases of earlier attempts are not drawn.</p>");
    }
    page + "</section>\n"
}

/// The name in the page of the row of a rank.
pub(super) fn anchor(label: &str) -> String {
    label.replace(' ', "-")
}

fn last<T>(all: &[T], most: usize) -> &[T] {
    &all[all.len().saturating_sub(most)..]
}

fn segment(phase: &RankPhase, now: f64, scale: &Scale) -> String {
    let end = phase.end.unwrap_or(now);
    let exit = phase.exit.map_or(String::new(), |exit| format!(", {exit}"));
    let lasts = if phase.end.is_none() { ", no end recorded" } else { "" };
    let title = format!(
        "{}, attempt {}: {} to {}, {}{exit}{lasts}",
        phase.kind.name(),
        phase.attempt,
        seconds(phase.begin),
        seconds(end),
        seconds(end - phase.begin)
    );
    let open = if phase.end.is_none() { " open" } else { "" };
    let (kind, place) = (phase.kind.name(), scale.place(phase.begin, end));
    format!("<i class=\"p {kind}{open}\" style=\"{place}\" title=\"{}\"></i>", html::text(&title))
}

fn event_lines(record: &RunRecord, scale: &Scale) -> String {
    let mut page = String::from("<div class=\"lines\">");
    let shown = record.events.iter().filter(|event| event.weight != Weight::Normal);
    for event in shown.take(MOST_LINES) {
        let _ =
            write!(page, "<i class=\"{}\" style=\"left:{:.3}%\"></i>", event.weight.class(), scale.percent(event.at));
    }
    page + "</div>\n"
}

fn axis(scale: &Scale) -> String {
    let mut page = String::from("<div class=\"lane axis\"><span class=\"name\"></span><div class=\"track\">");
    let step = scale.step();
    let marks = (scale.span / step).floor() as usize;
    for mark in 0..=marks {
        let at = mark as f64 * step;
        // The text of a mark stays on the left of the edge.
        let class = if scale.percent(at) > 94.0 { " class=\"last\"" } else { "" };
        let _ = write!(page, "<span{class} style=\"left:{:.3}%\">{}</span>", scale.percent(at), clock_text(at, step));
    }
    page + "</div></div>\n"
}

/// `0.2 s`, `40 s`, `1 min 30 s`, `2 h`, `1 d 12 h`: no unit that is zero.
fn clock_text(at: f64, step: f64) -> String {
    if step < 1.0 && at > 0.0 {
        let digits = if step < 0.01 {
            3
        } else if step < 0.1 {
            2
        } else {
            1
        };
        return format!("{at:.digits$} s");
    }
    let whole = at.round() as u64;
    let parts = [(whole / 86_400, "d"), (whole / 3600 % 24, "h"), (whole / 60 % 60, "min"), (whole % 60, "s")];
    let shown: Vec<String> =
        parts.iter().filter(|(count, _)| *count > 0).map(|(count, unit)| format!("{count} {unit}")).collect();
    if shown.is_empty() { "0 s".to_owned() } else { shown.join(" ") }
}

/// Places on the timeline.
struct Scale {
    span: f64,
}

impl Scale {
    fn percent(&self, at: f64) -> f64 {
        (at / self.span * 100.0).clamp(0.0, 100.0)
    }

    fn place(&self, begin: f64, end: f64) -> String {
        let (from, to) = (self.percent(begin), self.percent(end));
        format!("left:{from:.3}%;width:{:.3}%", (to - from).max(0.0))
    }

    fn step(&self) -> f64 {
        let days = || (self.span / MARKS / 86_400.0).ceil() * 86_400.0;
        STEPS.into_iter().find(|step| self.span / step <= MARKS).unwrap_or_else(days)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_axis_has_a_few_round_marks() {
        for span in [0.001, 0.0042, 0.9, 12.0, 61.0, 1000.0, 86_399.0, 1e6, 1e9] {
            let scale = Scale { span };
            let marks = (span / scale.step()).floor() as usize;
            assert!((1..=8).contains(&marks), "{span}: {marks}");
        }
        assert_eq!(clock_text(0.4, 0.2), "0.4 s");
        assert_eq!(clock_text(90.0, 30.0), "1 min 30 s");
        assert_eq!(clock_text(129_600.0, 43_200.0), "1 d 12 h");
    }
}
