//! `rlaunch top`: a job in the terminal, live. The state machine is in `state`; here are the threads that ask, and the loop.

mod keys;
mod render;
mod state;
mod terminal;
#[cfg(test)]
mod tests;

use crate::cli::common::startup::print_output;
use crate::cli::control::client::Client;
use crate::cli::control::error::ControlError;
use crate::cli::control::jobs::find;
use crate::cli::control::stacks_text;
use crate::model::plain_text::escape;
use crate::report::console::tail::{TailLimits, tail};
use crate::run::control::message::ControlRequest;
use crate::run::control::node_answer::NodeQuestion;
use crate::run::output::log_files;
use crate::sys::clock;
use crate::sys::io::poll::Poller;
use crate::sys::signals::{HeldStop, STOP, Signals};
use keys::KeyDecoder;
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::signal::{Signal, raise};
use state::{Answer, Effect, Event, Question, State};
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, IsTerminal};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::Duration;
use terminal::Screen;

/// Bytes and lines at the end of a log that are shown.
const TAIL: TailLimits = TailLimits { lines: 1000, bytes: 256 << 10 };
/// How long the rest of a key's bytes may take.
const KEY_PATIENCE: Duration = Duration::from_millis(50);
/// Beside those that end the launcher.
const SIGNALS: [i32; 2] = [libc::SIGCONT, libc::SIGWINCH];

/// The token of SIGTSTP.
const STOPPED: u64 = 3;

/// How it ends.
enum Ending {
    Quit,
    JobEnded,
    Signal(i32),
}

pub(super) fn run(job: Option<&OsStr>, this_node: bool) -> Result<(), ControlError> {
    let (stdin, stdout) = (io::stdin(), io::stdout());
    let is_dumb = std::env::var_os("TERM").is_some_and(|name| name == "dumb");
    if is_dumb || !stdin.is_terminal() || !stdout.is_terminal() {
        return Err(ControlError::NoTerminal);
    }
    let (client, status) = find::find_to_watch(job)?;
    let end = format!(
        "job {} (pid {}) has ended; its logs are in {}\n",
        escape(&status.job_id),
        status.launcher,
        escape(&status.log_dir.display().to_string())
    );
    let show = || -> io::Result<Ending> {
        let mut signals = Signals::install()?;
        for signal in SIGNALS {
            signals.install_one(signal);
        }
        let output = File::from(stdout.as_fd().try_clone_to_owned()?);
        // Dropped before the handlers, which then are those of before.
        let mut screen = Screen::enter(stdin.as_fd().try_clone_to_owned()?, output)?;
        let state = State::new(status, screen.size(), clock::now());
        follow(state, &mut screen, &signals, &Asker::new(client, this_node)?)
    };
    match show().map_err(ControlError::Terminal)? {
        Ending::Quit => {}
        Ending::JobEnded => print_output(&end),
        // As if there had been no handler.
        Ending::Signal(number) => raise(Signal::try_from(number)?)?,
    }
    Ok(())
}

fn follow(mut state: State, screen: &mut Screen, signals: &Signals, asker: &Asker) -> io::Result<Ending> {
    let poller = Poller::new()?;
    poller.readable(&*screen, 0)?;
    poller.readable(signals, 1)?;
    let held = HeldStop::new()?;
    if let Some(held) = &held {
        poller.readable(held, STOPPED)?;
    }
    poller.readable(&*asker.wakeup, 2)?;
    let mut keys = KeyDecoder::default();
    let mut events = vec![Event::Tick];
    loop {
        for event in events.drain(..) {
            for effect in state.transition(event, clock::now()) {
                match effect {
                    Effect::Ask(question) => asker.ask(question),
                    Effect::Redraw => screen.resize()?,
                    Effect::Quit => return Ok(Ending::Quit),
                    Effect::End => return Ok(Ending::JobEnded),
                }
            }
        }
        let now = clock::now();
        screen.draw(|frame| render::draw(&state, now, clock::wall().as_secs_f64(), frame))?;
        let limit = if keys.is_undecided() { KEY_PATIENCE } else { state.idle(now) };
        let ready = poller.wait(Some(limit))?;
        if let Some(held) = held.as_ref().filter(|_| ready.contains(&STOPPED)) {
            screen.leave();
            held.stop_self();
            screen.enter_again()?;
            let (columns, rows) = screen.size();
            events.push(Event::Resized(columns, rows));
        }
        for received in signals.drain() {
            match received.signal {
                // After SIGSTOP, which has no handler.
                libc::SIGCONT => screen.enter_again()?,
                libc::SIGWINCH => screen.resize()?,
                signal if STOP.contains(&signal) => return Ok(Ending::Signal(signal)),
                _ => continue,
            }
            let (columns, rows) = screen.size();
            events.push(Event::Resized(columns, rows));
        }
        let decided = if ready.is_empty() { keys.decide() } else { None };
        events.extend(decided.map(Event::Key));
        if ready.contains(&0) {
            let Some(bytes) = screen.read() else { return Ok(Ending::Quit) };
            events.extend(keys.feed(&bytes).into_iter().map(Event::Key));
        }
        events.extend(asker.answers().map(Event::Answered));
        events.push(Event::Tick);
    }
}

/// Asks in threads of its own, so that keys never wait for an answer.
struct Asker {
    client: Client,
    this_node: bool,
    sender: Sender<Answer>,
    receiver: Receiver<Answer>,
    /// Readable when there are answers.
    wakeup: Arc<EventFd>,
}

impl Asker {
    fn new(client: Client, this_node: bool) -> io::Result<Self> {
        let (sender, receiver) = mpsc::channel();
        let wakeup = Arc::new(EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?);
        Ok(Self { client, this_node, sender, receiver, wakeup })
    }

    fn ask(&self, question: Question) {
        let (client, this_node, kind) = (self.client.clone(), self.this_node, question.clone());
        let (sender, wakeup) = (self.sender.clone(), Arc::clone(&self.wakeup));
        let tell = move |answer| {
            // After the end no answer is received.
            let _ = sender.send(answer);
            let _ = wakeup.write(1);
        };
        let later = tell.clone();
        let spawned = std::thread::Builder::new().spawn(move || later(answer(question, client, this_node)));
        if let Err(error) = spawned {
            tell(Answer::None(kind, format!("no thread can be started: {}", log_files::plain(&error))));
        }
    }

    fn answers(&self) -> impl Iterator<Item = Answer> {
        let _ = self.wakeup.read();
        self.receiver.try_iter()
    }
}

fn answer(question: Question, mut client: Client, this_node: bool) -> Answer {
    let answered = match &question {
        Question::Status => client.ask_nodes(NodeQuestion::Status, this_node).map(Box::new).map(Answer::Status),
        Question::Stacks => client.ask_nodes(NodeQuestion::Stacks, this_node).map(|answers| {
            let text = stacks_text::of_nodes(&answers.status, &answers.nodes);
            Answer::Stacks(text.lines().map(str::to_owned).collect())
        }),
        Question::Stop => client.ask(ControlRequest::Stop { grace_period: None }).map(|_| Answer::Stopping),
        Question::Logs(logs) => {
            let mut lines = Vec::new();
            for (path, start) in logs {
                if logs.len() > 1 {
                    lines.push(format!("{}:", path.display()));
                }
                lines.extend(tail(&log_files::tail(path, *start, TAIL.bytes as u64), TAIL).lines);
            }
            Ok(Answer::Logs(logs.clone(), lines))
        }
    };
    match (answered, &question) {
        (Ok(answer), _) => answer,
        (Err(ControlError::Gone), Question::Status) => Answer::Gone,
        (Err(error), _) => Answer::None(question, error.to_string()),
    }
}
