//! The folder of one run's logs, as torchrun lays it out: `LOG_DIR/RUN_ID_XXXXXXXX/`, or the same in a folder of its own
//! among the system's temporary files.

use super::logs::plain;
use crate::spec::SpecError;
use crate::spec::torchrun::LogDir;
use nix::unistd::{AccessFlags, access};
use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

/// Where a run's logs go.
#[derive(Debug)]
pub struct RunFolder {
    /// The folder.
    pub run: PathBuf,
    /// What goes with a run that ends well: it, and what was made around it alone.
    pub disposable: Option<PathBuf>,
}

/// Where those of this run go. Nothing is made yet.
pub fn of(log_dir: &LogDir, run_id: &str) -> Result<RunFolder, SpecError> {
    if run_id.is_empty() || run_id.contains(['/', '\0']) || run_id.len() > 200 {
        let hint = "use up to 200 letters, digits, '-' and '_'";
        return Err(SpecError::new("--rdzv-id", run_id, "cannot be part of a folder's name", hint));
    }
    let name = format!("{run_id}_{}", random());
    let absolute = |path: PathBuf| {
        std::path::absolute(&path)
            .map_err(|e| SpecError::new("--log-dir", path.display().to_string(), e.to_string(), "name a folder"))
    };
    match log_dir {
        LogDir::At(path) => {
            let path = absolute(path.into())?;
            if path.exists() && !path.is_dir() {
                let why = format!("NotADirectoryError: log_dir: {} is a file", path.display());
                return Err(SpecError::new("--log-dir", path.display().to_string(), why, "name a folder"));
            }
            Ok(RunFolder { run: path.join(name), disposable: None })
        }
        LogDir::Temporary => {
            let own = absolute(temporary_files().join(format!("torchelastic_{}", random())))?;
            Ok(RunFolder { run: own.join(name), disposable: Some(own) })
        }
        LogDir::Nowhere => {
            let own = absolute(temporary_files().join(format!("rlaunch_{}", random())))?;
            Ok(RunFolder { run: own.clone(), disposable: Some(own) })
        }
    }
}

/// The folder for temporary files as Python's `tempfile` finds it: TMPDIR may name one that another machine has.
fn temporary_files() -> PathBuf {
    let named = ["TMPDIR", "TEMP", "TMP"].into_iter().filter_map(std::env::var_os).filter(|path| !path.is_empty());
    let usual = ["/tmp", "/var/tmp", "/usr/tmp", "."].map(PathBuf::from);
    let may_be_used =
        |folder: &PathBuf| folder.is_dir() && access(folder, AccessFlags::W_OK | AccessFlags::X_OK).is_ok();
    named.map(PathBuf::from).chain(usual).find(may_be_used).unwrap_or_else(std::env::temp_dir)
}

/// Eight characters of those that Python's `tempfile` uses.
fn random() -> String {
    const OF: &[u8] = b"abcdefghijklmnopqrstuvwxyz0123456789_";
    (0..8).map(|_| char::from(OF[fastrand::usize(..OF.len())])).collect()
}

impl RunFolder {
    /// It as text.
    pub fn text(&self) -> Result<String, SpecError> {
        let text = self.run.to_str().map(str::to_owned);
        let refuse =
            || SpecError::new("--log-dir", self.run.to_string_lossy(), "is not UTF-8", "choose another folder");
        text.ok_or_else(refuse)
    }

    /// Makes it, for this user alone, and what leads to it.
    pub fn make(&self) -> Result<(), SpecError> {
        let parent = self.run.parent().unwrap_or(Path::new("/"));
        let made = || -> io::Result<()> {
            DirBuilder::new().recursive(true).mode(0o700).create(parent)?;
            DirBuilder::new().mode(0o700).create(&self.run)
        };
        made().map_err(|error| {
            let why = format!("cannot be made: {}", plain(&error));
            let field = if self.disposable.is_some() { "TMPDIR" } else { "--log-dir" };
            SpecError::new(field, self.run.display().to_string(), why, "name a folder that you may write to")
        })
    }
}
