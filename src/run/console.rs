//! Copying one rank's log file to the console as it grows: every byte, in order, whatever its
//! encoding. The file is the buffer, so neither the rank nor the launcher ever waits for the console.

use crate::sys::console::Console;
use crate::sys::inotify::GrowthWatch;
use crate::sys::poll::Poll;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

const CHUNK: usize = 64 * 1024;
/// Chunks copied before the loop looks at other events again.
const TURN: usize = 16;

/// How much of a log the console has shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shown {
    /// All of it.
    All,
    /// All but this many bytes: the console took no more.
    AllBut(u64),
    /// Its reader went away.
    Abandoned,
    /// None: there is no console to follow it.
    Nothing,
}

/// Follows one log file.
pub struct Follower {
    file: File,
    /// `None` where the system has no more watches to give: then all is copied at the end.
    watch: Option<GrowthWatch>,
    console: Console,
    offset: u64,
    token: u64,
    /// Waiting for the console to take more; `growth` events need no answer meanwhile.
    blocked: bool,
    /// Nobody will read any more.
    gone: bool,
    more: bool,
}

impl Follower {
    /// Follows `path` from `offset` on. `tokens`: of the growth events, then of the console.
    pub fn new(path: &Path, offset: u64, console: Console, poll: &Poll, tokens: (u64, u64)) -> io::Result<Self> {
        let file = File::open(path)?;
        let watch = GrowthWatch::new(path).ok();
        if let Some(watch) = &watch {
            poll.readable(watch, tokens.0)?;
        }
        Ok(Self { file, watch, console, offset, token: tokens.1, blocked: false, gone: false, more: false })
    }

    /// The file has grown.
    pub fn grown(&mut self, poll: &Poll) -> io::Result<()> {
        if let Some(watch) = &self.watch {
            watch.drain()?;
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

    /// Copies what is there and fits, up to a turn's worth.
    pub fn copy(&mut self, poll: &Poll) -> io::Result<()> {
        self.more = false;
        if self.gone {
            return Ok(());
        }
        let mut buffer = vec![0; CHUNK];
        for _ in 0..TURN {
            let read = self.file.read_at(&mut buffer, self.offset)?;
            if read == 0 {
                return Ok(());
            }
            match self.console.write(&buffer[..read]) {
                Ok(0) => {
                    self.blocked = poll.writable_once(&self.console, self.token)?;
                    return Ok(());
                }
                Ok(written) => self.offset += written as u64,
                // The reader is gone (`| head`): the job goes on, its log has it all.
                Err(_) => {
                    self.gone = true;
                    return Ok(());
                }
            }
        }
        self.more = true;
        Ok(())
    }

    /// Copies the rest once the rank has ended, waiting for the console as long as it takes
    /// something every `patience`.
    pub fn finish(&mut self, patience: Duration, give_up: &mut dyn FnMut() -> bool) -> io::Result<Shown> {
        let poll = Poll::new()?;
        loop {
            self.blocked = false;
            self.copy(&poll)?;
            if self.gone {
                return Ok(Shown::Abandoned);
            }
            let left = self.file.metadata()?.len().saturating_sub(self.offset);
            if left == 0 {
                return Ok(Shown::All);
            }
            if (self.blocked && poll.wait(Some(patience))?.is_empty()) || give_up() {
                return Ok(Shown::AllBut(left));
            }
        }
    }
}
