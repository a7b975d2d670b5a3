//! What the process that the ranks are forked from is started with: what all of them have in common.

use super::RankPlan;
use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};

/// The command line of every rank, as far as it has to be the same in the process that they are forked from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// The interpreter.
    pub python: OsString,
    /// Its options.
    pub flags: Vec<OsString>,
    /// What it runs.
    pub main: Main,
}

/// What Python runs, as far as where it looks for modules depends on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Main {
    /// This file.
    Script(OsString),
    /// A module.
    Module,
}

/// The source of these ranks, if they can have one; else why not. `python`: the launcher's interpreter.
pub fn source(ranks: &[RankPlan], python: &OsStr) -> Result<Source, String> {
    let Some((first, others)) = ranks.split_first() else { return Err("there are no ranks".into()) };
    let source = of_argv(&first.argv, python)?;
    match others.iter().all(|rank| of_argv(&rank.argv, python).as_ref() == Ok(&source)) {
        true => Ok(source),
        false => Err("the processes of this job do not all run the same script".into()),
    }
}

/// The launcher gives Python `-u` and `-m` alone.
fn of_argv(argv: &[OsString], python: &OsStr) -> Result<Source, String> {
    let Some((program, words)) = argv.split_first() else { return Err("there is no program".into()) };
    if program != python {
        return Err(format!("{} is not run by the launcher's Python", program.display()));
    }
    let count = words.iter().take_while(|word| *word == "-u").count();
    let main = match words.get(count) {
        Some(word) if word == "-m" => Main::Module,
        Some(word) if word == "-" => return Err("the script is read from stdin".into()),
        Some(script) => Main::Script(script.clone()),
        None => return Err("there is no script".into()),
    };
    Ok(Source { python: program.clone(), flags: words[..count].to_vec(), main })
}

/// A variable and its value.
type Var = (Vec<u8>, Vec<u8>);

/// The variables that all these ranks have with the same value, in the order of the first's. What changes from one
/// attempt to the next is none of them, unless `base`, the launcher's own environment, has it.
pub fn environment(base: &[Var], ranks: &[RankPlan]) -> Vec<Var> {
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
    use crate::model::{EnvPatch, Role, Who};

    fn rank(argv: &str, env: EnvPatch) -> RankPlan {
        let who = Who { role: Role::Trainer, number: 0 };
        RankPlan::with_log(who, argv.split(' ').map(OsString::from).collect(), env, String::new(), None)
    }

    fn of(all: &[&str]) -> Result<Source, String> {
        let ranks: Vec<RankPlan> = all.iter().map(|argv| rank(argv, EnvPatch::new())).collect();
        source(&ranks, "py".as_ref())
    }

    #[test]
    fn ranks_of_one_script_have_a_source() {
        let made = |flags: &[&str], main| {
            Ok(Source { python: "py".into(), flags: flags.iter().map(OsString::from).collect(), main })
        };
        assert_eq!(of(&["py -u a.py -m x", "py -u a.py 2"]), made(&["-u"], Main::Script("a.py".into())));
        assert_eq!(of(&["py a.pyxes"]), made(&[], Main::Script("a.pyxes".into())));
        assert_eq!(of(&["py -u -m pkg -u"]), made(&["-u"], Main::Module));
    }

    #[test]
    fn others_have_none_and_it_is_said_why() {
        for (all, why) in [
            (&["sh a.py"][..], "sh is not run by the launcher's Python"),
            (&["py -u a.py", "py -u b.py"], "the processes of this job do not all run the same script"),
            (&["py -u a.py", "py a.py"], "the processes of this job do not all run the same script"),
            (&["py -u a.py", "b.sh"], "the processes of this job do not all run the same script"),
            (&["py -u -"], "the script is read from stdin"),
            (&["py -u"], "there is no script"),
            (&[], "there are no ranks"),
        ] {
            assert_eq!(of(all), Err(why.to_owned()), "{all:?}");
        }
    }

    #[test]
    fn what_all_ranks_have_is_in_the_environment() {
        let var = |name: &str, value: &str| (name.as_bytes().to_vec(), value.as_bytes().to_vec());
        let base = [var("HOME", "/"), var("RANK", "9"), var("http_proxy", "x")];
        let patch = |rank: &str, seen: &str| {
            let mut env = EnvPatch::new();
            env.set("RANK", rank).set("WORLD_SIZE", "2").set("SEEN", seen).unset("http_proxy");
            env
        };
        let ranks = [rank("py a.py", patch("0", "a")), rank("py a.py", patch("1", "a"))];
        assert_eq!(environment(&base, &ranks), [var("HOME", "/"), var("WORLD_SIZE", "2"), var("SEEN", "a")]);
        let alone = environment(&base, &ranks[..1]);
        assert_eq!(alone, [var("HOME", "/"), var("RANK", "0"), var("WORLD_SIZE", "2"), var("SEEN", "a")]);
    }
}
