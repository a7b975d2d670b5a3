//! What the user sees, on a screen in memory.
#![allow(clippy::unwrap_used)] // A test fails by panicking.

use super::keys::Key;
use super::render;
use super::state::{Answer, Effect, Event, Pane, Question, State};
use crate::cli::control::client::Answers;
use crate::report::job_status::{JobStatus, LaunchPhase, RankStatus};
use crate::run::control::message::NodeEntry;
use crate::run::control::node_answer::NodeAnswer;
use crate::run::control::rank_facts::RankFacts;
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use std::time::Duration;

/// The wall clock of the answers.
const WALL: f64 = 1000.0;

fn rank(number: usize) -> RankStatus {
    RankStatus {
        rank: number,
        local_rank: number,
        pid: Some(4000 + number as i32),
        since: Some(WALL - 83.0),
        all_output_logged: true,
        logs: vec![format!("/j/log/workerlog.{number}").into()],
        ..RankStatus::default()
    }
}

fn status(ranks: Vec<RankStatus>, nnodes: usize) -> JobStatus {
    JobStatus {
        job_id: "j7".into(),
        host: "gpu1".into(),
        launcher: 3990,
        log_dir: "/j/log".into(),
        phase: LaunchPhase::Running,
        phase_since: WALL - 90.0,
        nnodes,
        ranks,
        ..JobStatus::default()
    }
}

fn node(number: usize, nnodes: usize, ranks: Vec<RankStatus>) -> NodeEntry {
    let facts = |_| RankFacts {
        cpu_percent: Some(99.0),
        cpu_seconds: Some(80.0),
        memory_bytes: Some(41 << 30),
        processes: 5,
        silent_seconds: Some(0.4),
        ..RankFacts::default()
    };
    let facts = ranks.iter().map(facts).collect();
    let answer = NodeAnswer { at: WALL, status: status(ranks, nnodes), facts, stacks: None };
    NodeEntry {
        node: (nnodes > 1).then_some(number),
        host: format!("gpu{}", number + 1),
        is_own: number == 0,
        answer: Some(answer),
        error: None,
    }
}

struct Shown {
    state: State,
    now: Duration,
}

impl Shown {
    /// A job with these nodes, on a screen of so many columns and rows.
    fn of(nodes: Vec<NodeEntry>, size: (u16, u16)) -> Self {
        let own = nodes[0].answer.as_ref().unwrap().status.clone();
        let mut shown = Self { state: State::new(own.clone(), size, Duration::ZERO), now: Duration::ZERO };
        assert_eq!(shown.happens(Event::Tick), [Effect::Ask(Question::Status)]);
        shown.answer(nodes, own);
        shown
    }

    fn with_ranks(count: usize, size: (u16, u16)) -> Self {
        Self::of(vec![node(0, 1, (0..count).map(rank).collect())], size)
    }

    fn answer(&mut self, nodes: Vec<NodeEntry>, status: JobStatus) {
        let answers = Answers { status, nodes, only_this_node: None };
        assert_eq!(self.happens(Event::Answered(Answer::Status(Box::new(answers)))), []);
    }

    fn happens(&mut self, event: Event) -> Vec<Effect> {
        self.state.transition(event, self.now)
    }

    fn press(&mut self, keys: &str) -> Vec<Effect> {
        keys.chars().flat_map(|key| self.happens(Event::Key(Key::Char(key)))).collect()
    }

    fn screen(&self) -> String {
        let (columns, rows) = self.state.size;
        let mut terminal = Terminal::new(TestBackend::new(columns, rows)).unwrap();
        terminal.draw(|frame| render::draw(&self.state, self.now, WALL, frame)).unwrap();
        let cells = terminal.backend().buffer().content();
        let mut text = String::new();
        for row in cells.chunks(usize::from(columns.max(1))) {
            let line: String = row.iter().map(|cell| cell.symbol()).collect();
            let is_selected = row[0].modifier.contains(ratatui::style::Modifier::REVERSED);
            text += &format!("{}{}\n", if is_selected { ">" } else { "|" }, line.trim_end());
        }
        text
    }
}

#[test]
fn ranks_of_two_nodes() {
    let ended = RankStatus { exit: Some("exit code 3".into()), pid: None, ..rank(1) };
    let lost = NodeEntry { answer: None, error: Some("has not answered within 3 s".into()), ..node(2, 3, vec![]) };
    let nodes = vec![node(0, 3, vec![rank(0), ended]), node(1, 3, vec![rank(2), rank(3)]), lost];
    let mut shown = Shown::of(nodes, (80, 12));
    shown.press("jj");
    insta::assert_snapshot!(shown.screen(), @r"
    |job j7 (pid 3990): running for 1 min 30 s, 3 nodes
    |NODE    RANK    STATE        FOR         PID   CPU   MEMORY  LAST OUTPUT
    |0 gpu1  rank 0  running      1 min 23 s  4000  99 %  41 GB   400 ms ago
    |0 gpu1  rank 1  exit code 3  1 min 23 s  -     99 %  41 GB   400 ms ago
    >1 gpu2  rank 2  running      1 min 23 s  4002  99 %  41 GB   400 ms ago
    |1 gpu2  rank 3  running      1 min 23 s  4003  99 %  41 GB   400 ms ago
    |
    |
    |
    |
    |node 2 (gpu3) has not answered within 3 s
    |q quit  ? help  s stacks  l log  x stop job  j/k select
    ");
    assert_eq!(shown.press("l"), []);
    insta::assert_snapshot!(shown.screen(), @r"
    |log of rank 2
    |rank 2 runs on node 1 (gpu2); its log is there: /j/log/workerlog.2
    |
    |
    |
    |
    |
    |
    |
    |
    |
    |q quit  Esc back  j/k scroll  G end  x stop job
    ");
}

#[test]
fn three_hundred_ranks_scroll() {
    let mut shown = Shown::with_ranks(300, (80, 24));
    shown.happens(Event::Key(Key::PageDown));
    shown.press("jj");
    insta::assert_snapshot!(shown.screen(), @r"
    |job j7 (pid 3990): running for 1 min 30 s
    |RANK      STATE    FOR         PID   CPU   MEMORY  PROCESSES  LAST OUTPUT
    |rank 2    running  1 min 23 s  4002  99 %  41 GB   5          400 ms ago
    |rank 3    running  1 min 23 s  4003  99 %  41 GB   5          400 ms ago
    |rank 4    running  1 min 23 s  4004  99 %  41 GB   5          400 ms ago
    |rank 5    running  1 min 23 s  4005  99 %  41 GB   5          400 ms ago
    |rank 6    running  1 min 23 s  4006  99 %  41 GB   5          400 ms ago
    |rank 7    running  1 min 23 s  4007  99 %  41 GB   5          400 ms ago
    |rank 8    running  1 min 23 s  4008  99 %  41 GB   5          400 ms ago
    |rank 9    running  1 min 23 s  4009  99 %  41 GB   5          400 ms ago
    |rank 10   running  1 min 23 s  4010  99 %  41 GB   5          400 ms ago
    |rank 11   running  1 min 23 s  4011  99 %  41 GB   5          400 ms ago
    |rank 12   running  1 min 23 s  4012  99 %  41 GB   5          400 ms ago
    |rank 13   running  1 min 23 s  4013  99 %  41 GB   5          400 ms ago
    |rank 14   running  1 min 23 s  4014  99 %  41 GB   5          400 ms ago
    |rank 15   running  1 min 23 s  4015  99 %  41 GB   5          400 ms ago
    |rank 16   running  1 min 23 s  4016  99 %  41 GB   5          400 ms ago
    |rank 17   running  1 min 23 s  4017  99 %  41 GB   5          400 ms ago
    |rank 18   running  1 min 23 s  4018  99 %  41 GB   5          400 ms ago
    |rank 19   running  1 min 23 s  4019  99 %  41 GB   5          400 ms ago
    |rank 20   running  1 min 23 s  4020  99 %  41 GB   5          400 ms ago
    |rank 21   running  1 min 23 s  4021  99 %  41 GB   5          400 ms ago
    >rank 22   running  1 min 23 s  4022  99 %  41 GB   5          400 ms ago
    |q quit  ? help  s stacks  l log  x stop job  j/k select
    ");
    shown.press("G");
    shown.happens(Event::Resized(40, 12));
    insta::assert_snapshot!(shown.screen(), @r"
    |job j7 (pid 3990): running for 1 min 30
    |RANK      STATE    CPU   LAST OUTPUT
    |rank 291  running  99 %  400 ms ago
    |rank 292  running  99 %  400 ms ago
    |rank 293  running  99 %  400 ms ago
    |rank 294  running  99 %  400 ms ago
    |rank 295  running  99 %  400 ms ago
    |rank 296  running  99 %  400 ms ago
    |rank 297  running  99 %  400 ms ago
    |rank 298  running  99 %  400 ms ago
    >rank 299  running  99 %  400 ms ago
    |q quit  ? help  s stacks  l log  x stop
    ");
    shown.press("gk");
    assert!(shown.screen().contains(">rank 0 "), "{}", shown.screen());
    // The selection is of a rank, not of a row.
    shown.press("jj");
    let ranks: Vec<RankStatus> = (1..300).map(rank).collect();
    shown.answer(vec![node(0, 1, ranks.clone())], status(ranks, 1));
    assert!(shown.screen().contains(">rank 2 "), "{}", shown.screen());
}

#[test]
fn screens_of_any_size_are_drawn() {
    let mut shown = Shown::with_ranks(5, (80, 24));
    for key in ['?', 's', 'l', '\x1b', 'x', 'n', 'j'] {
        shown.press(&key.to_string());
        for size in (0..30).flat_map(|columns| (0..6).map(move |rows| (columns * 3, rows))) {
            shown.happens(Event::Resized(size.0, size.1));
            shown.screen();
        }
    }
}

#[test]
fn stacks_scroll_and_are_read_again() {
    let mut shown = Shown::with_ranks(2, (40, 6));
    assert_eq!(shown.press("s"), [Effect::Ask(Question::Stacks)]);
    assert_eq!(shown.press("s"), []);
    assert!(shown.screen().contains("reading the stacks..."));
    let lines = (0..9).map(|number| format!("    frame {number} \u{1b}[2J{}", "wide ".repeat(6))).collect();
    shown.happens(Event::Answered(Answer::Stacks(lines)));
    shown.press("jj");
    insta::assert_snapshot!(shown.screen(), @r"
    |stacks of all ranks
    |    frame 1 \u{1b}[2Jwide wide wide wide
    | wide wide
    |    frame 2 \u{1b}[2Jwide wide wide wide
    | wide wide
    |q quit  Esc back  j/k scroll  s read aga
    ");
    shown.press("G");
    assert!(shown.screen().contains("frame 8"), "{}", shown.screen());
    assert_eq!(shown.press("s"), [Effect::Ask(Question::Stacks)]);
    shown.happens(Event::Key(Key::Escape));
    shown.happens(Event::Answered(Answer::None(Question::Stacks, "the reader failed".into())));
    assert!(shown.screen().contains("rank 0") && shown.screen().contains("the reader failed"));
}

#[test]
fn a_log_is_followed_until_the_user_scrolls() {
    let mut shown = Shown::with_ranks(2, (40, 6));
    let places = |number| vec![(rank(number).logs[0].clone(), 0)];
    let lines = |count| (0..count).map(|number| format!("step {number}")).collect::<Vec<_>>();
    assert_eq!(shown.press("l"), [Effect::Ask(Question::Logs(places(0)))]);
    shown.happens(Event::Answered(Answer::Logs(places(0), lines(50))));
    assert!(shown.screen().contains("|step 49\n"), "{}", shown.screen());
    shown.press("kk");
    shown.now += Duration::from_secs(1);
    assert_eq!(shown.happens(Event::Tick), [Effect::Ask(Question::Logs(places(0)))]);
    shown.happens(Event::Answered(Answer::Logs(places(0), lines(60))));
    insta::assert_snapshot!(shown.screen(), @r"
    |log of rank 0
    |step 44
    |step 45
    |step 46
    |step 47
    |q quit  Esc back  j/k scroll  G end  x s
    ");
    shown.press("G");
    assert!(shown.screen().contains("|step 59\n"), "{}", shown.screen());
    // An answer about another rank is not shown.
    shown.now += Duration::from_secs(1);
    shown.happens(Event::Tick);
    shown.happens(Event::Key(Key::Escape));
    assert_eq!(shown.press("jl"), []);
    let asks = shown.happens(Event::Answered(Answer::Logs(places(0), lines(60))));
    assert!(asks.contains(&Effect::Ask(Question::Logs(places(1)))), "{asks:?}");
    assert!(!shown.screen().contains("step"), "{}", shown.screen());
}

#[test]
fn a_stop_is_confirmed() {
    let mut shown = Shown::with_ranks(1, (80, 6));
    assert_eq!(shown.press("xnq"), [Effect::Quit]);
    assert_eq!(shown.press("x"), []);
    assert!(shown.screen().contains(">Stop job j7? y: yes, any other key: no"), "{}", shown.screen());
    assert_eq!(shown.press("y"), [Effect::Ask(Question::Stop)]);
    let refused = Answer::None(Question::Stop, "the launcher refuses: no".into());
    shown.happens(Event::Answered(refused));
    assert!(shown.screen().contains("the launcher refuses: no"), "{}", shown.screen());
    assert_eq!(shown.happens(Event::Answered(Answer::Stopping)), [Effect::Ask(Question::Status)]);
    assert_eq!(shown.happens(Event::Answered(Answer::Gone)), [Effect::End]);
}

#[test]
fn a_launcher_that_does_not_answer_is_named_and_asked_again() {
    let mut shown = Shown::with_ranks(1, (80, 6));
    assert_eq!(shown.state.idle(shown.now), Duration::from_secs(2));
    shown.now = Duration::from_secs(2);
    assert_eq!(shown.happens(Event::Tick), [Effect::Ask(Question::Status)]);
    shown.now = Duration::from_secs(9);
    assert_eq!(shown.happens(Event::Tick), []);
    assert!(shown.screen().contains("the launcher has not answered for 9 s"), "{}", shown.screen());
    shown.happens(Event::Answered(Answer::None(Question::Status, "the launcher does not answer: x".into())));
    assert!(shown.screen().contains("the launcher does not answer: x"), "{}", shown.screen());
    shown.now = Duration::from_secs(11);
    assert_eq!(shown.happens(Event::Tick), [Effect::Ask(Question::Status)]);
    shown.answer(vec![node(0, 1, vec![rank(0)])], status(vec![rank(0)], 1));
    assert!(shown.screen().contains("q quit"), "{}", shown.screen());
}

#[test]
fn help() {
    let mut shown = Shown::with_ranks(1, (80, 16));
    shown.press("?");
    assert_eq!(shown.state.pane, Pane::Help);
    insta::assert_snapshot!(shown.screen(), @r"
    |rlaunch top
    |q, Ctrl-C         quit; the job runs on
    |s                 stacks of all ranks; again: read them again
    |l                 the end of the selected rank's log
    |Up/Down, k/j      select a rank, or scroll
    |PgUp/PgDn, Space  the same by a page
    |Home/End, g/G     the first or the last
    |x                 stop the job; y confirms
    |Esc               back to the ranks
    |Ctrl-L            draw the screen again
    |Ctrl-Z            suspend; fg continues
    |?                 this help
    |
    |logs: /j/log
    |
    |q quit  Esc back
    ");
    shown.press("?");
    assert_eq!(shown.state.pane, Pane::Ranks);
}
