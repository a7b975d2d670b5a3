//! What `rlaunch top` shows, as a state machine: keys and answers go in, questions and the end come out.

use super::keys::Key;
use crate::cli::control::client::{Answers, INTERVAL};
use crate::cli::control::status_table::{self, RankRow};
use crate::model::ProcessLabel;
use crate::model::plain_text::escape;
use crate::report::job_status::JobStatus;
use ratatui::text::Span;
use std::path::PathBuf;
use std::time::Duration;

/// How often the log that is shown is read again.
const LOG_INTERVAL: Duration = Duration::from_secs(1);
/// After which time without an answer it is said that there is none.
const LATE: Duration = Duration::from_secs(6);
/// Rows for notes.
const MOST_NOTES: usize = 3;
const CTRL_L: char = '\u{c}';

/// What fills the screen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pane {
    Ranks,
    Stacks,
    Logs,
    Help,
}

/// Logs, each with the byte at which the present attempt begins.
pub(super) type LogPlaces = Vec<(PathBuf, u64)>;

/// What is asked, of the launcher or of the log files.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Question {
    Status,
    Stacks,
    /// The ends of these logs.
    Logs(LogPlaces),
    Stop,
}

/// An answer.
#[derive(Debug)]
pub(super) enum Answer {
    Status(Box<Answers>),
    /// The launcher has ended.
    Gone,
    Stacks(Vec<String>),
    /// The lines of these logs.
    Logs(LogPlaces, Vec<String>),
    Stopping,
    /// There is none to this question, for this reason.
    None(Question, String),
}

/// What happens.
#[derive(Debug)]
pub(super) enum Event {
    Key(Key),
    /// The terminal has so many columns and rows.
    Resized(u16, u16),
    Answered(Answer),
    /// Time has passed.
    Tick,
}

/// What is to be done.
#[derive(Debug, PartialEq)]
pub(super) enum Effect {
    Ask(Question),
    /// Draws all of the screen again.
    Redraw,
    /// The user leaves.
    Quit,
    /// The job has ended.
    End,
}

/// A question that is asked again and again.
#[derive(Debug, Default)]
struct Repeated {
    is_asked: bool,
    /// When it is asked next.
    due: Duration,
}

impl Repeated {
    fn answered(&mut self, now: Duration, interval: Duration) {
        *self = Self { is_asked: false, due: now + interval };
    }

    /// Whether it is to be asked now.
    fn begin(&mut self, now: Duration) -> bool {
        let begins = !self.is_asked && now >= self.due;
        self.is_asked |= begins;
        begins
    }
}

/// What is shown.
#[derive(Debug)]
pub(super) struct State {
    /// The last answers.
    pub answers: Box<Answers>,
    answered_at: Duration,
    /// Columns and rows.
    pub size: (u16, u16),
    pub pane: Pane,
    selected: Option<ProcessLabel>,
    /// The first row of the ranks that is shown.
    first_rank: usize,
    /// Stacks, or lines of a log.
    text: Vec<String>,
    /// The first row of the text that is shown; `None`: its end is.
    first_row: Option<usize>,
    /// The user has asked to stop the job, and is asked whether that is meant.
    pub confirms_stop: bool,
    /// What the launcher said to the last key.
    notice: Option<String>,
    /// Why there was no state the last time.
    failure: Option<String>,
    status: Repeated,
    logs: Repeated,
    reads_stacks: bool,
}

impl State {
    /// Of a job that has this state, on a terminal of this size.
    pub fn new(status: JobStatus, size: (u16, u16), now: Duration) -> Self {
        Self {
            answers: Box::new(Answers { status, nodes: Vec::new(), only_this_node: None }),
            answered_at: now,
            size,
            pane: Pane::Ranks,
            selected: None,
            first_rank: 0,
            text: Vec::new(),
            first_row: None,
            confirms_stop: false,
            notice: None,
            failure: None,
            status: Repeated::default(),
            logs: Repeated::default(),
            reads_stacks: false,
        }
    }

    /// What follows from an event.
    pub fn transition(&mut self, event: Event, now: Duration) -> Vec<Effect> {
        let mut effects: Vec<Effect> = match event {
            Event::Tick => None,
            Event::Resized(columns, rows) => {
                self.size = (columns, rows);
                None
            }
            Event::Key(key) => self.press(key, now),
            Event::Answered(answer) => self.take(answer, now),
        }
        .into_iter()
        .collect();
        self.keep_in_view();
        if self.status.begin(now) {
            effects.push(Effect::Ask(Question::Status));
        }
        if self.pane == Pane::Logs && self.logs.begin(now) {
            match self.logs_of_selected() {
                Ok(logs) => effects.push(Effect::Ask(Question::Logs(logs))),
                Err(why) => {
                    self.text = vec![why];
                    self.logs.answered(now, LOG_INTERVAL);
                }
            }
        }
        effects
    }

    /// How long nothing is to be done unless something happens.
    pub fn idle(&self, now: Duration) -> Duration {
        let due = |repeated: &Repeated| if repeated.is_asked { now + INTERVAL } else { repeated.due };
        let logs = if self.pane == Pane::Logs { due(&self.logs) } else { Duration::MAX };
        due(&self.status).min(logs).saturating_sub(now)
    }

    fn press(&mut self, key: Key, now: Duration) -> Option<Effect> {
        self.notice = None;
        if std::mem::take(&mut self.confirms_stop) {
            return (key == Key::Char('y')).then_some(Effect::Ask(Question::Stop));
        }
        match key {
            Key::Char('q') => return Some(Effect::Quit),
            Key::Char(CTRL_L) => return Some(Effect::Redraw),
            Key::Char('x') => self.confirms_stop = true,
            Key::Char('?') => self.pane = if self.pane == Pane::Help { Pane::Ranks } else { Pane::Help },
            Key::Escape => self.pane = Pane::Ranks,
            Key::Char('s') => {
                if self.pane != Pane::Stacks || !self.reads_stacks {
                    self.open(Pane::Stacks, "reading the stacks...");
                }
                return (!std::mem::replace(&mut self.reads_stacks, true)).then_some(Effect::Ask(Question::Stacks));
            }
            Key::Char('l') => {
                self.open(Pane::Logs, "reading the log...");
                self.logs.due = now;
            }
            Key::Up | Key::Char('k') => self.scroll(-1),
            Key::Down | Key::Char('j') => self.scroll(1),
            Key::PageUp => self.scroll(-self.page()),
            Key::PageDown | Key::Char(' ') => self.scroll(self.page()),
            Key::Home | Key::Char('g') => self.scroll(isize::MIN),
            Key::End | Key::Char('G') => self.scroll(isize::MAX),
            Key::Char(_) => {}
        }
        None
    }

    fn open(&mut self, pane: Pane, text: &str) {
        self.pane = pane;
        self.text = vec![text.to_owned()];
        self.first_row = (pane == Pane::Stacks).then_some(0);
    }

    fn page(&self) -> isize {
        let rows = if self.pane == Pane::Ranks { self.rank_rows() } else { self.text_rows() };
        rows.saturating_sub(1).max(1).try_into().unwrap_or(isize::MAX)
    }

    /// Moves the selection or the text by so many rows.
    fn scroll(&mut self, by: isize) {
        match self.pane {
            Pane::Help => {}
            Pane::Ranks => {
                let rows = self.rows();
                let at = self.selected_row(&rows).saturating_add_signed(by).min(rows.len().saturating_sub(1));
                self.selected = rows.get(at).map(|row| row.rank.label());
            }
            Pane::Stacks | Pane::Logs => {
                let last = self.wrapped().len().saturating_sub(self.text_rows());
                let at = self.first_row.unwrap_or(last).saturating_add_signed(by).min(last);
                // The end of a log is followed.
                self.first_row = (self.pane == Pane::Stacks || at < last).then_some(at);
            }
        }
    }

    fn take(&mut self, answer: Answer, now: Duration) -> Option<Effect> {
        match answer {
            Answer::Gone => return Some(Effect::End),
            Answer::Status(answers) => {
                self.answers = answers;
                self.answered_at = now;
                self.failure = None;
                self.status.answered(now, INTERVAL);
                let rows = self.rows();
                let selected = rows.get(self.selected_row(&rows)).map(|row| row.rank.label());
                self.selected = selected;
            }
            Answer::Stacks(lines) => {
                self.reads_stacks = false;
                if self.pane == Pane::Stacks {
                    self.text = lines;
                }
            }
            Answer::Logs(places, lines) => {
                // Meanwhile another rank may have been selected.
                let is_wanted = self.pane == Pane::Logs && self.logs_of_selected() == Ok(places);
                self.logs.answered(now, if is_wanted { LOG_INTERVAL } else { Duration::ZERO });
                if is_wanted {
                    self.text = lines;
                }
            }
            Answer::Stopping => {
                self.notice = Some("the job is being stopped".to_owned());
                self.status.due = now;
            }
            Answer::None(question, why) => match question {
                Question::Status => {
                    self.status.answered(now, INTERVAL);
                    self.failure = Some(why);
                }
                Question::Logs(_) => {
                    self.logs.answered(now, LOG_INTERVAL);
                    self.notice = Some(why);
                }
                Question::Stacks => {
                    self.reads_stacks = false;
                    self.notice = Some(why);
                }
                Question::Stop => self.notice = Some(why),
            },
        }
        None
    }

    /// The logs of the rank that is selected, or what is said instead.
    fn logs_of_selected(&self) -> Result<LogPlaces, String> {
        let rows = self.rows();
        let Some(RankRow { entry, rank, .. }) = rows.get(self.selected_row(&rows)) else {
            return Err("the job has no ranks yet".to_owned());
        };
        if !entry.is_own {
            let paths: Vec<String> = rank.logs.iter().map(|path| path.display().to_string()).collect();
            let node = status_table::named_node(entry);
            return Err(format!("{} runs on {node}; its log is there: {}", rank.label(), paths.join(", ")));
        }
        let starts = [rank.log_start].into_iter().chain(std::iter::repeat(0));
        let logs: LogPlaces = rank.logs.iter().cloned().zip(starts).collect();
        if logs.is_empty() {
            Err(format!("{} has no log: its output goes to the console", rank.label()))
        } else {
            Ok(logs)
        }
    }

    /// The ranks of all nodes.
    pub fn rows(&self) -> Vec<RankRow<'_>> {
        status_table::rows(&self.answers.nodes)
    }

    /// The number of the row that is selected.
    pub fn selected_row(&self, rows: &[RankRow<'_>]) -> usize {
        rows.iter().position(|row| Some(row.rank.label()) == self.selected).unwrap_or(0)
    }

    /// The label of the rank that is selected.
    pub fn selected(&self) -> Option<ProcessLabel> {
        self.selected
    }

    /// The first row of the ranks that is shown.
    pub fn first_rank(&self) -> usize {
        self.first_rank
    }

    /// Rows for ranks, below the line about the job and the headings, above notes and keys.
    pub fn rank_rows(&self) -> usize {
        usize::from(self.size.1).saturating_sub(3 + self.answers_notes().min(MOST_NOTES))
    }

    /// Rows for text, between a title and keys.
    fn text_rows(&self) -> usize {
        usize::from(self.size.1).saturating_sub(2)
    }

    fn keep_in_view(&mut self) {
        let (rows, shown) = (self.rows(), self.rank_rows().max(1));
        let selected = self.selected_row(&rows);
        let last = rows.len().saturating_sub(shown);
        self.first_rank = self.first_rank.clamp((selected + 1).saturating_sub(shown), selected).min(last);
        let last = self.wrapped().len().saturating_sub(self.text_rows());
        self.first_row = self.first_row.map(|first| first.min(last));
    }

    /// The number of notes that come and go with the answers.
    fn answers_notes(&self) -> usize {
        status_table::errors(&self.answers.nodes).count() + usize::from(self.answers.only_this_node.is_some())
    }

    /// What is to be said beside the ranks.
    pub fn notes(&self) -> Vec<String> {
        let why = self.answers.only_this_node.as_ref();
        let mut notes: Vec<String> = status_table::errors(&self.answers.nodes).collect();
        notes.extend(why.map(|why| format!("these are the ranks of this machine: {why}")));
        if notes.len() > MOST_NOTES {
            let more = notes.len() - (MOST_NOTES - 1);
            notes.truncate(MOST_NOTES - 1);
            notes.push(format!("{more} more nodes have not answered"));
        }
        notes
    }

    /// What is said instead of the keys.
    pub fn urgent(&self, now: Duration) -> Option<String> {
        if self.confirms_stop {
            let nodes = if self.answers.status.nnodes > 1 { " on all its nodes" } else { "" };
            return Some(format!("Stop job {}{nodes}? y: yes, any other key: no", self.answers.status.job_id));
        }
        let silent = now.saturating_sub(self.answered_at);
        let late = || format!("the launcher has not answered for {} s", silent.as_secs());
        self.notice.clone().or_else(|| self.failure.clone()).or_else(|| (silent >= LATE).then(late))
    }

    /// The rows of the text that are shown.
    pub fn shown_text(&self) -> Vec<String> {
        let (mut rows, shown) = (self.wrapped(), self.text_rows());
        let first = self.first_row.unwrap_or(rows.len().saturating_sub(shown));
        rows.drain(..first.min(rows.len()));
        rows.truncate(shown);
        rows
    }

    /// The text in lines that are no longer than the screen is wide.
    fn wrapped(&self) -> Vec<String> {
        let columns = usize::from(self.size.0).max(1);
        self.text.iter().flat_map(|line| wrap(&escape(line), columns)).collect()
    }
}

fn wrap(line: &str, columns: usize) -> Vec<String> {
    let span = Span::raw(line);
    if span.width() <= columns {
        return vec![line.to_owned()];
    }
    let (mut rows, mut used) = (vec![String::new()], 0);
    for grapheme in span.styled_graphemes(ratatui::style::Style::new()) {
        let width = Span::raw(grapheme.symbol).width();
        if used + width > columns {
            rows.push(String::new());
            used = 0;
        }
        used += width;
        if let Some(row) = rows.last_mut() {
            row.push_str(grapheme.symbol);
        }
    }
    rows
}
