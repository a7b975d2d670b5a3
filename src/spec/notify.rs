//! `--notify_signals`: which signals a launcher can pass on instead of acting on them.

use super::options::Values;
use super::{SpecError, shown};
use crate::model::exit::signal_number;
use std::collections::BTreeSet;

const HINT: &str = "give names of TERM, INT, HUP, QUIT, ALRM, VTALRM, PROF, URG, IO, XCPU, WINCH, PWR, STKFLT, USR1, USR2, \
                    joined by commas, or numbers from 34 to 64";

/// Reads and checks it: `TERM,SIGURG,10`. An empty place is as good as none.
pub fn check(values: &Values) -> Result<BTreeSet<i32>, SpecError> {
    let words = values.text("notify_signals").unwrap_or("").split(',').map(str::trim).filter(|word| !word.is_empty());
    words
        .map(|word| {
            let number = signal_number(word).ok_or("is no signal");
            number.and_then(|number| unfit(number).map_or(Ok(number), Err)).map_err(|why| {
                values.error("notify_signals", &format!("'{}' cannot be passed on: it {why}", shown(word)), HINT)
            })
        })
        .collect()
}

/// Why a launcher cannot take this signal, or would take it wrongly.
pub(super) fn unfit(signal: i32) -> Option<&'static str> {
    match signal {
        libc::SIGKILL | libc::SIGSTOP => Some("can be caught by no program"),
        // A handler that returns from these comes back to the same fault, for ever (signal(7)).
        libc::SIGILL | libc::SIGTRAP | libc::SIGBUS | libc::SIGFPE | libc::SIGSEGV | libc::SIGSYS | libc::SIGABRT => {
            Some("means a fault of the program that gets it")
        }
        libc::SIGCHLD => Some("tells the launcher of ranks that have ended"),
        libc::SIGTSTP | libc::SIGTTIN | libc::SIGTTOU | libc::SIGCONT => Some("suspends and resumes jobs"),
        // Python sets these to be ignored, and what is ignored stays so in the launcher.
        libc::SIGPIPE | libc::SIGXFSZ => Some("is ignored by Python"),
        // nptl(7): sigaction refuses them.
        32 | 33 => Some("belongs to the C library"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::options::{Vars, merge};
    use super::*;

    fn read(text: &str) -> Result<BTreeSet<i32>, String> {
        let flags = [("notify_signals", text.to_owned())].into();
        check(&merge(&flags, &Vars::new())).map_err(|error| error.to_string())
    }

    #[test]
    fn what_the_hint_names_is_taken_and_nothing_else() {
        let names = HINT.trim_start_matches("give names of ").split(", ").take_while(|n| !n.contains(' '));
        let fit: BTreeSet<i32> = names.filter_map(signal_number).chain(34..=64).collect();
        assert_eq!(fit.len(), 15 + 31);
        for signal in 0..=65 {
            assert_eq!(read(&signal.to_string()).ok(), fit.contains(&signal).then(|| [signal].into()), "{signal}");
        }
    }

    #[test]
    fn names_come_in_any_form_and_what_is_refused_is_named() {
        assert_eq!(read(" term,,SIGURG, 10"), Ok([libc::SIGTERM, libc::SIGURG, libc::SIGUSR1].into()));
        assert_eq!(read(""), Ok([].into()));
        let error = read("HUP,segv").unwrap_err();
        assert!(error.starts_with(
            "--notify_signals HUP,segv: 'segv' cannot be passed on: it means a fault of the program that gets it; \
             give names of TERM, INT, HUP, "
        ));
        assert!(read("NOPE").unwrap_err().contains("'NOPE' cannot be passed on: it is no signal; "));
    }
}
