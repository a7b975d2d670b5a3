//! Where the output of a rank goes.

/// One of the two streams that a process writes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stream {
    /// Descriptor 1.
    Stdout,
    /// Descriptor 2.
    Stderr,
}

impl Stream {
    /// Both, in the order of their descriptors.
    pub const BOTH: [Stream; 2] = [Stream::Stdout, Stream::Stderr];

    /// Its place among both.
    pub fn index(self) -> usize {
        match self {
            Stream::Stdout => 0,
            Stream::Stderr => 1,
        }
    }

    /// Its descriptor's number.
    pub fn descriptor(self) -> i32 {
        match self {
            Stream::Stdout => 1,
            Stream::Stderr => 2,
        }
    }

    /// The name of its log file.
    pub fn log(self) -> &'static str {
        match self {
            Stream::Stdout => "stdout.log",
            Stream::Stderr => "stderr.log",
        }
    }
}

/// Text that has the number of the attempt in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PerAttempt {
    before: String,
    after: String,
}

impl PerAttempt {
    /// `before`, the number, `after`.
    pub fn new(before: impl Into<String>, after: impl Into<String>) -> Self {
        Self { before: before.into(), after: after.into() }
    }

    /// The text of this attempt.
    pub fn at(&self, attempt: u32) -> String {
        format!("{}{attempt}{}", self.before, self.after)
    }
}

/// Where one stream goes. Paths are within the log folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sink {
    /// Where the launcher's own goes.
    Inherited,
    /// Nowhere.
    Dropped,
    /// Into a file.
    File(PerAttempt),
    /// Into a file that is kept short, for the launcher to know what a rank died of.
    Captured(PerAttempt),
}

impl Sink {
    /// Its file in this attempt, if it has one.
    pub fn file(&self, attempt: u32) -> Option<String> {
        match self {
            Sink::Inherited | Sink::Dropped => None,
            Sink::File(path) | Sink::Captured(path) => Some(path.at(attempt)),
        }
    }
}

/// A file that gets, of all ranks' lines of a stream that are shown, those with one of these texts in them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Filter {
    /// Which stream.
    pub stream: Stream,
    /// The texts.
    pub texts: Vec<String>,
    /// The file, within the log folder.
    pub file: PerAttempt,
}

/// Where the output of a rank goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// Both streams go into this file of the log folder; those of earlier attempts are put aside.
    Together(String),
    /// Each goes its own way, by `Stream::index`, every attempt into files of its own.
    Apart([Sink; 2]),
}

impl Output {
    /// The file of the log folder in which a rank's last words of an attempt are, if they are in any.
    pub fn last_words(&self, attempt: u32) -> Option<String> {
        match self {
            Output::Together(log) => Some(log.clone()),
            Output::Apart([stdout, stderr]) => stderr.file(attempt).or_else(|| stdout.file(attempt)),
        }
    }
}
