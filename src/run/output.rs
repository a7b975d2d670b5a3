//! Opening what a rank writes to.

use super::logs;
use crate::plan::{Output, RankPlan, Sink, Stream};
use std::fs::{DirBuilder, File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A file that a rank writes to in its present attempt.
#[derive(Debug)]
pub struct Written {
    /// Which of its streams; the first of both where they share the file.
    pub stream: Stream,
    /// The file.
    pub path: PathBuf,
    /// Where in it this attempt's output starts.
    pub start: u64,
    /// Whether it may be kept short.
    pub rotates: bool,
}

/// What a rank is to have as its standard output and error.
#[derive(Debug)]
pub struct Opened {
    ends: [Option<Arc<File>>; 2],
    /// The files among them.
    pub written: Vec<Written>,
}

impl Opened {
    /// The descriptors; `None`: the launcher's own.
    pub fn descriptors(&self) -> [Option<RawFd>; 2] {
        [0, 1].map(|index| self.ends[index].as_ref().map(|file| file.as_raw_fd()))
    }
}

/// Opens it. The error names the file. `overwrite`: what an earlier job has left in it goes.
pub fn open(log_dir: &Path, rank: &RankPlan, attempt: u32, overwrite: bool) -> Result<Opened, (PathBuf, io::Error)> {
    match &rank.output {
        Output::Together(log) => {
            let path = log_dir.join(log);
            let file = Arc::new(logs::open(&path, overwrite).map_err(|error| (path.clone(), error))?);
            let start = file.metadata().map_or(0, |m| m.len());
            let written = vec![Written { stream: Stream::Stdout, path, start, rotates: true }];
            Ok(Opened { ends: [Some(file.clone()), Some(file)], written })
        }
        Output::Apart(sinks) => {
            if let Some(error_file) = rank.elastic.as_ref().and_then(|elastic| elastic.error_file.as_ref()) {
                make_folder_of(Path::new(&error_file.at(attempt)))?;
            }
            let mut opened = Opened { ends: [None, None], written: Vec::new() };
            for stream in Stream::BOTH {
                let sink = &sinks[stream.index()];
                let file = match (sink, sink.file(attempt)) {
                    (Sink::Inherited, _) => continue,
                    (_, None) => {
                        OpenOptions::new().write(true).open("/dev/null").map_err(|e| ("/dev/null".into(), e))?
                    }
                    (_, Some(name)) => {
                        let path = log_dir.join(name);
                        make_folder_of(&path)?;
                        let file = logs::open(&path, true).map_err(|error| (path.clone(), error))?;
                        let rotates = matches!(sink, Sink::Captured(_));
                        opened.written.push(Written { stream, path, start: 0, rotates });
                        file
                    }
                };
                opened.ends[stream.index()] = Some(Arc::new(file));
            }
            Ok(opened)
        }
    }
}

fn make_folder_of(file: &Path) -> Result<(), (PathBuf, io::Error)> {
    let folder = file.parent().unwrap_or(file);
    DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(|error| (folder.to_owned(), error))
}
