//! The sections of the page under its head, but for the timeline.

use super::columns::columns;
use super::event_text::seconds;
use super::fields;
use super::html;
use super::rank_rows::RankRow;
use super::record::{JobEvent, RunRecord};
use super::timeline::anchor;
use crate::model::ProcessLabel;
use crate::report::wording::{counted, ended};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

/// Bytes of a text of the records on the page.
const MOST_TEXT: usize = 256 * 1024;
/// Events in the list: the first ones and the last ones.
const FIRST_EVENTS: usize = 50;
const LAST_EVENTS: usize = 450;
/// Failed ranks whose logs are open from the start.
const MOST_OPEN: usize = 3;

/// The end of the log of a rank.
#[derive(Clone, Debug, PartialEq)]
pub struct RankLog {
    /// The rank.
    pub label: ProcessLabel,
    /// The path of the file.
    pub path: String,
    /// The last lines, without colours and control characters.
    pub lines: Vec<String>,
    /// Earlier lines are missing.
    pub cut: bool,
    /// Why the lines are missing, for people.
    pub note: Option<String>,
}

fn pre(text: &str) -> String {
    let (shown, is_cut) = html::cut(text, MOST_TEXT);
    let more = if is_cut { "\n..." } else { "" };
    // It can be scrolled with the keyboard.
    format!("<pre tabindex=\"0\">{}{more}</pre>\n", html::block(shown))
}

/// The rank that failed first, with its error.
pub(super) fn culprit(record: &RunRecord, rows: &[RankRow]) -> String {
    let Some(result) = &record.result else { return String::new() };
    let report = fields::text(result, "verdict");
    let Some(culprit) = fields::label(result, "culprit_role", "culprit") else {
        let Some(report) = report else { return String::new() };
        return format!("<section id=\"failure\"><h2>Failure report</h2>\n{}</section>\n", pre(report));
    };
    let row = rows.iter().find(|row| row.label == culprit);
    let mut facts = Vec::new();
    if let Some(row) = row {
        facts.extend(row.exit_text());
        facts.extend(row.numbers.get("seconds").map(|lived| format!("lived {}", seconds(*lived))));
        facts.extend(row.attempt.filter(|attempt| *attempt > 0).map(|attempt| format!("attempt {attempt}")));
        facts.extend(row.pid.map(|pid| format!("pid {pid}")));
    }
    let name = html::text(&culprit.to_string());
    let mut page = format!(
        "<section id=\"culprit\" class=\"card\"><h2>Failed first: <a href=\"#{}\">{name}</a></h2>\n<p class=\"quiet\">{}</p>\n",
        anchor(&name),
        html::text(&facts.join(", "))
    );
    let reason = fields::text(result, "reason").or(row.and_then(|row| row.why.as_deref()));
    if let Some(reason) = reason {
        let _ = writeln!(page, "<p class=\"reason\">{}</p>", html::text(html::cut(reason, 4000).0));
    }
    if let Some(lines) = fields::text(result, "last_lines") {
        page += &pre(lines);
    }
    if let Some(report) = report {
        let _ = write!(
            page,
            "<details><summary>Failure report, as the launcher printed it</summary>\n{}</details>\n",
            pre(report)
        );
    }
    page + "</section>\n"
}

/// Bytes of the error of a failed attempt.
const MAX_REASON: usize = 4000;

/// The attempts that failed and that others followed. `logs`: the ends of the logs of those that failed first.
pub(super) fn failed_attempts(record: &RunRecord, logs: &BTreeMap<usize, RankLog>) -> String {
    if record.failed_attempts.is_empty() {
        return String::new();
    }
    let mut page = String::from("<section id=\"attempts\" class=\"card\"><h2>Failed attempts</h2>\n");
    if record.dropped_attempts > 0 {
        let earlier =
            counted(record.dropped_attempts, "earlier attempt that failed is", "earlier attempts that failed are");
        let _ = writeln!(page, "<p class=\"note\">{earlier} not shown.</p>");
    }
    for failed in &record.failed_attempts {
        let (attempt, culprit, at) = (failed.attempt, html::text(&failed.culprit.to_string()), seconds(failed.at));
        let exit = failed.exit.map_or(String::new(), |exit| format!(", {}", html::text(&ended(exit))));
        let message = failed.message.as_deref().filter(|text| !text.is_empty());
        let reason = message.map_or(String::new(), |text| format!(": {}", html::text(html::cut(text, MAX_REASON).0)));
        let _ = writeln!(
            page,
            "<details open><summary>Attempt {attempt}: {culprit}{reason} <span class=\"quiet\">at {at}{exit}</span></summary>"
        );
        page += &match logs.get(&attempt) {
            Some(RankLog { note: Some(note), .. }) => format!("<p class=\"note\">{}</p>\n", html::text(note)),
            Some(log) => {
                let path = html::text(&log.path);
                format!("{}<p class=\"path\">{path}</p>\n", pre(&log.lines.join("\n")))
            }
            None => "<p class=\"note\">Its log is not in the folder.</p>\n".to_owned(),
        };
        page += "</details>\n";
    }
    page + "</section>\n"
}

/// The stacks of jobs that hung.
pub(super) fn stack_reports(record: &RunRecord) -> String {
    if record.reports.is_empty() {
        return String::new();
    }
    let mut page = String::from("<section id=\"hangs\" class=\"card\"><h2>Hang reports</h2>\n");
    if record.dropped_reports > 0 {
        let earlier = counted(record.dropped_reports, "earlier report is", "earlier reports are");
        let _ = writeln!(page, "<p class=\"note\">{earlier} in events.jsonl only.</p>");
    }
    for (report, number) in record.reports.iter().rev().zip(0..) {
        let open = if number == 0 { " open" } else { "" };
        let (title, at) = (html::text(&report.title), seconds(report.at));
        let _ = writeln!(page, "<details{open}><summary>{title} <span class=\"quiet\">at {at}</span></summary>");
        page += &pre(&report.text);
        page += "</details>\n";
    }
    page + "</section>\n"
}

/// The table of ranks.
pub(super) fn ranks(rows: &[RankRow], logs: &[RankLog]) -> String {
    if rows.is_empty() {
        return String::new();
    }
    let columns = columns(rows);
    let has = |has: fn(&RankRow) -> bool| rows.iter().any(has);
    let (has_exit, has_why) = (has(|row| row.exit.is_some()), has(|row| row.why.is_some()));
    let (has_attempt, has_pid) = (has(|row| row.attempt.is_some()), has(|row| row.pid.is_some()));
    let log_of: BTreeMap<_, _> = logs.iter().map(|log| (log.label, log)).collect();
    let mut page = String::from("<section id=\"ranks\"><h2>Ranks</h2>\n");
    page += "<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"Table of the ranks\"><table data-sort>\n<thead><tr>";
    let mut head = |title: &str, class: &str| {
        let _ = write!(page, "<th scope=\"col\" class=\"{class}\">{}</th>", html::text(title));
    };
    head("Rank", "name");
    head("Status", "");
    if has_exit {
        head("Exit", "");
    }
    for column in &columns {
        head(&column.title, "num");
    }
    if has_attempt {
        head("Restarts", "num");
    }
    if has_pid {
        head("PID", "num");
    }
    if has_why {
        head("Why", "");
    }
    head("Log", "");
    page += "</tr></thead>\n<tbody>\n";
    let order: BTreeMap<_, _> =
        rows.iter().map(|row| row.label).collect::<BTreeSet<_>>().into_iter().zip(0..).collect();
    for row in rows {
        let number = order.get(&row.label).copied().unwrap_or(0);
        let (label, log) = (row.label.to_string(), log_of.get(&row.label));
        let (class, id) = (html::text(&row.status.replace(' ', "-")), anchor(&label));
        let _ = write!(
            page,
            "<tr id=\"{id}\" class=\"s-{class}\"><th scope=\"row\" class=\"name\" data-v=\"{number}\">{label}</th>"
        );
        let _ = write!(page, "<td><span class=\"dot\"></span>{}</td>", html::text(&row.status));
        if has_exit {
            let exit = row.exit_text().unwrap_or_default();
            let _ = write!(page, "<td>{}</td>", html::text(&exit));
        }
        for column in &columns {
            page += &match row.numbers.get(&column.field) {
                Some(number) => {
                    let bar = if column.has_bars() {
                        format!(" style=\"--p:{:.3}\"", number / column.most)
                    } else {
                        String::new()
                    };
                    format!("<td class=\"num\" data-v=\"{number}\"{bar}>{}</td>", html::text(&column.cell(*number)))
                }
                None => missing(),
            };
        }
        for count in
            [row.attempt.filter(|_| has_attempt), row.pid.filter(|_| has_pid)].into_iter().zip([has_attempt, has_pid])
        {
            match count {
                (_, false) => {}
                (Some(count), true) => drop(write!(page, "<td class=\"num\" data-v=\"{count}\">{count}</td>")),
                (None, true) => page += &missing(),
            }
        }
        if has_why {
            let _ = write!(
                page,
                "<td class=\"why\">{}</td>",
                html::text(html::cut(row.why.as_deref().unwrap_or_default(), 500).0)
            );
        }
        let path = log.map(|log| log.path.as_str()).or(row.log.as_deref()).unwrap_or_default();
        let path = html::text(path);
        let _ = match log {
            Some(_) => writeln!(page, "<td class=\"path\"><a href=\"#log-{id}\">{path}</a></td></tr>"),
            None => writeln!(page, "<td class=\"path\">{path}</td></tr>"),
        };
    }
    page + "</tbody></table></div></section>\n"
}

fn missing() -> String {
    "<td class=\"num\">-</td>".to_owned()
}

/// The ends of the logs.
pub(super) fn logs(record: &RunRecord, rows: &[RankRow], logs: &[RankLog]) -> String {
    if logs.is_empty() {
        return String::new();
    }
    let failed: BTreeSet<_> = rows.iter().filter(|row| row.has_failed()).map(|row| row.label).collect();
    // Its lines are at the top of the page.
    let culprit = record.result.as_ref().and_then(|result| fields::label(result, "culprit_role", "culprit"));
    let mut opened = 0;
    let mut page = String::from("<section id=\"logs\"><h2>Last log lines</h2>\n<div class=\"logs\">\n");
    for log in logs {
        let is_bad = failed.contains(&log.label);
        let is_open = is_bad && Some(log.label) != culprit && opened < MOST_OPEN;
        opened += usize::from(is_open);
        let label = html::text(&log.label.to_string());
        let _ = writeln!(
            page,
            "<details id=\"log-{}\" class=\"{}\"{}><summary>{label} <span class=\"path\">{}</span></summary>",
            anchor(&label),
            if is_bad { "bad" } else { "" },
            if is_open { " open" } else { "" },
            html::text(&log.path)
        );
        if let Some(note) = &log.note {
            let _ = writeln!(page, "<p class=\"note\">{}</p>", html::text(note));
        } else if log.lines.is_empty() {
            page += "<p class=\"note\">The log is empty.</p>\n";
        } else {
            let cut = if log.cut { "...\n" } else { "" };
            page += &pre(&format!("{cut}{}", log.lines.join("\n")));
        }
        page += "</details>\n";
    }
    page + "</div></section>\n"
}

/// What happened to the job, in order.
pub(super) fn events(record: &RunRecord) -> String {
    if record.events.is_empty() {
        return String::new();
    }
    let mut page = String::from("<section id=\"events\"><h2>Events</h2>\n<ol class=\"events\">\n");
    let all = &record.events;
    let hidden = all.len().saturating_sub(FIRST_EVENTS + LAST_EVENTS);
    let (first, last) =
        if hidden > 0 { (&all[..FIRST_EVENTS], &all[FIRST_EVENTS + hidden..]) } else { (&all[..], &[][..]) };
    let item = |page: &mut String, event: &JobEvent| {
        let text = html::text(html::cut(&event.text, 2000).0);
        let (class, time, at) = (event.weight.class(), html::text(&event.time), seconds(event.at));
        let _ = writeln!(page, "<li class=\"{class}\"><time title=\"{time}\">{at}</time><span>{text}</span></li>");
    };
    first.iter().for_each(|event| item(&mut page, event));
    if hidden > 0 {
        let _ = writeln!(
            page,
            "<li class=\"note\"><time></time><span>{hidden} events are in events.jsonl only</span></li>"
        );
    }
    last.iter().for_each(|event| item(&mut page, event));
    page + "</ol></section>\n"
}

/// The variables that all ranks have.
pub(super) fn environment(record: &RunRecord) -> String {
    let variables = record.result.as_ref().and_then(|result| result["environment"].as_object());
    let Some(variables) = variables.filter(|variables| !variables.is_empty()) else { return String::new() };
    let line = |(name, value): (&String, &Value)| format!("{name}={}", value.as_str().unwrap_or_default());
    let text: Vec<String> = variables.iter().map(line).collect();
    format!(
        "<section id=\"environment\"><h2>Environment</h2>\n<details><summary>{} that the launcher set for all ranks</summary>\n{}\
        </details></section>\n",
        counted(text.len(), "variable", "variables"),
        pre(&text.join("\n"))
    )
}
