//! Command and environment of the preload server (zygote): what all ranks have in common.

use crate::plan::RankPlan;
use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};

/// The part of the command line that the ranks and the preload server have in common.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RankCommand {
    /// The interpreter.
    pub python: OsString,
    /// Its options.
    pub flags: Vec<OsString>,
    /// The program that it runs.
    pub main: PythonMain,
}

/// The program that Python runs, as far as `sys.path` depends on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PythonMain {
    /// A script file.
    Script(OsString),
    /// A module.
    Module,
}

/// Why the ranks cannot be forked from a preload server.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotForkable {
    /// The plan is empty.
    #[error("there are no ranks")]
    NoRanks,
    /// The commands differ.
    #[error("the processes of this job do not all run the same script")]
    DifferentScripts,
    /// A command is empty.
    #[error("there is no program")]
    NoProgram,
    /// A command runs another program than the launcher's interpreter.
    #[error("{} is not run by the launcher's Python", .0.display())]
    OtherProgram(OsString),
    /// The script is `-`.
    #[error("the script is read from stdin")]
    ScriptFromStdin,
    /// The interpreter has no script.
    #[error("there is no script")]
    NoScript,
}

/// The command that these ranks have in common. `python`: the launcher's interpreter.
pub fn common_command(ranks: &[RankPlan], python: &OsStr) -> Result<RankCommand, NotForkable> {
    let Some((first, others)) = ranks.split_first() else { return Err(NotForkable::NoRanks) };
    let command = parse_argv(&first.argv, python)?;
    match others.iter().all(|rank| parse_argv(&rank.argv, python).as_ref() == Ok(&command)) {
        true => Ok(command),
        false => Err(NotForkable::DifferentScripts),
    }
}

/// Parses a command of the launcher, which passes Python no other options than `-u` and `-m`.
fn parse_argv(argv: &[OsString], python: &OsStr) -> Result<RankCommand, NotForkable> {
    let Some((program, args)) = argv.split_first() else { return Err(NotForkable::NoProgram) };
    if program != python {
        return Err(NotForkable::OtherProgram(program.clone()));
    }
    let count = args.iter().take_while(|arg| *arg == "-u").count();
    let main = match args.get(count) {
        Some(arg) if arg == "-m" => PythonMain::Module,
        Some(arg) if arg == "-" => return Err(NotForkable::ScriptFromStdin),
        Some(script) => PythonMain::Script(script.clone()),
        None => return Err(NotForkable::NoScript),
    };
    Ok(RankCommand { python: program.clone(), flags: args[..count].to_vec(), main })
}

/// A variable and its value.
type Var = (Vec<u8>, Vec<u8>);

/// Variables that have the same value in all these ranks, in the order of the first rank. `base` is the environment of the
/// launcher. Variables that differ between attempts are not included, unless `base` has them.
pub fn common_environment(base: &[Var], ranks: &[RankPlan]) -> Vec<Var> {
    let Some((first, others)) = ranks.split_first() else { return base.to_vec() };
    let mut shared = first.env.apply(base);
    for rank in others {
        let own: BTreeSet<Var> = rank.env.apply(base).into_iter().collect();
        shared.retain(|var| own.contains(var));
    }
    shared
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{EnvDelta, ProcessLabel};

    fn rank(argv: &str, env: EnvDelta) -> RankPlan {
        RankPlan::with_log(
            ProcessLabel::rank(0),
            argv.split(' ').map(OsString::from).collect(),
            env,
            String::new(),
            None,
        )
    }

    fn of(all: &[&str]) -> Result<RankCommand, NotForkable> {
        let ranks: Vec<RankPlan> = all.iter().map(|argv| rank(argv, EnvDelta::new())).collect();
        common_command(&ranks, "py".as_ref())
    }

    #[test]
    fn ranks_of_one_script_have_a_common_command() {
        let made = |flags: &[&str], main| {
            Ok(RankCommand { python: "py".into(), flags: flags.iter().map(OsString::from).collect(), main })
        };
        assert_eq!(of(&["py -u a.py -m x", "py -u a.py 2"]), made(&["-u"], PythonMain::Script("a.py".into())));
        assert_eq!(of(&["py a.pyxes"]), made(&[], PythonMain::Script("a.pyxes".into())));
        assert_eq!(of(&["py -u -m pkg -u"]), made(&["-u"], PythonMain::Module));
    }

    #[test]
    fn other_ranks_have_none_and_the_error_says_why() {
        for (all, why) in [
            (&["sh a.py"][..], "sh is not run by the launcher's Python"),
            (&["py -u a.py", "py -u b.py"], "the processes of this job do not all run the same script"),
            (&["py -u a.py", "py a.py"], "the processes of this job do not all run the same script"),
            (&["py -u a.py", "b.sh"], "the processes of this job do not all run the same script"),
            (&["py -u -"], "the script is read from stdin"),
            (&["py -u"], "there is no script"),
            (&[], "there are no ranks"),
        ] {
            assert_eq!(of(all).unwrap_err().to_string(), why, "{all:?}");
        }
    }

    #[test]
    fn the_common_environment_has_what_all_ranks_have() {
        let var = |name: &str, value: &str| (name.as_bytes().to_vec(), value.as_bytes().to_vec());
        let base = [var("HOME", "/"), var("RANK", "9"), var("http_proxy", "x")];
        let delta = |rank: &str, seen: &str| {
            let mut env = EnvDelta::new();
            env.set("RANK", rank).set("WORLD_SIZE", "2").set("SEEN", seen).unset("http_proxy");
            env
        };
        let ranks = [rank("py a.py", delta("0", "a")), rank("py a.py", delta("1", "a"))];
        assert_eq!(common_environment(&base, &ranks), [var("HOME", "/"), var("WORLD_SIZE", "2"), var("SEEN", "a")]);
        let alone = common_environment(&base, &ranks[..1]);
        assert_eq!(alone, [var("HOME", "/"), var("RANK", "0"), var("WORLD_SIZE", "2"), var("SEEN", "a")]);
    }
}
