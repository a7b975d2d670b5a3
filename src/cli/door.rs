//! What the doors begin with: standard descriptors, signals, the environment; and what was asked for on stdout.

use super::exit_code;
use super::record::Record;
use super::refusal::{Refusal, usage};
use crate::spec::options::{Opt, Vars};
use crate::sys::console;
use crate::sys::signals::{self, HELD_AT_START, Signals};
use std::ffi::OsString;
use std::io::Write;
use std::mem::ManuallyDrop;
use std::os::fd::RawFd;

/// Runs a launcher and returns its exit status. `record`: a descriptor for the end's record, or negative.
pub fn enter(record: RawFd, body: impl FnOnce(&mut Signals, &mut Record) -> Result<i32, Refusal>) -> i32 {
    console::fill_standard_descriptors();
    let mut record = Record::take(record);
    // Never given back: this process ends with the launcher, and a late Ctrl-C must not reach Python.
    let mut signals = match Signals::install() {
        Ok(signals) => ManuallyDrop::new(signals),
        Err(error) => {
            let text = format!("signal handlers cannot be installed: {error}");
            return Refusal(text, exit_code::INTERNAL).told(&mut record);
        }
    };
    if record.is_read() {
        signals::let_through(&HELD_AT_START);
    }
    match body(&mut signals, &mut record) {
        Ok(status) => status,
        Err(refusal) => refusal.told(&mut record),
    }
}

/// What was asked for, on stdout: its reader is waited for. `| head` may have gone already.
pub fn print(text: &str) {
    let mut out = std::io::stdout();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}

/// The environment as it is.
pub type Environment = Vec<(OsString, OsString)>;

/// The environment as it is, and what of it is text. The variables of these options have to be.
pub fn environment(options: &[Opt]) -> Result<(Environment, Vars), Refusal> {
    let base: Environment = std::env::vars_os().collect();
    let unreadable = |name: &str| base.iter().any(|(n, value)| *n == *name && value.to_str().is_none());
    if let Some(name) = options.iter().flat_map(|opt| opt.env).find(|name| unreadable(name)) {
        return Err(usage(format!("{name}: its value is not UTF-8; unset it, or set another")));
    }
    let text = |(name, value): &(OsString, OsString)| Some((name.to_str()?.to_owned(), value.to_str()?.to_owned()));
    let vars = base.iter().filter_map(text).collect();
    Ok((base, vars))
}
