//! The modes of the terminal (termios(3)): a rank that is killed while it has the terminal in raw mode leaves it so.

use nix::sys::signal::{SigSet, SigmaskHow, Signal};
use nix::sys::termios::{SetArg, Termios, tcgetattr, tcsetattr};
use nix::unistd::{getpgrp, tcgetpgrp};
use std::io::{IsTerminal, stdin, stdout};

/// The modes of stdin's terminal at one time.
#[derive(Debug)]
pub struct TerminalModes(Termios);

impl TerminalModes {
    /// The present ones; none if stdin is no terminal or another process uses it: in the background the modes are those of the
    /// shell's own line editor, and a reader of stdout (`| less`) changes them for itself.
    pub fn save() -> Option<Self> {
        (is_in_foreground() && stdout().is_terminal()).then(|| tcgetattr(stdin()).ok()).flatten().map(Self)
    }

    /// Sets the terminal to these modes, if it has others and this process is in its foreground.
    pub fn restore(&self) {
        if !is_in_foreground() || tcgetattr(stdin()).is_ok_and(|now| now == self.0) {
            return;
        }
        // The shell may take the foreground back meanwhile: then SIGTTOU would stop this process (tcsetattr(3)).
        let blocked = SigSet::from(Signal::SIGTTOU).thread_swap_mask(SigmaskHow::SIG_BLOCK);
        // The terminal may be gone.
        let _ = tcsetattr(stdin(), SetArg::TCSANOW, &self.0);
        if let Ok(before) = blocked {
            let _ = before.thread_set_mask();
        }
    }
}

fn is_in_foreground() -> bool {
    tcgetpgrp(stdin()) == Ok(getpgrp())
}
