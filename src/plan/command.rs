//! Command line of a rank.

use crate::spec::Script;
use crate::spec::options::EnvVars;
use crate::spec::paddle::launch::is_python;
use std::ffi::{OsStr, OsString};
use std::sync::Arc;

/// Program and arguments. Python runs `.py` files, and others on request, unbuffered and, if WITH_COVERAGE is `ON`, under
/// `coverage`. Python also runs `.pyxes` files. Any other file is executed itself.
pub fn argv(script: &Script, args: &[OsString], python: &OsStr, vars: &EnvVars) -> Arc<[OsString]> {
    let coverage = vars.get("WITH_COVERAGE").is_some_and(|v| v == "ON");
    let (options, name): (Option<&[&str]>, _) = match script {
        Script::File(name) if !is_python(name) => (None, name),
        Script::File(name) if name.as_encoded_bytes().ends_with(b".pyxes") => (Some(&[]), name),
        Script::File(name) | Script::Python(name) if coverage => {
            (Some(&["-u", "-m", "coverage", "run", "--branch", "-p"]), name)
        }
        Script::File(name) | Script::Python(name) => (Some(&["-u"]), name),
        Script::Module(name) => (Some(&["-u", "-m"]), name),
        Script::Program(name) => (None, name),
    };
    let python = options.map(|options| [python.to_owned()].into_iter().chain(options.iter().map(OsString::from)));
    python.into_iter().flatten().chain([name.clone()]).chain(args.iter().cloned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_of_script_has_its_command() {
        let run = |script: Script, vars: &EnvVars| {
            let argv = argv(&script, &["-m".into(), "a b".into()], "py".as_ref(), vars);
            argv.iter().map(|arg| arg.to_str().unwrap()).collect::<Vec<_>>().join("|")
        };
        let none = EnvVars::new();
        let coverage = EnvVars::from([("WITH_COVERAGE".into(), "ON".into())]);
        let file = |name: &str| Script::File(name.into());
        assert_eq!(run(file("a.py"), &none), "py|-u|a.py|-m|a b");
        assert_eq!(run(file("a.py"), &coverage), "py|-u|-m|coverage|run|--branch|-p|a.py|-m|a b");
        assert_eq!(run(file("a.pyxes"), &none), "py|a.pyxes|-m|a b");
        assert_eq!(run(file("a.sh"), &none), "a.sh|-m|a b");
        assert_eq!(run(Script::Python("a.sh".into()), &none), "py|-u|a.sh|-m|a b");
        assert_eq!(run(Script::Module("pkg.mod".into()), &none), "py|-u|-m|pkg.mod|-m|a b");
        assert_eq!(run(Script::Program("a.py".into()), &none), "a.py|-m|a b");
    }
}
