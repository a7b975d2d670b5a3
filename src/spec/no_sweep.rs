//! `--no_sweep`: the names of processes that may outlive their rank and the job.

use crate::spec::error::{SpecError, shown};
use crate::spec::options::OptValues;
use std::collections::BTreeSet;

/// The variable of the option. In the environment of a process that a rank starts, `MARK` as its value spares that process.
pub const VARIABLE: &str = "RLAUNCH_NO_SWEEP";

/// The value that marks a process.
pub const MARK: &str = "1";

/// The kernel shortens names to this length (TASK_COMM_LEN, proc_pid_comm(5)).
const NAME_BYTES: usize = 15;

/// Reads and checks the option, such as `uploader,rsync`. The names are shortened as the kernel does it.
pub fn check(values: &OptValues, option: &str) -> Result<BTreeSet<String>, SpecError> {
    let Some(text) = values.given(option) else { return Ok(BTreeSet::new()) };
    // The launcher itself is such a process of another job.
    if text == MARK && values.on_command_line(option).is_none() {
        return Ok(BTreeSet::new());
    }
    let name = |name: &str| {
        let name = name.trim();
        if name.is_empty() {
            let hint = "give names of processes, separated by commas, such as uploader,rsync";
            return Err(values.error(option, "has an empty name", hint));
        }
        if name.contains(['/', '*', '?']) {
            let why = format!("'{}' is not the name of a process; paths and patterns are not supported", shown(name));
            return Err(values.error(option, &why, "give the name as /proc/PID/comm has it"));
        }
        let short = &name.as_bytes()[..name.len().min(NAME_BYTES)];
        // A letter that the kernel cuts is replaced here as it is where the process's name is read.
        Ok(String::from_utf8_lossy(short).into_owned())
    };
    text.split(',').map(name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::options::EnvVars;
    use crate::spec::paddle::options::merge;

    fn read(text: &str) -> Result<Vec<String>, String> {
        let flags = [("no_sweep", text.to_owned())].into();
        let names = check(&merge(&flags, &EnvVars::new()), "no_sweep");
        names.map(|names| names.into_iter().collect()).map_err(|error| error.to_string())
    }

    #[test]
    fn names_are_shortened_as_the_kernel_does_it() {
        assert_eq!(read("uploader, a-rather-long-name"), Ok(vec!["a-rather-long-n".into(), "uploader".into()]));
        assert_eq!(read("fourteen-bytesé"), Ok(vec!["fourteen-bytes\u{fffd}".into()]));
    }

    #[test]
    fn names_that_are_none_are_refused() {
        for text in ["", ",", "a,,b", "a, "] {
            assert!(read(text).unwrap_err().contains("has an empty name; give names"), "{text}");
        }
        for text in ["*", "up?", "/usr/bin/rsync"] {
            let error = read(text).unwrap_err();
            let why = format!("--no_sweep {text}: '{text}' is not the name of a process; paths and patterns are not");
            assert!(error.starts_with(&why), "{error}");
        }
    }

    #[test]
    fn a_launcher_that_is_marked_itself_spares_nothing() {
        let vars = |value: &str| merge(&[].into(), &EnvVars::from([(VARIABLE.into(), value.into())]));
        assert_eq!(check(&vars(MARK), "no_sweep").unwrap(), BTreeSet::new());
        assert_eq!(check(&vars("rsync"), "no_sweep").unwrap(), BTreeSet::from(["rsync".into()]));
    }
}
