//! `--forward_signals`: signals that the launcher forwards to the ranks instead of stopping the job.

use crate::model::exit::signal_number;
use crate::spec::error::{SpecError, shown};
use crate::spec::options::OptValues;
use std::collections::BTreeSet;

const HINT: &str = "give names of TERM, INT, HUP, QUIT, ALRM, VTALRM, PROF, URG, IO, XCPU, WINCH, PWR, STKFLT, USR1, USR2, \
                    separated by commas, or numbers from 34 to 64";

/// Reads and checks the option, such as `TERM,SIGURG,10`. Empty items are skipped.
pub fn check(values: &OptValues) -> Result<BTreeSet<i32>, SpecError> {
    let words = values.text("forward_signals").unwrap_or("").split(',').map(str::trim).filter(|word| !word.is_empty());
    words
        .map(|word| {
            let number = signal_number(word).ok_or("is not a signal");
            number.and_then(|number| why_not_forwardable(number).map_or(Ok(number), Err)).map_err(|why| {
                values.error("forward_signals", &format!("'{}' cannot be forwarded: it {why}", shown(word)), HINT)
            })
        })
        .collect()
}

/// Why the launcher cannot catch this signal, or must not forward it.
pub(crate) fn why_not_forwardable(signal: i32) -> Option<&'static str> {
    match signal {
        libc::SIGKILL | libc::SIGSTOP => Some("cannot be caught"),
        // A handler that returns from these repeats the fault for ever (signal(7)).
        libc::SIGILL | libc::SIGTRAP | libc::SIGBUS | libc::SIGFPE | libc::SIGSEGV | libc::SIGSYS | libc::SIGABRT => {
            Some("reports a fault of the program that receives it")
        }
        libc::SIGCHLD => Some("reports the exit of ranks to the launcher"),
        libc::SIGTSTP | libc::SIGTTIN | libc::SIGTTOU | libc::SIGCONT => Some("suspends and resumes jobs"),
        // Python ignores these, and the launcher inherits that.
        libc::SIGPIPE | libc::SIGXFSZ => Some("is ignored by Python"),
        // nptl(7): sigaction refuses them.
        32 | 33 => Some("belongs to the C library"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::options::EnvVars;
    use crate::spec::paddle::options::merge;

    fn read(text: &str) -> Result<BTreeSet<i32>, String> {
        let flags = [("forward_signals", text.to_owned())].into();
        check(&merge(&flags, &EnvVars::new())).map_err(|error| error.to_string())
    }

    #[test]
    fn accepts_the_signals_that_the_hint_names_and_no_others() {
        let names = HINT.trim_start_matches("give names of ").split(", ").take_while(|n| !n.contains(' '));
        let fit: BTreeSet<i32> = names.filter_map(signal_number).chain(34..=64).collect();
        assert_eq!(fit.len(), 15 + 31);
        for signal in 0..=65 {
            assert_eq!(read(&signal.to_string()).ok(), fit.contains(&signal).then(|| [signal].into()), "{signal}");
        }
    }

    #[test]
    fn accepts_any_spelling_and_names_the_refused_signal() {
        assert_eq!(read(" term,,SIGURG, 10"), Ok([libc::SIGTERM, libc::SIGURG, libc::SIGUSR1].into()));
        assert_eq!(read(""), Ok([].into()));
        let error = read("HUP,segv").unwrap_err();
        assert!(error.starts_with(
            "--forward_signals HUP,segv: 'segv' cannot be forwarded: it reports a fault of the program that receives it; \
             give names of TERM, INT, HUP, "
        ));
        assert!(read("NOPE").unwrap_err().contains("'NOPE' cannot be forwarded: it is not a signal; "));
    }
}
