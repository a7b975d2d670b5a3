//! What the doors begin with: standard descriptors, signals, the environment; and what was asked for on stdout.

use super::exit_code;
use super::record::Record;
use super::refusal::{Refusal, usage};
use crate::plan::nested::{Outer, without_outer_exports};
use crate::run::SECRETS;
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

/// What a launcher that may run inside a rank goes by.
pub struct Own {
    /// The environment for its own ranks.
    pub base: Environment,
    /// What of it is text.
    pub vars: Vars,
    /// The launcher of that rank, if there is one, whose exports are left out of both.
    pub outer: Option<Outer>,
}

/// Tells what the user says from what is inherited from an outer launcher.
pub fn own(base: Environment, all: &Vars) -> Own {
    let (vars, outer) = without_outer_exports(all);
    let dropped = outer.as_ref().map_or(&[][..], |outer| &outer.dropped);
    let is_kept = |name: &OsString| !dropped.iter().any(|d| *name == **d) && !SECRETS.iter().any(|s| *name == **s);
    let base = base.into_iter().filter(|(name, _)| is_kept(name)).collect();
    Own { base, vars, outer }
}

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
