//! Command lines of `python -m rlaunch.run`: the program's own arguments are untouched, and the checks end.
#![no_main]

use libfuzzer_sys::fuzz_target;
use rlaunch::cli::torchrun::parse::{TorchrunArgs, parse};
use rlaunch::spec::options::EnvVars;
use rlaunch::spec::torchrun::launch;
use rlaunch::spec::torchrun::options::merge;
use rlaunch_fuzz::words;

fuzz_target!(|data: &[u8]| {
    let args = words(data);
    let Ok(TorchrunArgs::Job { flags, rest, .. }) = parse(&args) else { return };
    assert!(args.ends_with(&rest) || rest.iter().all(|word| args.contains(word)));
    let vars = EnvVars::default();
    if let Err(error) = launch::check(&merge(&flags, &vars, true), &vars, &rest) {
        assert!(error.to_string().len() <= 4096 + 8 * data.len());
    }
});
