//! Command lines of `python -m rlaunch`: options are from the table, the program's own arguments are untouched, and the checks end.
#![no_main]

use libfuzzer_sys::fuzz_target;
use rlaunch::cli::paddle::parse::{PaddleArgs, parse};
use rlaunch::spec::options::EnvVars;
use rlaunch::spec::paddle::launch;
use rlaunch::spec::paddle::options::{OPTIONS, merge};
use rlaunch_fuzz::words;

fuzz_target!(|data: &[u8]| {
    let args = words(data);
    let Ok(PaddleArgs::Job { flags, rest, .. }) = parse(&args) else { return };
    assert!(flags.keys().all(|name| OPTIONS.iter().any(|opt| opt.name == *name)));
    assert!(args.ends_with(&rest));
    let vars = EnvVars::default();
    if let Err(error) = launch::check(&merge(&flags, &vars), &vars, &rest) {
        assert!(error.to_string().len() <= 4096 + 8 * data.len());
    }
});
