//! The interpreter that runs a command, and the packages that it would import, by the names of their folders. Nothing is imported.

use crate::net::thread;
use crossbeam_channel::unbounded;
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How long the file systems of all folders may take for their answers.
const PATIENCE: Duration = Duration::from_secs(3);

/// Packages whose version matters to a job, in the form of PyPI. `*` at the end: any name that begins so.
const SHOWN: [&str; 10] = [
    "torch",
    "paddlepaddle",
    "paddlepaddle-*",
    "jax",
    "jaxlib",
    "numpy",
    "transformers",
    "accelerate",
    "deepspeed",
    "nvidia-nccl-*",
];

/// The interpreter that runs a command.
#[derive(Clone, Debug, Default)]
pub struct Interpreter {
    /// `sys.executable`.
    pub executable: OsString,
    /// `3.13.1`.
    pub version: String,
    /// `sys.path`.
    pub path: Vec<PathBuf>,
}

impl From<(OsString, String, Vec<PathBuf>)> for Interpreter {
    fn from((executable, version, path): (OsString, String, Vec<PathBuf>)) -> Self {
        Self { executable, version, path }
    }
}

/// The interpreter, and the packages that it finds.
#[derive(Clone, Debug, Default)]
pub(in crate::cli) struct PythonFacts {
    pub executable: String,
    pub version: String,
    /// In the order of `sys.path`.
    pub packages: Vec<Package>,
    /// The folder of `sys.path` whose file system does not answer. Its packages and those of later folders are missing.
    pub hangs: Option<PathBuf>,
}

impl PythonFacts {
    /// Packages that Python imports: of each name the first.
    pub(in crate::cli) fn imported(&self) -> Vec<&Package> {
        let mut first: Vec<&Package> = Vec::new();
        for package in &self.packages {
            if !first.iter().any(|known| known.name == package.name) {
                first.push(package);
            }
        }
        first
    }
}

/// An installed package, by the name of its `.dist-info` folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::cli) struct Package {
    /// In the form of PyPI: `paddlepaddle-gpu`.
    pub name: String,
    pub version: String,
    /// The folder of `sys.path`.
    pub folder: PathBuf,
}

/// Looks into the folders of `sys.path`.
pub(in crate::cli) fn look(executable: String, version: String, path: Vec<PathBuf>) -> PythonFacts {
    // "" is the current folder, and one folder may be there twice.
    let mut seen = BTreeSet::new();
    let read = move |folder: &Path| {
        if folder.is_dir() && seen.insert(folder.canonicalize().ok()) { packages(folder) } else { Vec::new() }
    };
    let (packages, hangs) = look_within(PATIENCE, path, read);
    PythonFacts { executable, version, packages, hangs }
}

/// The packages of these folders, and the folder that has not been read in time: its file system does not answer.
fn look_within(
    limit: Duration,
    path: Vec<PathBuf>,
    mut read: impl FnMut(&Path) -> Vec<Package> + Send + 'static,
) -> (Vec<Package>, Option<PathBuf>) {
    let (done, results) = unbounded();
    let mut left = path.clone().into_iter();
    thread::within(limit, move || path.iter().try_for_each(|folder| done.send(read(folder))));
    let packages = results.try_iter().inspect(|_| drop(left.next())).flatten().collect();
    (packages, left.next())
}

fn packages(folder: &Path) -> Vec<Package> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let mut found: Vec<Package> = names.filter_map(|name| package(&name, folder)).collect();
    found.sort_by(|a, b| (&a.name, &a.version).cmp(&(&b.name, &b.version)));
    found
}

/// `NAME-VERSION.dist-info`, or `NAME-VERSION-py3.12.egg-info` of older installers.
fn package(entry: &str, folder: &Path) -> Option<Package> {
    let (stem, of_egg) = match entry.strip_suffix(".dist-info") {
        Some(stem) => (stem, false),
        None => (entry.strip_suffix(".egg-info")?, true),
    };
    let (name, version) = stem.split_once('-')?;
    let version = if of_egg { version.split_once("-py").map_or(version, |(version, _)| version) } else { version };
    let name = name.to_ascii_lowercase().replace(['_', '.'], "-");
    let is_shown = |known: &str| match known.strip_suffix('*') {
        Some(head) => name.starts_with(head),
        None => name == known,
    };
    let package = Package { version: version.to_owned(), folder: folder.to_owned(), name: name.clone() };
    SHOWN.iter().any(|known| is_shown(known)).then_some(package)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packages_are_known_by_the_names_of_their_folders() {
        let of = |entry: &str| package(entry, Path::new("/x")).map(|found| format!("{} {}", found.name, found.version));
        assert_eq!(of("torch-2.15.0+cpu.dist-info").as_deref(), Some("torch 2.15.0+cpu"));
        assert_eq!(of("paddlepaddle_gpu-3.3.1.dist-info").as_deref(), Some("paddlepaddle-gpu 3.3.1"));
        assert_eq!(of("nvidia_nccl_cu12-2.27.3.dist-info").as_deref(), Some("nvidia-nccl-cu12 2.27.3"));
        assert_eq!(of("numpy-1.24.2-py3.11.egg-info").as_deref(), Some("numpy 1.24.2"));
        for other in ["torchvision-1.0.dist-info", "torch", "torch.dist-info", "pip-26.3.dist-info"] {
            assert_eq!(of(other), None, "{other}");
        }
    }

    #[test]
    fn each_folder_of_the_path_is_read_once() {
        let root = std::env::temp_dir().join(format!("rlaunch-packages-{}", std::process::id()));
        std::fs::create_dir_all(root.join("torch-2.15.0.dist-info")).unwrap();
        let facts = look("python".into(), "3.13.1".into(), vec![root.join("nowhere"), root.clone(), root.join(".")]);
        std::fs::remove_dir_all(&root).unwrap();
        assert_eq!((facts.packages.len(), facts.hangs), (1, None));
    }

    #[test]
    fn a_folder_that_does_not_answer_is_named_and_the_others_are_kept() {
        let (go_on, hangs) = unbounded::<()>();
        let read = move |folder: &Path| match folder.to_str() {
            Some("/gone") => hangs.recv().into_iter().flat_map(|()| Vec::new()).collect(),
            _ => package("torch-2.15.0.dist-info", folder).into_iter().collect(),
        };
        let path = ["/here", "/gone", "/there"].map(PathBuf::from).to_vec();
        // The first folder has been read long before.
        let (packages, hangs) = look_within(Duration::from_secs(1), path, read);
        drop(go_on);
        assert_eq!(packages.iter().map(|package| package.folder.as_path()).collect::<Vec<_>>(), [Path::new("/here")]);
        assert_eq!(hangs.as_deref(), Some(Path::new("/gone")));
    }
}
