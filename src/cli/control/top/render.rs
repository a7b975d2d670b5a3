//! Draws the state of `rlaunch top`. All that is drawn goes through `line`, which escapes it.

use super::state::{Pane, State};
use crate::cli::control::status_table::{columns, headings, summary, widths};
use crate::model::plain_text::escape;
use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::Line;
use std::time::Duration;

/// Columns that are left out where the screen is narrow, in this order.
const OPTIONAL: [&str; 7] = ["PROCESSES", "PID", "FOR", "MEMORY", "NODE", "CPU", "LAST OUTPUT"];
const KEYS: [(Pane, &str); 4] = [
    (Pane::Ranks, "q quit  ? help  s stacks  l log  x stop job  j/k select"),
    (Pane::Stacks, "q quit  Esc back  j/k scroll  s read again  x stop job"),
    (Pane::Logs, "q quit  Esc back  j/k scroll  G end  x stop job"),
    (Pane::Help, "q quit  Esc back"),
];
const HELP: [&str; 11] = [
    "q, Ctrl-C         quit; the job runs on",
    "s                 stacks of all ranks; again: read them again",
    "l                 the end of the selected rank's log",
    "Up/Down, k/j      select a rank, or scroll",
    "PgUp/PgDn, Space  the same by a page",
    "Home/End, g/G     the first or the last",
    "x                 stop the job; y confirms",
    "Esc               back to the ranks",
    "Ctrl-L            draw the screen again",
    "Ctrl-Z            suspend; fg continues",
    "?                 this help",
];

/// Draws all of it. `now`: the clock of the state machine; `wall`: seconds since 1970.
pub(super) fn draw(state: &State, now: Duration, wall: f64, frame: &mut Frame<'_>) {
    let mut page = Page { frame, row: 0 };
    match state.pane {
        Pane::Ranks => draw_ranks(state, wall, &mut page),
        Pane::Stacks => draw_text(state, "stacks of all ranks", &mut page),
        Pane::Logs => {
            let of = state.selected().map(|label| format!("log of {label}"));
            draw_text(state, &of.unwrap_or_default(), &mut page);
        }
        Pane::Help => {
            page.line("rlaunch top", Modifier::BOLD);
            HELP.iter().for_each(|text| page.line(text, Style::new()));
            let status = &state.answers.status;
            page.line("", Style::new());
            page.line(&format!("logs: {}", status.log_dir.display()), Style::new());
        }
    }
    let keys = KEYS.iter().find(|(pane, _)| *pane == state.pane).map_or("", |(_, keys)| keys);
    page.row = page.frame.area().height.saturating_sub(1);
    match state.urgent(now) {
        Some(text) => page.line(&text, Modifier::REVERSED | Modifier::BOLD),
        None => page.line(keys, Modifier::DIM),
    }
}

fn draw_ranks(state: &State, wall: f64, page: &mut Page<'_, '_>) {
    let answers = &state.answers;
    page.line(&summary(&answers.status, &answers.nodes, wall), Modifier::BOLD);
    let rows = state.rows();
    let mut table = vec![headings(&answers.nodes)];
    table.extend(rows.iter().map(|row| row.cells.clone()));
    fit(&mut table, usize::from(page.frame.area().width));
    let text = columns(&table);
    let mut lines = text.lines();
    page.line(lines.next().unwrap_or_default(), Modifier::UNDERLINED);
    let (selected, first) = (state.selected_row(&rows), state.first_rank());
    for (number, (line, row)) in lines.zip(&rows).enumerate().skip(first).take(state.rank_rows()) {
        let failed = row.rank.exit.is_some() && !row.rank.succeeded;
        let style = if failed { Style::new().fg(Color::Red) } else { Style::new() };
        let is_selected = if number == selected { Modifier::REVERSED } else { Modifier::empty() };
        page.line(line, style.add_modifier(is_selected));
    }
    let notes = state.notes();
    page.row = (page.frame.area().height as usize).saturating_sub(1 + notes.len()) as u16;
    notes.iter().for_each(|note| page.line(note, Style::new()));
}

fn draw_text(state: &State, title: &str, page: &mut Page<'_, '_>) {
    page.line(title, Modifier::BOLD);
    state.shown_text().iter().for_each(|line| page.line(line, Style::new()));
}

/// Leaves columns out until the table is no wider than this.
fn fit(table: &mut [Vec<String>], width: usize) {
    let wide = |table: &[Vec<String>]| widths(table).iter().map(|width| width + 2).sum::<usize>() > width + 2;
    for name in OPTIONAL {
        if !wide(table) {
            return;
        }
        if let Some(at) = table[0].iter().position(|heading| heading == name) {
            table.iter_mut().for_each(|row| drop(row.remove(at)));
        }
    }
}

/// A screen that is filled from the top.
struct Page<'a, 'b> {
    frame: &'a mut Frame<'b>,
    row: u16,
}

impl Page<'_, '_> {
    fn line(&mut self, text: &str, style: impl Into<Style>) {
        let area = self.frame.area();
        if self.row < area.height {
            let at = Rect { y: self.row, height: 1, ..area };
            self.frame.render_widget(Line::styled(escape(text), style.into()), at);
            self.row += 1;
        }
    }
}
