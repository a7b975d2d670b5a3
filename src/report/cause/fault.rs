//! An error that a rank printed, and where it happened.

use std::fmt;

/// The kind of failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FaultKind {
    /// An uncaught Python exception.
    Exception,
    /// A connection of Python's multiprocessing broke: the process at its other end has died.
    LostHelper,
    /// The memory of a GPU was full.
    DeviceMemory,
    /// An assertion failed in code that ran on a GPU.
    DeviceAssert,
    /// The Python interpreter gave up (`Fatal Python error`).
    Interpreter,
    /// A Rust panic.
    Panic,
    /// The C library or an `assert` aborted.
    Abort,
    /// An uncaught C++ exception.
    Terminate,
    /// Paddle's own report of a fatal error.
    Paddle,
    /// A message of a shell or of a program about its command line.
    Message,
}

impl FaultKind {
    /// What a user should know beside the error itself.
    pub fn hint(self) -> Option<&'static str> {
        match self {
            Self::DeviceMemory => Some("the memory of the GPU was full"),
            Self::DeviceAssert => {
                Some("GPUs report late: only with CUDA_LAUNCH_BLOCKING=1 does the traceback show the line")
            }
            Self::LostHelper => Some("the process that it read from has died, such as a worker of a DataLoader"),
            Self::Exception
            | Self::Interpreter
            | Self::Panic
            | Self::Abort
            | Self::Terminate
            | Self::Paddle
            | Self::Message => None,
        }
    }
}

/// A line of a program.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct CodeLocation {
    /// As the traceback names it.
    pub file: String,
    /// From 1 on.
    pub line: u32,
    /// `None` if the traceback has none.
    pub function: Option<String>,
}

impl fmt::Display for CodeLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.file, self.line)?;
        match &self.function {
            Some(function) => write!(f, " in {function}"),
            None => Ok(()),
        }
    }
}

/// One error.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct RankFault {
    /// Its type, such as `ValueError`; may be empty.
    pub what: String,
    /// Its message; lines are separated by `\n`; may be empty.
    pub text: String,
    /// The innermost line of the user's own code.
    pub place: Option<CodeLocation>,
}

impl RankFault {
    /// Its type and the first line of its message; at most 300 characters.
    pub fn in_a_line(&self) -> String {
        let text = self.text.lines().next().unwrap_or_default();
        let line = if text.is_empty() { self.what.clone() } else { format!("{}: {text}", self.what) };
        line.chars().take(300).collect()
    }

    /// The variable of torch that the rank lacked, as `os.environ` and `init_process_group` name it.
    pub fn missing_torch_variable(&self) -> Option<&str> {
        let of_environ = || self.text.strip_prefix('\'')?.strip_suffix('\'').filter(|_| self.what == "KeyError");
        let of_torch =
            || Some(self.text.strip_suffix(" expected, but not set")?.rsplit_once("environment variable ")?.1);
        let is_torch = |name: &&str| ["RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"].contains(name);
        of_environ().or_else(of_torch).filter(is_torch)
    }
}

impl fmt::Display for RankFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.what.as_str(), self.text.as_str()) {
            (what, "") => f.write_str(what),
            ("", text) => f.write_str(text),
            (what, text) => write!(f, "{what}: {text}"),
        }
    }
}

/// `file.rs:12:5` or `file.cu:12`.
pub(crate) fn place(text: &str) -> Option<CodeLocation> {
    let mut parts = text.rsplitn(3, ':');
    let (last, middle, first) = (parts.next()?, parts.next()?, parts.next());
    let (file, line) = match (first, middle.parse(), last.parse()) {
        (Some(first), Ok(line), Ok::<u32, _>(_)) => (first.to_owned(), line),
        (Some(first), _, Ok(line)) => (format!("{first}:{middle}"), line),
        (None, _, Ok(line)) => (middle.to_owned(), line),
        _ => return None,
    };
    (!file.is_empty()).then_some(CodeLocation { file, line, function: None })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_of_torch_are_known() {
        let of = |what: &str, text: &str| {
            let fault = RankFault { what: what.into(), text: text.into(), place: None };
            fault.missing_torch_variable().map(str::to_owned)
        };
        let torch = "Error initializing torch.distributed using env:// rendezvous: environment variable RANK expected, but not set";
        assert_eq!(of("KeyError", "'WORLD_SIZE'").as_deref(), Some("WORLD_SIZE"));
        assert_eq!(of("ValueError", torch).as_deref(), Some("RANK"));
        assert_eq!(of("KeyError", "'loss'"), None);
        assert_eq!(of("KeyError", "RANK"), None);
        assert_eq!(of("ValueError", "'RANK'"), None);
    }
}
