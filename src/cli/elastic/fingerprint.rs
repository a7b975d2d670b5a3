//! Reads this node's fingerprint: the interpreter and the frameworks of its ranks, the git commit of their script, the GPU driver.
//! No process is started, and nothing is imported.

use crate::cli::common::interpreter::{self, Interpreter};
use crate::model::fingerprint::{self, Fingerprint, NOT_THERE};
use crate::protocol::JobRules;
use crate::spec::SpecError;
use crate::spec::frameworks::{Framework, NAMES};
use crate::spec::rendezvous::RendezvousSpec;
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

/// What this node's fingerprint is read from.
#[derive(Clone, Copy, Debug)]
pub struct FingerprintSource<'a> {
    /// The launcher's interpreter.
    pub launcher: &'a Interpreter,
    /// The interpreter of the ranks. Nothing is known of another one than the launcher's.
    pub python: &'a OsStr,
    /// The frameworks whose variables the ranks receive.
    pub frameworks: &'a BTreeSet<Framework>,
    /// The script or program, unless it is a module.
    pub script: Option<&'a Path>,
}

/// What nodes of a job without a name agree on beside the other rules, because two jobs may use one endpoint: the name of the script or
/// module. Folders differ between machines, and arguments between nodes, such as `--node=$SLURM_NODEID`.
pub fn with_script(
    rules: JobRules,
    rendezvous: &RendezvousSpec,
    script: Option<&Path>,
    module: Option<&OsStr>,
) -> JobRules {
    if !DEFAULT_NAMES.contains(&rendezvous.job_name.as_str()) {
        return rules;
    }
    let name = script.map_or(module, |script| script.file_name().or(Some(script.as_os_str())));
    JobRules { script: name.map_or(String::new(), |name| name.to_string_lossy().into_owned()), ..rules }
}

/// The version of the loaded kernel module of NVIDIA's driver.
const DRIVER: &str = "/sys/module/nvidia/version";
/// How much of a small file is read, in bytes.
const MAX_FILE: u64 = 4096;
/// How much of git's list of packed refs is read, in bytes.
const MAX_PACKED_REFS: u64 = 16 << 20;
/// The names of jobs that users give none, in Paddle's and torchrun's front end.
const DEFAULT_NAMES: [&str; 2] = ["default", "none"];
/// Digits of a commit that are compared and shown.
const DIGITS: usize = 12;

impl FingerprintSource<'_> {
    /// Reads the fingerprint. `require_same`: what has to be the same on all nodes, so this node has to know it.
    pub fn read(&self, require_same: &str) -> Result<Fingerprint, SpecError> {
        let (mut found, mut hangs) = (Fingerprint::new(), None);
        if self.python == self.launcher.executable {
            let Interpreter { version, path, .. } = self.launcher.clone();
            found.insert("python".into(), version.clone());
            let facts = interpreter::look(String::new(), version, path);
            // The packages behind a folder that does not answer are unknown.
            let known = self.frameworks.iter().filter(|_| facts.hangs.is_none());
            for (name, framework) in
                NAMES.into_iter().filter(|(_, framework)| known.clone().any(|one| one == framework))
            {
                let package = facts.imported().into_iter().find(|package| is_package_of(framework, &package.name));
                let version = package.map(|package| match package.name.strip_prefix("paddlepaddle-") {
                    Some(build) => format!("{} ({build})", package.version),
                    None => package.version.clone(),
                });
                found.insert(name.into(), version.unwrap_or_else(|| NOT_THERE.into()));
            }
            hangs = facts.hangs;
        }
        found.insert("git".into(), commit(&self.folder()).unwrap_or_else(|| NOT_THERE.into()));
        found.insert("driver".into(), read_word(Path::new(DRIVER)).unwrap_or_else(|| NOT_THERE.into()));
        match fingerprint::find_unknown(require_same, &found) {
            None => Ok(found),
            Some(word) => Err(SpecError::new(
                "--require_same",
                word,
                self.describe_unknown(word, hangs.as_deref()),
                format!("leave {word} out"),
            )),
        }
    }

    /// The folder whose commit counts: the script's, or the current one.
    fn folder(&self) -> PathBuf {
        let script = self.script.and_then(|script| script.canonicalize().ok());
        script
            .and_then(|script| script.parent().map(Path::to_owned))
            .or_else(|| std::env::current_dir().ok())
            .unwrap_or_default()
    }

    /// `hangs`: a folder that does not answer.
    fn describe_unknown(&self, word: &str, hangs: Option<&Path>) -> String {
        match word {
            "git" => format!("{} is in no git repository with a commit", self.folder().display()),
            "driver" => format!("this node has no NVIDIA driver ({DRIVER})"),
            _ if self.python != self.launcher.executable => {
                format!("the ranks run on {}, of which the launcher knows nothing", self.python.display())
            }
            _ => match hangs {
                Some(folder) => format!("packages cannot be read: {} does not answer", folder.display()),
                None => "none is installed for this interpreter".into(),
            },
        }
    }
}

fn is_package_of(framework: Framework, package: &str) -> bool {
    match framework {
        Framework::Torch => package == "torch",
        Framework::Jax => package == "jax",
        Framework::Paddle => {
            package == "paddlepaddle" || package.starts_with("paddlepaddle-") && !package.contains("plugin")
        }
    }
}

/// The commit that is checked out in this folder, shortened. Changes that are not committed are not looked for: that takes a
/// comparison of all files.
fn commit(folder: &Path) -> Option<String> {
    let git = folder.ancestors().find_map(git_folder)?;
    let head = read_word(&git.join("HEAD"))?;
    let commit = match head.strip_prefix("ref:") {
        None => head,
        Some(name) => read_ref(&git, name.trim())?,
    };
    let is_commit = commit.len() >= 40 && commit.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_commit.then(|| commit[..DIGITS].to_owned())
}

/// The folder that `.git` is, or names: in a worktree and in a submodule it is a file (gitrepository-layout(5)).
fn git_folder(folder: &Path) -> Option<PathBuf> {
    let at = folder.join(".git");
    if at.is_dir() {
        return Some(at);
    }
    read_word(&at)?.strip_prefix("gitdir:").map(|path| folder.join(path.trim()))
}

/// The commit of a branch. A worktree shares its branches with the repository that `commondir` names.
fn read_ref(git: &Path, name: &str) -> Option<String> {
    let common = read_word(&git.join("commondir")).map_or_else(|| git.to_owned(), |path| git.join(path));
    let loose = [git, &common].into_iter().find_map(|at| read_word(&at.join(name)));
    loose.or_else(|| {
        let packed = BufReader::new(File::open(common.join("packed-refs")).ok()?.take(MAX_PACKED_REFS));
        let commit = |line: String| line.strip_suffix(name)?.strip_suffix(' ').map(str::to_owned);
        packed.lines().map_while(Result::ok).find_map(commit)
    })
}

/// The text of a small file without blanks around it; `None`: it cannot be read, or is empty.
fn read_word(path: &Path) -> Option<String> {
    let mut text = String::new();
    File::open(path).ok()?.take(MAX_FILE).read_to_string(&mut text).ok()?;
    Some(text.trim().to_owned()).filter(|text| !text.is_empty())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // A test fails by panicking.
    use super::*;
    use std::fs;

    const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

    /// A folder of its own, with these files below it.
    struct Files(PathBuf);

    impl Files {
        fn new(name: &str, files: &[(&str, &str)]) -> Self {
            let root = std::env::temp_dir().join(format!("rlaunch-fingerprint-{name}-{}", std::process::id()));
            let _ = fs::remove_dir_all(&root);
            for (path, text) in files {
                let path = root.join(path);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, text).unwrap();
            }
            Self(root)
        }
    }

    impl Drop for Files {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn commit_of(name: &str, files: &[(&str, &str)]) -> Option<String> {
        let files = Files::new(name, &[files, &[("code/here/train.py", "")]].concat());
        commit(&files.0.join("code/here"))
    }

    #[test]
    fn the_commit_is_read_from_each_layout_of_a_repository() {
        let line = format!("{COMMIT}\n");
        let packed = format!(
            "# pack-refs with: peeled\n{}\n{COMMIT} refs/heads/main\n^{COMMIT}\n",
            "1".repeat(40) + " refs/heads/x/refs/heads/main"
        );
        let on_branch = ("code/.git/HEAD", "ref: refs/heads/main\n");
        let layouts: [(&str, &[(&str, &str)]); 5] = [
            ("detached", &[("code/.git/HEAD", &line)]),
            ("branch", &[on_branch, ("code/.git/refs/heads/main", &line)]),
            ("packed", &[on_branch, ("code/.git/packed-refs", &packed)]),
            ("submodule", &[("code/.git", "gitdir: ../all/modules/code\n"), ("all/modules/code/HEAD", &line)]),
            (
                "worktree",
                &[
                    ("code/.git", "gitdir: ../all/.git/worktrees/code"),
                    ("all/.git/worktrees/code/HEAD", "ref: refs/heads/main\n"),
                    ("all/.git/worktrees/code/commondir", "../..\n"),
                    ("all/.git/refs/heads/main", &line),
                ],
            ),
        ];
        for (name, files) in layouts {
            assert_eq!(commit_of(name, files).as_deref(), Some(&COMMIT[..DIGITS]), "{name}");
        }
    }

    #[test]
    fn a_folder_without_a_commit_has_none() {
        let layouts: [(&str, &[(&str, &str)]); 4] = [
            ("none", &[]),
            ("unborn", &[("code/.git/HEAD", "ref: refs/heads/main\n")]),
            (
                "no-ref",
                &[("code/.git/HEAD", "ref: refs/heads/.invalid\n"), ("code/.git/refs/heads/.invalid", "this ref")],
            ),
            ("text", &[("code/.git", "no path")]),
        ];
        for (name, files) in layouts {
            assert_eq!(commit_of(name, files), None, "{name}");
        }
    }

    #[test]
    fn the_fingerprint_has_the_frameworks_of_the_job_and_the_rest_is_left_out() {
        let files = Files::new(
            "frameworks",
            &[
                ("site/torch-2.15.0+cpu.dist-info/METADATA", ""),
                ("site/paddlepaddle_gpu-3.3.1.dist-info/METADATA", ""),
                ("site/jax-0.9.dist-info/METADATA", ""),
                ("code/.git/HEAD", COMMIT),
                ("code/train.py", ""),
            ],
        );
        let launcher = Interpreter {
            executable: "/usr/bin/python".into(),
            version: "3.12.1".into(),
            path: vec![files.0.join("site")],
        };
        let script = files.0.join("code/train.py");
        let read = |python: &str, frameworks: &[Framework], require_same: &str| {
            let (python, frameworks) = (OsStr::new(python), &frameworks.iter().copied().collect());
            let source = FingerprintSource { launcher: &launcher, python, frameworks, script: Some(&script) };
            let found = source.read(require_same).map_err(|error| error.to_string())?;
            let shown =
                found.iter().filter(|(name, _)| *name != "driver").map(|(name, value)| format!("{name} {value}"));
            Ok::<_, String>(shown.collect::<Vec<_>>().join(", "))
        };
        let own = "/usr/bin/python";
        assert_eq!(
            read(own, &[Framework::Torch], "python,framework,git").unwrap(),
            "git 0123456789ab, python 3.12.1, torch 2.15.0+cpu"
        );
        let both = read(own, &[Framework::Paddle, Framework::Jax], "").unwrap();
        assert_eq!(both, "git 0123456789ab, jax 0.9, paddle 3.3.1 (gpu), python 3.12.1");
        assert_eq!(read("/opt/python", &[Framework::Torch], "git").unwrap(), "git 0123456789ab");
        let error = read("/opt/python", &[Framework::Torch], "python,git").unwrap_err();
        assert_eq!(
            error,
            "--require_same python: the ranks run on /opt/python, of which the launcher knows nothing; leave python out"
        );
    }

    #[test]
    fn a_node_that_does_not_know_what_has_to_be_the_same_says_so() {
        let files = Files::new("unknown", &[("train.py", "")]);
        let script = files.0.join("train.py");
        let launcher = Interpreter::default();
        let (python, frameworks) = (OsStr::new(""), &[Framework::Torch].into());
        let source = FingerprintSource { launcher: &launcher, python, frameworks, script: Some(&script) };
        let error = |words| source.read(words).map_err(|error| error.to_string()).unwrap_err();
        assert!(error("git").starts_with("--require_same git: "), "{}", error("git"));
        assert!(error("git").ends_with("is in no git repository with a commit; leave git out"), "{}", error("git"));
        assert!(error("framework").contains("none is installed for this interpreter"), "{}", error("framework"));
        let hangs = source.describe_unknown("framework", Some(Path::new("/gone")));
        assert_eq!(hangs, "packages cannot be read: /gone does not answer");
    }
}
