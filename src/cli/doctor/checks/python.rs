//! The interpreter, and the frameworks that it would import.

use crate::cli::common::interpreter::{Package, PythonFacts};
use crate::cli::doctor::facts::{Facts, GpuFacts};
use crate::cli::doctor::finding::{Finding, error, ok, warning};

const PADDLE: &str = "paddlepaddle";

pub(super) fn check(facts: &Facts) -> Vec<Finding> {
    let python = &facts.python;
    let has_gpus = matches!(&facts.devices.gpus, GpuFacts::Found { gpus, .. } if !gpus.is_empty());
    let mut found = vec![ok("Python", format!("{} ({})", python.version, python.executable)), frameworks(python)];
    found.extend(hanging(python));
    found.extend(doubled(python));
    found.extend(both_paddles(python));
    found.extend(Some(python).filter(|_| has_gpus).into_iter().flat_map(without_cuda));
    found
}

fn frameworks(python: &PythonFacts) -> Finding {
    let shown: Vec<String> = python
        .imported()
        .into_iter()
        .map(|package| {
            let hidden = |other: &&Package| other.name == package.name && other.folder != package.folder;
            let hides =
                python.packages.iter().find(hidden).map_or(String::new(), |other| {
                    format!(" (before {} in {})", other.version, other.folder.display())
                });
            format!("{} {}{hides}", package.name, package.version)
        })
        .collect();
    ok("frameworks", if shown.is_empty() { "none is installed for this interpreter".into() } else { shown.join(", ") })
}

/// A folder that Python reads at its start and at imports, on a file system that does not answer.
fn hanging(python: &PythonFacts) -> Option<Finding> {
    let folder = python.hangs.as_ref()?.display();
    Some(error(
        "frameworks",
        format!(
            "the file system of {folder}, a folder of sys.path, does not answer: ranks hang when they import modules"
        ),
        "look at its server, or take the folder out of PYTHONPATH",
    ))
}

/// A package of which one folder has two versions.
fn doubled(python: &PythonFacts) -> Vec<Finding> {
    let mut found = Vec::new();
    for (at, package) in python.packages.iter().enumerate() {
        let same = |other: &&Package| other.name == package.name && other.folder == package.folder;
        if let Some(other) = python.packages[..at].iter().find(same) {
            found.push(warning(
                "frameworks",
                format!(
                    "{} is there as {} and {} in {}, as after an interrupted upgrade: its files may be of both",
                    package.name,
                    other.version,
                    package.version,
                    package.folder.display()
                ),
                format!("pip install --force-reinstall {}", package.name),
            ));
        }
    }
    found
}

/// Paddle's packages for CPUs and for devices have the same files.
fn both_paddles(python: &PythonFacts) -> Option<Finding> {
    let paddles: Vec<&str> = python
        .packages
        .iter()
        .map(|package| package.name.as_str())
        .filter(|name| *name == PADDLE || name.starts_with("paddlepaddle-"))
        .filter(|name| !name.contains("plugin"))
        .collect();
    let device = paddles.iter().find(|name| **name != PADDLE && paddles.contains(&PADDLE))?;
    Some(warning(
        "frameworks",
        format!(
            "{PADDLE} (for CPUs) and {device} are both installed, and the later one has overwritten files of the other"
        ),
        format!("pip uninstall {PADDLE} {device}, then install the one you need"),
    ))
}

/// Torch and Paddle on a machine with GPUs, if none of them can use GPUs.
fn without_cuda(python: &PythonFacts) -> Vec<Finding> {
    let is_framework = |package: &&Package| package.name == "torch" || package.name.starts_with(PADDLE);
    let is_for_cpus = |package: &Package| package.name == PADDLE || package.version.ends_with("+cpu");
    let found: Vec<&Package> = python.imported().into_iter().filter(is_framework).collect();
    if !found.iter().all(|package| is_for_cpus(package)) {
        return Vec::new();
    }
    let text = |package: &&Package| {
        warning(
            "frameworks",
            format!("{} {} is the build for CPUs, and this machine has GPUs", package.name, package.version),
            "install the build for the CUDA version of the driver, if ranks should use them",
        )
    };
    found.iter().map(text).collect()
}

#[cfg(test)]
mod tests {
    use super::super::sound::{levels, sound};
    use super::*;
    use crate::cli::doctor::facts::GpuState;

    fn with(packages: &[(&str, &str, &str)]) -> Facts {
        let mut facts = sound();
        let package = |(name, version, folder): &(&str, &str, &str)| Package {
            name: (*name).into(),
            version: (*version).into(),
            folder: (*folder).into(),
        };
        facts.python.packages = packages.iter().map(package).collect();
        facts
    }

    #[test]
    fn the_first_version_on_the_path_is_the_one() {
        let found = check(&with(&[("torch", "2.4", "/home"), ("numpy", "2.1", "/usr"), ("torch", "2.1", "/usr")]));
        assert_eq!(levels(&found), "Python ok, frameworks ok");
        assert_eq!(found[1].text, "torch 2.4 (before 2.1 in /usr), numpy 2.1");
        assert!(check(&with(&[]))[1].text.contains("none"));
    }

    #[test]
    fn a_folder_that_hangs_is_an_error() {
        let mut facts = with(&[("torch", "2.4", "/a")]);
        facts.python.hangs = Some("/mnt/gone".into());
        let found = check(&facts);
        assert_eq!(levels(&found), "Python ok, frameworks ok, frameworks error");
        assert!(found[2].text.contains("/mnt/gone"), "{found:?}");
    }

    #[test]
    fn broken_installations_are_found() {
        let found = check(&with(&[("torch", "2.4", "/a"), ("torch", "2.5", "/a")]));
        assert!(found[2].text.contains("2.4 and 2.5 in /a"), "{found:?}");
        let both = [("paddlepaddle", "3.3.1", "/a"), ("paddlepaddle-gpu", "3.3.0", "/a")];
        assert_eq!(levels(&check(&with(&both))), "Python ok, frameworks ok, frameworks warning");
    }

    #[test]
    fn builds_for_cpus_are_named_beside_gpus() {
        let mut facts = with(&[("paddlepaddle", "3.3.1", "/a"), ("torch", "2.15.0+cpu", "/a")]);
        assert_eq!(check(&facts).len(), 2);
        facts.devices.gpus = GpuFacts::Found { driver: None, gpus: vec![GpuState::default()] };
        assert_eq!(levels(&check(&facts)[2..]), "frameworks warning, frameworks warning");
        facts.python.packages[1].version = "2.15.0".into();
        assert_eq!(check(&facts).len(), 2, "torch can use them");
    }
}
