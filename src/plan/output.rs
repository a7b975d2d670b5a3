//! Output routing of a rank: log files, filters and streams.

/// Standard output stream of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stream {
    /// Descriptor 1.
    Stdout,
    /// Descriptor 2.
    Stderr,
}

impl Stream {
    /// Both streams, in the order of their descriptors.
    pub const BOTH: [Stream; 2] = [Stream::Stdout, Stream::Stderr];

    /// Its index in `BOTH`.
    pub fn index(self) -> usize {
        match self {
            Stream::Stdout => 0,
            Stream::Stderr => 1,
        }
    }

    /// Its file descriptor.
    pub fn descriptor(self) -> i32 {
        match self {
            Stream::Stdout => 1,
            Stream::Stderr => 2,
        }
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Stream::Stdout => "stdout",
            Stream::Stderr => "stderr",
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

/// Text that contains the number of the attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttemptText {
    before: String,
    after: String,
}

impl AttemptText {
    /// The text before and after the number.
    pub fn new(before: impl Into<String>, after: impl Into<String>) -> Self {
        Self { before: before.into(), after: after.into() }
    }

    /// The text of this attempt.
    pub fn at(&self, attempt: u32) -> String {
        format!("{}{attempt}{}", self.before, self.after)
    }
}

/// Destination of one stream. Paths are relative to the log directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StreamSink {
    /// The same stream of the launcher.
    Inherited,
    /// Discarded.
    Dropped,
    /// A file.
    File(AttemptText),
    /// A file of limited size, from which the launcher reads the error of a failed rank.
    Captured(AttemptText),
}

impl StreamSink {
    /// The file of this attempt, if there is one.
    pub fn file(&self, attempt: u32) -> Option<String> {
        match self {
            StreamSink::Inherited | StreamSink::Dropped => None,
            StreamSink::File(path) | StreamSink::Captured(path) => Some(path.at(attempt)),
        }
    }
}

/// How the console shows a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShownStream {
    /// The prefix of each line; `None`: copied byte for byte.
    pub prefix: Option<String>,
    /// Whether the rank gets a terminal, if the console is one. Then the stream is copied byte for byte.
    pub pty: bool,
}

/// Filter file: it receives the shown lines of a stream, of all ranks, that contain one of these texts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LineFilter {
    /// The stream.
    pub stream: Stream,
    /// The texts.
    pub texts: Vec<String>,
    /// The file, relative to the log directory.
    pub file: AttemptText,
}

/// Which output of a rank the launcher can see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SeenOutput {
    /// Both streams.
    All,
    /// This stream; the other one is inherited or discarded.
    Only(Stream),
    /// No stream.
    None,
}

/// Destination of the output of a rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OutputPlan {
    /// Both streams go to this file in the log directory. Files of earlier attempts are renamed.
    Combined(String),
    /// One destination a stream, by `Stream::index`; the same file twice: both streams share it. Each attempt has files of its own.
    Separate([StreamSink; 2]),
}

impl OutputPlan {
    /// All its log files in an attempt, relative to the log directory.
    pub fn logs(&self, attempt: u32) -> Vec<String> {
        match self {
            OutputPlan::Combined(log) => vec![log.clone()],
            OutputPlan::Separate(sinks) => {
                let mut logs: Vec<String> = sinks.iter().filter_map(|sink| sink.file(attempt)).collect();
                logs.dedup();
                logs
            }
        }
    }

    /// Which of its output the launcher can see: both streams, one of them, or none.
    pub fn seen(&self) -> SeenOutput {
        match self {
            OutputPlan::Combined(_) => SeenOutput::All,
            OutputPlan::Separate([stdout, stderr]) => match (stdout.file(0).is_some(), stderr.file(0).is_some()) {
                (true, true) => SeenOutput::All,
                (true, false) => SeenOutput::Only(Stream::Stdout),
                (false, true) => SeenOutput::Only(Stream::Stderr),
                (false, false) => SeenOutput::None,
            },
        }
    }

    /// The log file, relative to the log directory, with the last lines of an attempt.
    pub fn last_log(&self, attempt: u32) -> Option<String> {
        match self {
            OutputPlan::Combined(log) => Some(log.clone()),
            OutputPlan::Separate([stdout, stderr]) => stderr.file(attempt).or_else(|| stdout.file(attempt)),
        }
    }
}
