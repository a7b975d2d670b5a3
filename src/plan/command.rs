//! The command line of a rank.

use crate::spec::Script;
use crate::spec::options::Vars;

/// Program and arguments. A `.py` file runs unbuffered, under `coverage` if WITH_COVERAGE is `ON`; a
/// `.pyxes` file runs as Python; anything else is a program of its own.
pub fn argv(script: &Script, args: &[String], python: &str, vars: &Vars) -> Vec<String> {
    let mut argv: Vec<&str> = Vec::new();
    match script {
        Script::File(name) if name.ends_with(".py") => {
            argv.extend([python, "-u"]);
            if vars.get("WITH_COVERAGE").is_some_and(|v| v == "ON") {
                argv.extend(["-m", "coverage", "run", "--branch", "-p"]);
            }
            argv.push(name);
        }
        Script::File(name) if name.ends_with(".pyxes") => argv.extend([python, name]),
        Script::Module(name) => argv.extend([python, "-u", "-m", name]),
        Script::File(name) | Script::Program(name) => argv.push(name),
    }
    argv.into_iter().map(str::to_owned).chain(args.iter().cloned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_of_script_has_its_command() {
        let run = |script: Script, vars: &Vars| argv(&script, &["-m".into(), "a b".into()], "py", vars).join("|");
        let none = Vars::new();
        let coverage = Vars::from([("WITH_COVERAGE".into(), "ON".into())]);
        let file = |name: &str| Script::File(name.into());
        assert_eq!(run(file("a.py"), &none), "py|-u|a.py|-m|a b");
        assert_eq!(run(file("a.py"), &coverage), "py|-u|-m|coverage|run|--branch|-p|a.py|-m|a b");
        assert_eq!(run(file("a.pyxes"), &none), "py|a.pyxes|-m|a b");
        assert_eq!(run(file("a.sh"), &none), "a.sh|-m|a b");
        assert_eq!(run(Script::Module("pkg.mod".into()), &none), "py|-u|-m|pkg.mod|-m|a b");
        assert_eq!(run(Script::Program("a.py".into()), &none), "a.py|-m|a b");
    }
}
