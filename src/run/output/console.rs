//! Copies growing log files to the console: every byte in order for a single rank, whole lines with a prefix for several.
//! The log files are the buffer, so neither a rank nor the launcher ever waits for the console.

use crate::report::console::escape::ColorPolicy;
use crate::run::output::log_rotation::WITHOUT_WATCH;
use crate::run::output::pending_text::{LogForm, PendingText, TextRules};
use crate::run::output::rotated_log::RotatedLog;
use crate::sys::clock;
use crate::sys::io::console::{Accepted, Console, MID_LINE, RETRY};
use crate::sys::io::inotify::{FileWatch, GrownFiles, GrowthWatch};
use crate::sys::io::poll::Poller;
use nix::errno::Errno;
use std::fs::File;
use std::io;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tracing::warn;

const CHUNK: usize = 64 * 1024;
/// Chunks copied before the event loop handles other events.
const TURN: usize = 16;

/// How long an unfinished line is held. A prompt never ends its line, and a progress bar does so late.
const HOLD: Duration = Duration::from_secs(1);

/// Output of ranks that the console has not shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Unshown {
    /// Bytes that are in the logs alone.
    pub logged: u64,
    /// Whether the reason is that the console's reader is gone.
    pub is_reader_gone: bool,
}

impl Unshown {
    /// That of two consoles, or of two rounds, together.
    pub fn and(self, other: Self) -> Self {
        Self {
            logged: self.logged + other.logged,
            is_reader_gone: self.is_reader_gone && other.logged == 0
                || other.is_reader_gone && self.logged == 0
                || self.is_reader_gone && other.is_reader_gone,
        }
    }

    /// Whether the console has shown everything.
    pub fn is_none(self) -> bool {
        self.logged == 0
    }
}

/// A console that refuses what is written to it, for a reason that may pass.
struct Refusal {
    errno: Errno,
    since: Duration,
    retry_at: Duration,
}

/// A followed log.
struct FollowedLog {
    file: File,
    offset: u64,
    /// The offset of the first byte that is neither on the console nor in `out`: the beginning of an unfinished line.
    settled: u64,
    /// Its rotation, if it is rotated.
    rotated: Option<Arc<RotatedLog>>,
    /// `None` if it cannot be watched: then it is checked periodically.
    watched: Option<FileWatch>,
    /// Whether it may have unread bytes.
    grown: bool,
    /// Whether its rank has ended, so that it does not grow any more.
    ended: bool,
    pending: PendingText,
    /// Since when it has had an unfinished line that has not been shown.
    held: Option<Duration>,
}

impl FollowedLog {
    /// Releases the unread bytes for rotation.
    fn release(&self) {
        if let Some(log) = &self.rotated {
            log.keep_nothing();
        }
    }

    /// Notes for rotation that the console shows nothing any more.
    fn abandon(&self) {
        if let Some(log) = &self.rotated {
            log.abandon();
        }
    }

    /// Notes for rotation what the console has shown.
    fn note_shown(&self) {
        if let Some(log) = self.rotated.as_ref().filter(|log| log.is_captured()) {
            log.keep_from(self.settled);
        }
    }

    fn unread(&self) -> u64 {
        let offset = self.rotated.as_ref().map_or(self.offset, |log| log.offset(self.offset));
        self.file.metadata().map_or(0, |m| m.len().saturating_sub(offset))
    }

    /// Reads on. Returns the bytes read and the bytes that rotation removed before they were read, unless it counts them itself.
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<(usize, u64)> {
        if let Some(log) = &self.rotated {
            let before = self.offset;
            let read = log.read_at(&self.file, buffer, &mut self.offset)?;
            return Ok((read, if log.is_captured() { 0 } else { self.offset - before - read as u64 }));
        }
        let mut read = self.file.read_at(buffer, self.offset)?;
        if read == 0 && self.file.metadata()?.len() < self.offset {
            // The file has been truncated: all of its content is new.
            self.offset = 0;
            read = self.file.read_at(buffer, 0)?;
        }
        self.offset += read as u64;
        Ok((read, 0))
    }
}

/// Copies the logs of several ranks to one console or file.
pub struct LogFollower {
    sources: Vec<FollowedLog>,
    /// When unwatched files were checked last.
    checked: Duration,
    console: Arc<Console>,
    /// Its name in messages.
    name: String,
    colours: ColorPolicy,
    /// Only lines that contain one of these texts are copied; empty: all lines.
    only: Vec<Vec<u8>>,
    /// Bytes that have been read and not yet accepted by the console.
    out: Vec<u8>,
    token: u64,
    /// Whether it waits until the console accepts more.
    blocked: bool,
    /// Why it writes again only later.
    refusal: Option<Refusal>,
    /// Bytes that the console has accepted.
    accepted: u64,
    /// Bytes that rotation removed before the console accepted them.
    skipped: u64,
    /// Whether the console's reader is gone.
    gone: bool,
    more: bool,
    /// Whether ranks at a terminal have written escape sequences there; `None` without any such rank.
    escaped: Option<bool>,
    /// Whether tracebacks of KeyboardInterrupt are left out, and of how many logs some were.
    interrupted: Option<usize>,
}

/// Colors off, the cursor visible: a rank may have been killed while it drew.
const RESTORE: &[u8] = b"\x1b[0m\x1b[?25h";

impl LogFollower {
    /// Follows no log yet. `name`: of the console; `colour`: whether a terminal is shown colours, with a prefix; `token`: for the
    /// console.
    pub fn new((console, name): (Console, String), colour: bool, token: u64) -> Self {
        let colours = if colour && console.is_terminal() { ColorPolicy::Keep } else { ColorPolicy::Drop };
        Self {
            sources: Vec::new(),
            checked: clock::now(),
            console: Arc::new(console),
            name,
            colours,
            only: Vec::new(),
            out: Vec::new(),
            token,
            blocked: false,
            refusal: None,
            accepted: 0,
            skipped: 0,
            gone: false,
            more: false,
            escaped: None,
            interrupted: None,
        }
    }

    /// Copies only lines that contain one of these texts.
    pub fn only(self, texts: &[String]) -> Self {
        Self { only: texts.iter().map(|text| text.clone().into_bytes()).collect(), ..self }
    }

    /// The name of the console.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The console.
    pub fn console(&self) -> &Arc<Console> {
        &self.console
    }

    /// Follows the log at `path` from `offset` on. A log that is the console itself (a launcher inside a rank) is not followed:
    /// it would be copied to itself forever.
    pub fn follow(
        &mut self,
        path: &Path,
        offset: u64,
        rotated: Option<Arc<RotatedLog>>,
        form: LogForm,
    ) -> io::Result<()> {
        let file = File::open(path)?;
        if self.console.is(&file) {
            return Ok(());
        }
        let watched = GrowthWatch::of_process().and_then(|watch| watch.add(path).ok());
        if form == LogForm::Terminal {
            self.escaped.get_or_insert_default();
        }
        let mut pending = PendingText::new(form);
        if self.interrupted.is_some() {
            pending.leave_out_interrupts();
        }
        if let Some(log) = &rotated {
            log.keep_from(offset);
            if self.gone {
                log.abandon();
            }
        }
        let (settled, grown, ended, held) = (offset, true, false, None);
        self.sources.push(FollowedLog { file, offset, settled, rotated, watched, grown, ended, pending, held });
        // Bytes that were written before the watch cause no event.
        self.more = true;
        Ok(())
    }

    /// From now on leaves out tracebacks that end in KeyboardInterrupt: the user has pressed Ctrl-C.
    pub fn leave_out_interrupts(&mut self) {
        self.interrupted.get_or_insert(0);
        for source in &mut self.sources {
            source.pending.leave_out_interrupts();
        }
    }

    /// The number of logs of which a traceback was left out.
    pub fn interrupted_logs(&self) -> usize {
        self.interrupted.unwrap_or(0)
    }

    /// Marks all followed logs as ended. The next attempt writes to other files.
    pub fn all_ended(&mut self) {
        for source in &mut self.sources {
            (source.grown, source.ended) = (true, true);
        }
    }

    /// Handles that files have grown.
    pub fn grown(&mut self, grown: &GrownFiles, poll: &Poller) -> io::Result<()> {
        for source in &mut self.sources {
            source.grown |= source.watched.as_ref().is_none_or(|watched| watched.is_among(grown));
        }
        if self.blocked { Ok(()) } else { self.copy(poll) }
    }

    /// Handles that the console accepts more.
    pub fn writable(&mut self, poll: &Poller) -> io::Result<()> {
        self.blocked = false;
        self.copy(poll)
    }

    /// Whether there is more to copy now, so that the event loop must not sleep.
    pub fn has_more(&self) -> bool {
        self.more
    }

    /// When an unfinished line has to be shown or unwatched files have to be checked (`clock::now`).
    pub fn due(&self) -> Option<Duration> {
        if let Some(refusal) = &self.refusal {
            return Some(refusal.retry_at);
        }
        let held = self.sources.iter().filter_map(|source| source.held).min().map(|since| since.saturating_add(HOLD));
        held.into_iter().chain(self.check_at()).min().filter(|_| !self.blocked && !self.gone)
    }

    fn check_at(&self) -> Option<Duration> {
        let unwatched = self.sources.iter().any(|source| source.watched.is_none());
        unwatched.then(|| self.checked.saturating_add(WITHOUT_WATCH))
    }

    /// Shows unfinished lines that have been held long enough, with a prefix as lines of their own, and checks unwatched files.
    pub fn handle_timeout(&mut self, poll: &Poller) -> io::Result<()> {
        let now = clock::now();
        if self.due().is_none_or(|at| at > now) {
            return Ok(());
        }
        if self.check_at().is_some_and(|at| at <= now) {
            self.checked = now;
            self.sources.iter_mut().for_each(|source| source.grown |= source.watched.is_none());
        }
        let rules = TextRules { colours: self.colours, only: &self.only, shared: self.sources.len() > 1 };
        for source in &mut self.sources {
            if source.held.is_none_or(|since| since.saturating_add(HOLD) > now) || !self.only.is_empty() {
                continue;
            }
            source.held = None;
            source.settled = source.offset;
            source.pending.take_held(rules, &mut self.out);
        }
        self.copy(poll)
    }

    /// Copies what the console accepts, at most `TURN` chunks.
    pub fn copy(&mut self, poll: &Poller) -> io::Result<()> {
        self.more = false;
        if self.refusal.as_ref().is_some_and(|refusal| refusal.retry_at > clock::now()) {
            return Ok(());
        }
        for _ in 0..TURN {
            if self.gone {
                return Ok(());
            }
            if self.out.is_empty() {
                self.sources.iter().for_each(FollowedLog::note_shown);
                if !self.read()? {
                    return Ok(());
                }
            }
            if !self.write(poll)? {
                return Ok(());
            }
        }
        self.more = true;
        Ok(())
    }

    /// Fills `out`. False when there is nothing to read.
    fn read(&mut self) -> io::Result<bool> {
        let mut buffer = vec![0; CHUNK];
        let shared = self.sources.len() > 1;
        let first = |sources: &[FollowedLog]| {
            let ended = sources.iter().position(|s| s.ended);
            ended.or_else(|| sources.iter().position(|s| s.grown))
        };
        while let Some(at) = first(&self.sources) {
            let source = &mut self.sources[at];
            // A read error (a stale NFS handle) ends the copy of this log.
            let Ok((read, skipped)) = source.read(&mut buffer) else {
                self.skipped += source.unread().max(1);
                self.sources.remove(at).release();
                continue;
            };
            self.skipped += skipped;
            let rules = TextRules { colours: self.colours, only: &self.only, shared };
            let holds = source.pending.feed(&buffer[..read], rules, &mut self.out);
            let unfinished = buffer[..read].iter().rev().position(|byte| *byte == b'\n');
            match unfinished.filter(|_| holds) {
                Some(length) => source.settled = source.offset - length as u64,
                None if !holds => source.settled = source.offset,
                None => {}
            }
            source.held = holds.then(|| source.held.unwrap_or_else(clock::now));
            if read > 0 && !source.ended {
                // Moved behind the others, so that a rank that always writes does not starve them.
                self.sources[at..].rotate_left(1);
            } else if read == 0 && source.ended {
                if source.pending.finish(rules, &mut self.out) {
                    self.interrupted = self.interrupted.map(|logs| logs + 1);
                }
                self.sources.remove(at).release();
            } else if read == 0 {
                source.grown = false;
            }
            if !self.out.is_empty() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Writes what the console accepts. False when it accepts no more.
    fn write(&mut self, poll: &Poller) -> io::Result<bool> {
        while !self.out.is_empty() {
            match self.console.write(&self.out) {
                Accepted::Bytes(written) => {
                    if let Some(escaped) = &mut self.escaped {
                        *escaped |= self.out[..written].contains(&0x1b);
                        MID_LINE.store(!self.out[..written].ends_with(b"\n"), Ordering::Relaxed);
                    }
                    self.out.drain(..written);
                    self.accepted += written as u64;
                }
                Accepted::Full => {
                    self.blocked = poll.writable_once(&self.console, self.token)?;
                    return Ok(false);
                }
                Accepted::Refused(errno) => {
                    self.note_refusal(errno);
                    return Ok(false);
                }
                // The reader is gone (`| head`): the job continues, and its logs are complete.
                Accepted::Gone => {
                    self.gone = true;
                    self.sources.iter().for_each(FollowedLog::abandon);
                    return Ok(false);
                }
            }
        }
        if let Some(Refusal { errno, since, .. }) = self.refusal.take() {
            let seconds = clock::now().saturating_sub(since).as_secs_f64();
            warn!("{} accepts output again after {seconds:.1} s ({})", self.name, errno.desc());
        }
        Ok(true)
    }

    /// Tries again later. Said at once, unless messages would meet the same error.
    fn note_refusal(&mut self, errno: Errno) {
        let now = clock::now();
        if self.refusal.is_none() && !self.console.is(io::stderr()) {
            warn!("{}: {}: the output of ranks waits in their logs until it is accepted", self.name, errno.desc());
        }
        let since = self.refusal.as_ref().map_or(now, |refusal| refusal.since);
        self.refusal = Some(Refusal { errno, since, retry_at: now.saturating_add(RETRY) });
    }

    /// What the console has not shown so far.
    fn unshown(&self) -> Unshown {
        let out = self.out.len() as u64;
        if let [source] = &self.sources[..]
            && let Some(log) = source.rotated.as_ref().filter(|log| log.is_captured())
        {
            // A part of what was read has been shown.
            log.keep_from(source.settled.saturating_sub(out));
        }
        let unread: u64 = self.sources.iter().map(FollowedLog::unread).sum();
        let cut_off: u64 = self.sources.iter().filter_map(|source| Some(source.rotated.as_ref()?.cut_off())).sum();
        Unshown { logged: self.skipped + unread + out.saturating_sub(cut_off), is_reader_gone: self.gone }
    }

    /// Copies the rest after all ranks have ended. Gives up once the console has accepted nothing for `patience`, after
    /// `limit` in all, or when `give_up` returns true, which is called whenever a descriptor in `wake` is readable.
    pub fn finish(
        &mut self,
        patience: Duration,
        limit: Duration,
        wake: &[BorrowedFd<'_>],
        give_up: &mut dyn FnMut() -> bool,
    ) -> io::Result<Unshown> {
        let poll = Poller::new()?;
        for fd in wake {
            poll.readable(fd, u64::MAX)?;
        }
        let end = clock::now().saturating_add(limit);
        let mut patient = clock::now().saturating_add(patience);
        self.all_ended();
        loop {
            let before = self.accepted;
            self.blocked = false;
            self.copy(&poll)?;
            if self.gone {
                return Ok(self.unshown());
            }
            if self.sources.is_empty() && self.out.is_empty() {
                if self.escaped.take() == Some(true) {
                    self.out = RESTORE.to_vec();
                    continue;
                }
                return Ok(self.unshown());
            }
            let waits = self.blocked || self.refusal.is_some();
            if !waits || self.accepted > before {
                patient = clock::now().saturating_add(patience);
            }
            let until = match &self.refusal {
                _ if !waits => clock::now(),
                Some(refusal) => refusal.retry_at.min(patient).min(end),
                None => patient.min(end),
            };
            if poll.wait(Some(until.saturating_sub(clock::now())))?.contains(&self.token) {
                patient = clock::now().saturating_add(patience);
            }
            if give_up() || clock::now() >= patient.min(end) {
                return Ok(self.unshown());
            }
        }
    }
}
