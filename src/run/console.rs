//! Copying ranks' log files to the console as they grow: of one rank every byte, in order, whatever its
//! encoding; of several, whole lines behind a prefix. The files are the buffer, so neither a rank nor
//! the launcher ever waits for the console.

use super::rotate::{Log, WITHOUT_WATCH};
use crate::log::Splitter;
use crate::log::escape::Colours;
use crate::log::prefix::write_line;
use crate::sys::clock;
use crate::sys::console::Console;
use crate::sys::inotify::{Grown, GrowthWatch, Watched};
use crate::sys::poll::Poll;
use std::fs::File;
use std::io;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

const CHUNK: usize = 64 * 1024;
/// Chunks copied before the loop looks at other events again.
const TURN: usize = 16;

/// How long a part of a line is held for its rest: a prompt has none, and a progress bar takes its time.
const HELD: Duration = Duration::from_secs(1);

/// How much of the logs the console has shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shown {
    /// All of them.
    All,
    /// All but this many bytes: the console took no more.
    AllBut(u64),
    /// Its reader went away.
    Abandoned,
    /// None: there is no console to follow them.
    Nothing,
}

impl Shown {
    /// What of two consoles' logs has been shown.
    pub fn and(self, other: Self) -> Self {
        match (self, other) {
            (Shown::AllBut(here), Shown::AllBut(there)) => Shown::AllBut(here + there),
            (Shown::Nothing, shown) | (shown, Shown::Nothing) => shown,
            (Shown::AllBut(bytes), _) | (_, Shown::AllBut(bytes)) => Shown::AllBut(bytes),
            (Shown::Abandoned, _) | (_, Shown::Abandoned) => Shown::Abandoned,
            (Shown::All, Shown::All) => Shown::All,
        }
    }
}

/// One log that is followed.
struct Source {
    file: File,
    offset: u64,
    /// Where its beginning is taken away while it grows.
    short: Option<Arc<Log>>,
    watched: Option<Watched>,
    /// There may be more than has been read.
    grown: bool,
    /// Its rank has ended: once all is read, nothing more will come.
    ended: bool,
    /// For a shared console: what stands before each line.
    lines: Option<(String, Splitter)>,
    /// Since when it has had something of an unfinished line that has not been shown.
    held: Option<Duration>,
}

impl Source {
    /// Nobody is shown what is left of it.
    fn let_go(&self) {
        if let Some(log) = &self.short {
            log.shown_no_more();
        }
    }

    fn left(&self) -> u64 {
        let offset = self.short.as_ref().map_or(self.offset, |log| log.offset(self.offset));
        self.file.metadata().map_or(0, |m| m.len().saturating_sub(offset))
    }

    /// Reads on. Returns how much was read, and how much had gone before it could be.
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<(usize, u64)> {
        if let Some(log) = &self.short {
            let before = self.offset;
            let read = log.read_at(&self.file, buffer, &mut self.offset)?;
            return Ok((read, self.offset - before - read as u64));
        }
        let mut read = self.file.read_at(buffer, self.offset)?;
        if read == 0 && self.file.metadata()?.len() < self.offset {
            // Somebody has emptied it: what is in it now has come since.
            self.offset = 0;
            read = self.file.read_at(buffer, 0)?;
        }
        self.offset += read as u64;
        Ok((read, 0))
    }
}

/// Follows log files.
pub struct Follower {
    sources: Vec<Source>,
    /// `None` where the system has no more watches to give: then files are looked at now and then.
    watch: Option<GrowthWatch>,
    /// When those that nobody watches were looked at.
    looked: Duration,
    console: Console,
    colours: Colours,
    /// Only lines with one of these in them are copied; none: all are.
    only: Vec<Vec<u8>>,
    /// Read and not yet taken by the console.
    out: Vec<u8>,
    token: u64,
    /// Waiting for the console to take more; growth needs no answer meanwhile.
    blocked: bool,
    /// Bytes that the console was too slow for: they were taken out of their log first.
    passed_over: u64,
    /// Nobody will read any more.
    gone: bool,
    more: bool,
}

impl Follower {
    /// Follows nothing yet. `colour`: whether a terminal is shown colours, behind a prefix. `tokens`: of the
    /// growth events, then of the console.
    pub fn new(console: Console, colour: bool, poll: &Poll, tokens: (u64, u64)) -> io::Result<Self> {
        let watch = GrowthWatch::new().ok();
        if let Some(watch) = &watch {
            poll.readable(watch, tokens.0)?;
        }
        let colours = if colour && console.is_terminal() { Colours::Keep } else { Colours::Drop };
        Ok(Self {
            sources: Vec::new(),
            watch,
            looked: clock::now(),
            console,
            colours,
            only: Vec::new(),
            out: Vec::new(),
            token: tokens.1,
            blocked: false,
            passed_over: 0,
            gone: false,
            more: false,
        })
    }

    /// Copies only lines with one of these texts in them.
    pub fn only(self, texts: &[String]) -> Self {
        Self { only: texts.iter().map(|text| text.clone().into_bytes()).collect(), ..self }
    }

    /// Follows the log at `path` from `offset` on. `prefix`: what stands before each line; without one, all
    /// is copied byte for byte. A launcher inside a rank may share its log: what it copied there it would
    /// copy again, so that is not followed.
    pub fn follow(
        &mut self,
        path: &Path,
        offset: u64,
        short: Option<Arc<Log>>,
        prefix: Option<String>,
    ) -> io::Result<()> {
        let file = File::open(path)?;
        if self.console.is(&file) {
            return Ok(());
        }
        let watched = self.watch.as_ref().and_then(|watch| watch.add(path).ok());
        let lines = prefix.map(|prefix| (prefix, Splitter::new()));
        if let Some(log) = &short {
            log.shown_from(offset);
        }
        self.sources.push(Source { file, offset, short, watched, grown: true, ended: false, lines, held: None });
        // What its rank has written before it was watched, nobody tells of.
        self.more = true;
        Ok(())
    }

    /// All ranks that are followed have ended; their successors' logs are other files.
    pub fn all_ended(&mut self) {
        for source in &mut self.sources {
            (source.grown, source.ended) = (true, true);
        }
    }

    /// Some file has grown.
    pub fn grown(&mut self, poll: &Poll) -> io::Result<()> {
        if let Some(watch) = &self.watch {
            let grown = watch.drain().unwrap_or(Grown::Any);
            for source in &mut self.sources {
                source.grown |= match &grown {
                    Grown::Any => true,
                    Grown::These(these) => source.watched.is_some_and(|w| these.contains(&w)),
                };
            }
        }
        if self.blocked { Ok(()) } else { self.copy(poll) }
    }

    /// The console takes more.
    pub fn writable(&mut self, poll: &Poll) -> io::Result<()> {
        self.blocked = false;
        self.copy(poll)
    }

    /// Whether there is more to copy at once, so that the loop must not sleep.
    pub fn has_more(&self) -> bool {
        self.more
    }

    /// When there will be something of an unfinished line to show, or it is time to look at what nobody watches; on the
    /// clock of supervision.
    pub fn due(&self) -> Option<Duration> {
        let held = self.sources.iter().filter_map(|source| source.held).min().map(|since| since.saturating_add(HELD));
        held.into_iter().chain(self.look()).min().filter(|_| !self.blocked && !self.gone)
    }

    fn look(&self) -> Option<Duration> {
        let unwatched = self.sources.iter().any(|source| source.watched.is_none());
        unwatched.then(|| self.looked.saturating_add(WITHOUT_WATCH))
    }

    /// Shows what has been held of unfinished lines for long enough, each as a line of its own, and what has come to
    /// files that nobody watches.
    pub fn handle_timeout(&mut self, poll: &Poll) -> io::Result<()> {
        let now = clock::now();
        if self.due().is_none_or(|at| at > now) {
            return Ok(());
        }
        if self.look().is_some_and(|at| at <= now) {
            self.looked = now;
            self.sources.iter_mut().for_each(|source| source.grown |= source.watched.is_none());
        }
        for source in &mut self.sources {
            if source.held.is_some_and(|since| since.saturating_add(HELD) <= now)
                && self.only.is_empty()
                && let Some((prefix, lines)) = &mut source.lines
            {
                source.held = None;
                if let Some(line) = lines.take_pending() {
                    write_line(&mut self.out, prefix, &line, self.colours);
                }
            }
        }
        self.copy(poll)
    }

    /// Copies what is there and fits, up to a turn's worth.
    pub fn copy(&mut self, poll: &Poll) -> io::Result<()> {
        self.more = false;
        for _ in 0..TURN {
            if self.gone {
                return Ok(());
            }
            if self.out.is_empty() && !self.read()? {
                return Ok(());
            }
            if !self.write(poll)? {
                return Ok(());
            }
        }
        self.more = true;
        Ok(())
    }

    /// Fills `out`; false when there is nothing to be had.
    fn read(&mut self) -> io::Result<bool> {
        let mut buffer = vec![0; CHUNK];
        let first = |sources: &[Source]| {
            let ended = sources.iter().position(|s| s.ended);
            ended.or_else(|| sources.iter().position(|s| s.grown))
        };
        while let Some(at) = first(&self.sources) {
            let source = &mut self.sources[at];
            // A file system that fails (a stale NFS handle) takes from the console what it has of this log.
            let Ok((read, passed_over)) = source.read(&mut buffer) else {
                self.passed_over += source.left().max(1);
                self.unwatch(at);
                continue;
            };
            self.passed_over += passed_over;
            let (out, colours, only) = (&mut self.out, self.colours, &self.only);
            match &mut source.lines {
                None => out.extend_from_slice(&buffer[..read]),
                Some((prefix, lines)) => {
                    lines.feed(&buffer[..read], |line| {
                        if is_wanted(line, only) {
                            write_line(out, prefix, line, colours);
                        }
                    });
                    let holds = lines.is_holding() && only.is_empty();
                    source.held = holds.then(|| source.held.unwrap_or_else(clock::now));
                }
            }
            if read > 0 && !source.ended {
                // Behind the others: none waits for one that writes all the time.
                self.sources[at..].rotate_left(1);
            } else if read == 0 && source.ended {
                if let Some((prefix, lines)) = &mut source.lines
                    && let Some(line) = lines.finish()
                    && is_wanted(&line, only)
                {
                    write_line(out, prefix, &line, colours);
                }
                self.unwatch(at);
            } else if read == 0 {
                source.grown = false;
            }
            if !self.out.is_empty() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn unwatch(&mut self, at: usize) {
        let source = self.sources.remove(at);
        source.let_go();
        // Two attempts may have written to one file, which is watched once (inotify(7)).
        let shared = self.sources.iter().any(|other| other.watched == source.watched);
        if let (Some(watch), Some(watched), false) = (&self.watch, source.watched, shared) {
            watch.remove(watched);
        }
    }

    /// Writes what the console takes; false when it takes no more.
    fn write(&mut self, poll: &Poll) -> io::Result<bool> {
        while !self.out.is_empty() {
            match self.console.write(&self.out) {
                Ok(0) => {
                    self.blocked = poll.writable_once(&self.console, self.token)?;
                    return Ok(false);
                }
                Ok(written) => drop(self.out.drain(..written)),
                // The reader is gone (`| head`): the job goes on, its log has it all.
                Err(_) => {
                    self.gone = true;
                    self.sources.iter().for_each(Source::let_go);
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    /// Copies the rest once all ranks have ended, waiting for the console as long as it takes something
    /// every `patience`, for `limit` in all, and until `give_up` says so, which is asked whenever one of `wake` is
    /// readable.
    pub fn finish(
        &mut self,
        patience: Duration,
        limit: Duration,
        wake: &[BorrowedFd<'_>],
        give_up: &mut dyn FnMut() -> bool,
    ) -> io::Result<Shown> {
        let poll = Poll::new()?;
        for fd in wake {
            poll.readable(fd, u64::MAX)?;
        }
        let end = clock::now().saturating_add(limit);
        let mut patient = clock::now().saturating_add(patience);
        self.all_ended();
        loop {
            self.blocked = false;
            self.copy(&poll)?;
            if self.gone {
                return Ok(Shown::Abandoned);
            }
            if self.sources.is_empty() && self.out.is_empty() {
                return Ok(if self.passed_over > 0 { Shown::AllBut(self.passed_over) } else { Shown::All });
            }
            let until = if self.blocked { patient.min(end) } else { clock::now() };
            if poll.wait(Some(until.saturating_sub(clock::now())))?.contains(&self.token) || !self.blocked {
                patient = clock::now().saturating_add(patience);
            }
            if give_up() || clock::now() >= patient.min(end) {
                let unread: u64 = self.sources.iter().map(Source::left).sum();
                return Ok(Shown::AllBut(self.passed_over + unread + self.out.len() as u64));
            }
        }
    }
}

/// Whether a line has one of these texts in it, or all lines are wanted.
fn is_wanted(line: &[u8], only: &[Vec<u8>]) -> bool {
    only.is_empty() || only.iter().any(|text| text.is_empty() || line.windows(text.len()).any(|part| part == text))
}
