//! Exit status of a process, and the names of signals.

use serde::ser::SerializeStructVariant;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;

/// The launcher's exit status when a rank could not be started.
pub const START_FAILED: i32 = 71;

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Exit {
    /// It called `exit` with this code, 0 to 255.
    Code(i32),
    /// This signal ended it.
    Signal(i32),
    /// It has ended, but other code in this process collected its status, and the kernel is too old (before Linux
    /// 6.15) to report it again; or a debugger that traces it withholds the status. Never a success.
    Lost,
}

impl Exit {
    /// Whether the exit code is 0.
    pub fn is_success(self) -> bool {
        self == Exit::Code(0)
    }

    /// The exit status that a shell shows: the code, or 128 + the signal; 255 when lost.
    pub fn shell_status(self) -> i32 {
        match self {
            Exit::Code(code) => code,
            Exit::Signal(signal) => 128 + signal,
            Exit::Lost => 255,
        }
    }

    /// The value of Python's `Process.exitcode`: the code, or minus the signal; 255 when lost.
    pub fn returncode(self) -> i32 {
        match self {
            Exit::Signal(signal) => -signal,
            other => other.shell_status(),
        }
    }

    /// Decodes a `wait(2)` status word.
    pub fn from_wait_status(status: i32) -> Exit {
        let signal = status & 0x7f;
        if signal == 0 { Exit::Code((status >> 8) & 0xff) } else { Exit::Signal(signal) }
    }
}

impl fmt::Display for Exit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Exit::Code(code) => write!(f, "exit code {code}"),
            Exit::Signal(signal) => write!(f, "signal {}", signal_label(*signal)),
            Exit::Lost => {
                write!(f, "an unknown exit status (another process or other code collected it)")
            }
        }
    }
}

impl Serialize for Exit {
    /// `{"code": 1}`, `{"signal": {"number": 9, "name": "SIGKILL"}}` or `"unknown"`.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match *self {
            Exit::Code(code) => serializer.serialize_newtype_variant("Exit", 0, "code", &code),
            Exit::Signal(number) => {
                let mut signal = serializer.serialize_struct_variant("Exit", 1, "signal", 2)?;
                signal.serialize_field("number", &number)?;
                signal.serialize_field("name", &signal_name(number))?;
                signal.end()
            }
            Exit::Lost => serializer.serialize_unit_variant("Exit", 2, "unknown"),
        }
    }
}

impl<'de> Deserialize<'de> for Exit {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(rename_all = "snake_case")]
        enum Serialized {
            Code(i32),
            Signal { number: i32 },
            Unknown,
        }
        Ok(match Serialized::deserialize(deserializer)? {
            Serialized::Code(code) => Exit::Code(code),
            Serialized::Signal { number } => Exit::Signal(number),
            Serialized::Unknown => Exit::Lost,
        })
    }
}

/// `SIGTERM` for 15; `None` for a number without a name (most real-time signals).
pub fn signal_name(signal: i32) -> Option<&'static str> {
    match signal {
        34 => return Some("SIGRTMIN"),
        64 => return Some("SIGRTMAX"),
        _ => {}
    }
    nix::sys::signal::Signal::try_from(signal).ok().map(|s| s.as_str())
}

/// The name of a signal, or its number as text if it has none.
pub fn signal_label(signal: i32) -> String {
    signal_name(signal).map_or_else(|| signal.to_string(), str::to_owned)
}

/// The number of `SIGUSR1`, `usr1` or `10`; `None` if it is no signal.
pub fn signal_number(text: &str) -> Option<i32> {
    if let Ok(number) = text.parse::<i32>() {
        return (1..=64).contains(&number).then_some(number);
    }
    let upper = text.to_ascii_uppercase();
    let name = if upper.starts_with("SIG") { upper } else { format!("SIG{upper}") };
    name.parse::<nix::sys::signal::Signal>().ok().map(|s| s as i32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_and_signal_has_its_status() {
        for code in 0..=255 {
            let exit = Exit::from_wait_status(code << 8);
            assert_eq!((exit, exit.shell_status(), exit.returncode()), (Exit::Code(code), code, code));
        }
        for signal in 1..=64 {
            // 0x80 is the core-dump flag; it changes nothing.
            for status in [signal, signal | 0x80] {
                let exit = Exit::from_wait_status(status);
                assert_eq!((exit, exit.shell_status()), (Exit::Signal(signal), 128 + signal));
                assert_eq!(exit.returncode(), -signal);
            }
        }
    }

    #[test]
    fn a_serialized_exit_is_the_same_again() {
        for exit in [Exit::Code(7), Exit::Signal(9), Exit::Signal(37), Exit::Lost] {
            let text = serde_json::to_string(&exit).unwrap_or_default();
            assert_eq!(serde_json::from_str(&text).ok(), Some(exit), "{text}");
        }
    }

    #[test]
    fn a_signal_without_a_name_is_a_number() {
        assert_eq!(Exit::Signal(37).to_string(), "signal 37");
        assert_eq!(Exit::Signal(9).to_string(), "signal SIGKILL");
        assert_eq!(signal_number("usr1"), Some(10));
        assert_eq!(signal_number("64"), Some(64));
        assert_eq!((signal_number("0"), signal_number("nope")), (None, None));
    }
}
