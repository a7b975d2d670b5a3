//! Opens the files behind a rank's stdout and stderr, by the rank's `OutputPlan`. The plan names them (`workerlog.N`, from
//! `Role::log_prefix`); `log_files.rs` opens them.

use crate::plan::{OutputPlan, RankPlan, Stream, StreamSink};
use crate::run::output::log_copier::{CopiedLog, RankOutput};
use crate::run::output::log_files;
use crate::run::output::rotated_log::{RotatedLog, reserve};
use crate::sys::io::console::Console;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use thiserror::Error;

/// A file that a rank writes to in one attempt.
#[derive(Debug)]
pub struct OpenStream {
    /// Which of its streams; stdout where both share the file.
    pub stream: Stream,
    /// Its path.
    pub path: PathBuf,
    /// Offset at which the output of this attempt starts.
    pub start: u64,
    /// Whether log rotation applies.
    pub rotates: bool,
    /// Its rotation.
    pub rotated: Option<Arc<RotatedLog>>,
    /// Whether the user has asked for no log.
    pub is_captured: bool,
    /// Whether the rank writes to a terminal, from which its output is copied to the file.
    pub at_terminal: bool,
}

impl OpenStream {
    /// A new file.
    pub fn new(stream: Stream, path: PathBuf) -> Self {
        Self { stream, path, start: 0, rotates: false, rotated: None, is_captured: false, at_terminal: false }
    }
}

/// The stdout and stderr of a rank.
#[derive(Debug)]
pub struct RankStreams {
    ends: [Option<Arc<File>>; 2],
    /// Those that are log files.
    pub written: Vec<OpenStream>,
    /// Why a stream that should be captured is inherited instead: there is no room for it.
    pub not_captured: Option<StreamError>,
}

impl RankStreams {
    /// The descriptors; `None`: inherited from the launcher.
    pub fn descriptors(&self) -> [Option<BorrowedFd<'_>>; 2] {
        [0, 1].map(|index| self.ends[index].as_ref().map(|file| file.as_fd()))
    }

    /// Gives the rank a pipe instead of a file, or a terminal like `console`. Without pseudo-terminals (a full or missing /dev/pts)
    /// or threads it keeps the file.
    pub fn copy_to_log(&mut self, stream: Stream, console: Option<Arc<Console>>) -> Option<RankOutput> {
        let written = self.written.iter_mut().find(|written| written.stream == stream)?;
        let file = self.ends[stream.index()].clone()?;
        let (path, rotated) = (written.path.clone(), written.rotated.clone().filter(|log| log.is_captured()));
        let is_terminal = console.is_some();
        let (output, end) = RankOutput::open(CopiedLog { file: file.clone(), path, rotated, console }).ok()?;
        written.at_terminal = is_terminal;
        let end = Arc::new(end);
        for other in self.ends.iter_mut().flatten().filter(|other| Arc::ptr_eq(other, &file)) {
            *other = end.clone();
        }
        Some(output)
    }
}

/// A file or folder that cannot be opened.
#[derive(Debug, Error)]
#[error("{}: {}", .path.display(), log_files::plain(.source))]
pub struct StreamError {
    /// Its path.
    pub path: PathBuf,
    /// The error of the system.
    pub source: io::Error,
}

/// Opens the streams of a rank. `overwrite`: empties the log of an earlier job.
pub fn open(log_dir: &Path, rank: &RankPlan, attempt: u32, overwrite: bool) -> Result<RankStreams, StreamError> {
    match &rank.output {
        OutputPlan::Combined(log) => {
            let path = log_dir.join(log);
            let opened = match log_files::open(&path, overwrite) {
                // The folder was removed while the job ran.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    create_parent(&path)?;
                    log_files::open(&path, overwrite)
                }
                opened => opened,
            };
            let file = Arc::new(opened.map_err(|source| StreamError { path: path.clone(), source })?);
            let start = file.metadata().map_or(0, |m| m.len());
            let written = vec![OpenStream { start, rotates: true, ..OpenStream::new(Stream::Stdout, path) }];
            Ok(RankStreams { ends: [Some(file.clone()), Some(file)], written, not_captured: None })
        }
        OutputPlan::Separate(sinks) => {
            if let Some(error_file) = rank.per_attempt.as_ref().and_then(|elastic| elastic.error_file.as_ref()) {
                create_parent(Path::new(&error_file.at(attempt)))?;
            }
            let mut opened = RankStreams { ends: [None, None], written: Vec::new(), not_captured: None };
            for stream in Stream::BOTH {
                let sink = &sinks[stream.index()];
                // Both streams go to one file, so that they stay in the order in which they were written.
                if stream == Stream::Stderr && matches!(sink, StreamSink::Captured(_)) && *sink == sinks[0] {
                    opened.ends[1] = opened.ends[0].clone();
                    continue;
                }
                let file = match (sink, sink.file(attempt)) {
                    (StreamSink::Inherited, _) => continue,
                    (_, None) => OpenOptions::new()
                        .write(true)
                        .open("/dev/null")
                        .map_err(|source| StreamError { path: "/dev/null".into(), source })?,
                    (_, Some(name)) => {
                        let path = log_dir.join(name);
                        let rotates = matches!(sink, StreamSink::Captured(_));
                        let file = match open_new(&path, rotates) {
                            // The user has asked for no log.
                            Err(error) if rotates && has_no_room(&error.source) => {
                                opened.not_captured = Some(error);
                                continue;
                            }
                            file => file?,
                        };
                        opened.written.push(OpenStream {
                            rotates,
                            is_captured: rotates,
                            ..OpenStream::new(stream, path)
                        });
                        file
                    }
                };
                opened.ends[stream.index()] = Some(Arc::new(file));
            }
            Ok(opened)
        }
    }
}

/// Creates a log and its folder, or empties it. `is_captured`: it has to get a part of the disk in advance.
fn open_new(path: &Path, is_captured: bool) -> Result<File, StreamError> {
    create_parent(path)?;
    let reserved = |file: File| if is_captured { reserve(&file, 0).map(|()| file) } else { Ok(file) };
    log_files::open(path, true).and_then(reserved).map_err(|source| StreamError { path: path.to_owned(), source })
}

fn has_no_room(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge)
}

fn create_parent(file: &Path) -> Result<(), StreamError> {
    let folder = file.parent().unwrap_or(file);
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(folder)
        .map_err(|source| StreamError { path: folder.to_owned(), source })
}
