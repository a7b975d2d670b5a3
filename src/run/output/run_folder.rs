//! The log folder of one run in torchrun's layout: `LOG_DIR/RUN_ID_XXXXXXXX/`, or the same below the system's folder for
//! temporary files.

use crate::run::output::log_files::plain;
use crate::spec::SpecError;
use crate::spec::torchrun::LogDir;
use crate::sys::random;
use nix::unistd::{AccessFlags, access};
use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

/// The log folder of one run.
#[derive(Debug)]
pub struct RunFolder {
    /// Its path.
    pub run: PathBuf,
    /// The folder that is removed after a run that exited successfully, if any.
    pub removed_on_success: Option<PathBuf>,
}

/// Chooses the folder of this run. Creates nothing.
pub fn choose(log_dir: &LogDir, run_id: &str) -> Result<RunFolder, SpecError> {
    if run_id.is_empty() || run_id.contains(['/', '\0']) || run_id.len() > 200 {
        let hint = "use up to 200 letters, digits, '-' and '_'";
        return Err(SpecError::new("--rdzv-id", run_id, "cannot be part of a folder's name", hint));
    }
    let name = format!("{run_id}_{}", random());
    let absolute = |path: PathBuf| absolute("--log-dir", &path);
    match log_dir {
        LogDir::At(path) => {
            let path = absolute(path.into())?;
            if path.exists() && !path.is_dir() {
                let why = format!("NotADirectoryError: log_dir: {} is a file", path.display());
                return Err(SpecError::new("--log-dir", path.display().to_string(), why, "name a folder"));
            }
            Ok(RunFolder { run: path.join(name), removed_on_success: None })
        }
        LogDir::Temporary => {
            let own = absolute(temp_dir().join(format!("torchelastic_{}", random())))?;
            Ok(RunFolder { run: own.join(name), removed_on_success: Some(own) })
        }
        LogDir::Nowhere => {
            let own = absolute(temp_dir().join(format!("rlaunch_{}", random())))?;
            Ok(RunFolder { run: own.clone(), removed_on_success: Some(own) })
        }
    }
}

/// The absolute path of the folder that an option names.
pub fn absolute(option: &str, path: &Path) -> Result<PathBuf, SpecError> {
    std::path::absolute(path).map_err(|error| {
        let shown = path.display().to_string();
        // getcwd(2).
        if error.kind() == std::io::ErrorKind::NotFound {
            let why = "is relative to the current folder, which has been deleted";
            return SpecError::new(option, shown, why, "cd to a folder that exists, or name an absolute one");
        }
        SpecError::new(option, shown, error.to_string(), "name a folder")
    })
}

/// The folder for temporary files as Python's `tempfile` finds it: TMPDIR may name a folder of another machine.
fn temp_dir() -> PathBuf {
    let named = ["TMPDIR", "TEMP", "TMP"].into_iter().filter_map(std::env::var_os).filter(|path| !path.is_empty());
    let usual = ["/tmp", "/var/tmp", "/usr/tmp", "."].map(PathBuf::from);
    let may_be_used =
        |folder: &PathBuf| folder.is_dir() && access(folder, AccessFlags::W_OK | AccessFlags::X_OK).is_ok();
    named.map(PathBuf::from).chain(usual).find(may_be_used).unwrap_or_else(std::env::temp_dir)
}

/// Eight of the characters that Python's `tempfile` uses.
fn random() -> String {
    const CHARACTERS: &[u8] = b"abcdefghijklmnopqrstuvwxyz0123456789_";
    let mut rng = random::rng();
    (0..8).map(|_| char::from(CHARACTERS[rng.usize(..CHARACTERS.len())])).collect()
}

impl RunFolder {
    /// Its path as text.
    pub fn text(&self) -> Result<String, SpecError> {
        let text = self.run.to_str().map(str::to_owned);
        let refuse =
            || SpecError::new("--log-dir", self.run.to_string_lossy(), "is not UTF-8", "choose another folder");
        text.ok_or_else(refuse)
    }

    /// Creates it and its parents with mode 0700.
    pub fn create(&self) -> Result<(), SpecError> {
        let parent = self.run.parent().unwrap_or(Path::new("/"));
        let create = || -> io::Result<()> {
            DirBuilder::new().recursive(true).mode(0o700).create(parent)?;
            DirBuilder::new().mode(0o700).create(&self.run)
        };
        create().map_err(|error| {
            let why = format!("cannot be created: {}", plain(&error));
            let field = if self.removed_on_success.is_some() { "TMPDIR" } else { "--log-dir" };
            SpecError::new(field, self.run.display().to_string(), why, "name a folder that you may write to")
        })
    }
}
