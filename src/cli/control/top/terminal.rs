//! The terminal of `rlaunch top`: its mode, its alternate screen, and what brings both back.

use crate::sys::io::output_end::window_size;
use nix::errno::Errno;
use nix::sys::termios::{InputFlags, LocalFlags, SetArg, SpecialCharacterIndices, Termios, tcgetattr, tcsetattr};
use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::cursor::{Hide, Show};
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::{Clear, ClearType, EnterAlternateScreen, LeaveAlternateScreen};
use ratatui::layout::Rect;
use ratatui::{Frame, Terminal, TerminalOptions, Viewport};
use std::fs::File;
use std::io::{self, BufWriter};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Columns and rows where the terminal has no size.
const USUAL: (u16, u16) = (80, 24);

/// A terminal that can be drawn on. Dropping it restores the terminal.
pub(super) struct Screen {
    input: OwnedFd,
    output: File,
    /// The mode to restore, while this has another one.
    before: Option<Termios>,
    drawn: Terminal<CrosstermBackend<BufWriter<File>>>,
}

impl Screen {
    /// Takes the terminal with these ends.
    pub fn enter(input: OwnedFd, output: File) -> io::Result<Self> {
        let drawn = blank(&output, size(&output))?;
        let mut screen = Self { input, output, before: None, drawn };
        screen.enter_again()?;
        Ok(screen)
    }

    /// Takes the terminal after `leave`, or after something else has changed it.
    pub fn enter_again(&mut self) -> io::Result<()> {
        let mut mode = tcgetattr(&self.input)?;
        self.before.get_or_insert_with(|| mode.clone());
        // ISIG stays: Ctrl-C and Ctrl-Z reach all processes of the command, such as a `uv run` around it.
        mode.local_flags.remove(LocalFlags::ICANON | LocalFlags::ECHO | LocalFlags::ECHONL | LocalFlags::IEXTEN);
        mode.input_flags.remove(InputFlags::IXON | InputFlags::ICRNL);
        // A read never waits: Ctrl-C discards input that was announced before.
        mode.control_chars[SpecialCharacterIndices::VMIN as usize] = 0;
        mode.control_chars[SpecialCharacterIndices::VTIME as usize] = 0;
        tcsetattr(&self.input, SetArg::TCSANOW, &mode)?;
        self.redraw(true)
    }

    /// Gives the terminal back as it was.
    pub fn leave(&mut self) {
        if let Some(before) = self.before.take() {
            // Of a terminal that is gone nothing can be restored.
            let _ = execute!(self.drawn.backend_mut(), Show, LeaveAlternateScreen);
            let _ = tcsetattr(&self.input, SetArg::TCSANOW, &before);
        }
    }

    /// Draws all of it the next time, in the size that it has then.
    pub fn resize(&mut self) -> io::Result<()> {
        self.redraw(false)
    }

    fn redraw(&mut self, enters: bool) -> io::Result<()> {
        // A new one, because `Terminal::clear` asks the terminal where its cursor is and reads keys for the answer.
        self.drawn = blank(&self.output, size(&self.output))?;
        let backend = self.drawn.backend_mut();
        if enters {
            execute!(backend, EnterAlternateScreen)?;
        }
        execute!(backend, Hide, Clear(ClearType::All))
    }

    /// Columns and rows.
    pub fn size(&self) -> (u16, u16) {
        size(&self.output)
    }

    /// Writes what differs from the last frame.
    pub fn draw(&mut self, frame: impl FnOnce(&mut Frame<'_>)) -> io::Result<()> {
        self.drawn.draw(frame).map(|_| ())
    }

    /// What has been typed; `None`: the terminal is gone.
    pub fn read(&self) -> Option<Vec<u8>> {
        let mut bytes = vec![0; 256];
        match nix::unistd::read(&self.input, &mut bytes) {
            Ok(0) | Err(Errno::EINTR | Errno::EAGAIN) if tcgetattr(&self.input).is_ok() => Some(Vec::new()),
            Ok(0) | Err(_) => None,
            Ok(read) => Some(bytes[..read].to_vec()),
        }
    }
}

impl AsFd for Screen {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.input.as_fd()
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        self.leave();
    }
}

fn size(output: &File) -> (u16, u16) {
    match window_size(output) {
        Ok(size) if size.ws_col > 0 && size.ws_row > 0 => (size.ws_col, size.ws_row),
        _ => USUAL,
    }
}

/// A terminal on which nothing is drawn yet.
fn blank(output: &File, (columns, rows): (u16, u16)) -> io::Result<Terminal<CrosstermBackend<BufWriter<File>>>> {
    let backend = CrosstermBackend::new(BufWriter::new(output.try_clone()?));
    let viewport = Viewport::Fixed(Rect::new(0, 0, columns, rows));
    Terminal::with_options(backend, TerminalOptions { viewport })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)] // A test fails by panicking.
    use super::*;
    use std::io::Read;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    #[test]
    fn a_panic_restores_the_terminal() {
        let pty = nix::pty::openpty(None, None).unwrap();
        let before = tcgetattr(&pty.slave).unwrap();
        let (input, output) = (pty.slave.try_clone().unwrap(), File::from(pty.slave));
        let kept = output.try_clone().unwrap();
        let panics = AssertUnwindSafe(|| {
            let mut screen = Screen::enter(input, output).unwrap();
            assert_ne!(tcgetattr(&screen.input).unwrap(), before);
            assert_eq!(screen.size(), USUAL);
            screen.draw(|frame| frame.render_widget("drawn", frame.area())).unwrap();
            assert_eq!(screen.read(), Some(Vec::new()));
            panic!("as a test");
        });
        assert!(catch_unwind(panics).is_err());
        assert_eq!(tcgetattr(&kept).unwrap(), before);
        // The kernel may hand it out in parts. Once the other end is closed, the last read fails with EIO.
        drop(kept);
        let mut written = Vec::new();
        assert_eq!(File::from(pty.master).read_to_end(&mut written).unwrap_err().raw_os_error(), Some(libc::EIO));
        let written = String::from_utf8_lossy(&written).into_owned();
        assert!(written.contains("drawn"), "{written:?}");
        assert!(written.contains("\u{1b}[?25h\u{1b}[?1049l"), "{written:?}");
    }
}
