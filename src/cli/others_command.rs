//! The command line for the other nodes, from that of the node which serves the master.

use super::dry_run::shell_line;
use super::grammar::{self, Parsed};
use crate::spec::meeting::Meeting;
use crate::spec::options::{Kind, OPTIONS};
use std::borrow::Cow;
use std::ffi::OsString;

/// What is this node's alone, or nobody else's business on a screen, or said anew.
const OWN: [&str; 7] = ["rank", "host", "master", "nnodes", "job_id", "job_key", "etcd_user"];

/// The words after `--master`, for a shell: those of this node without what is its own, and how many nodes there are,
/// whoever said that here.
pub fn words(args: &[OsString], meeting: &Meeting) -> String {
    let Parsed::Job(flags, script) = grammar::parse(args) else { return String::new() };
    let (min, max) = meeting.nodes;
    let nodes = if min == max { max.to_string() } else { format!("{min}:{max}") };
    let mut words: Vec<Cow<'_, str>> = vec!["--nnodes".into(), nodes.into()];
    if meeting.name != "default" {
        words.extend(["--job_id".into(), meeting.name.as_str().into()]);
    }
    for opt in OPTIONS.iter().filter(|opt| !OWN.contains(&opt.name)) {
        match flags.get(opt.name) {
            Some(_) if opt.kind == Kind::Flag => words.push(format!("--{}", opt.name).into()),
            // What begins with a dash is a value behind `=` alone, and some options have one nowhere else.
            Some(text) => words.push(format!("--{}={text}", opt.name).into()),
            None => {}
        }
    }
    let script: Vec<String> = script.iter().map(|word| word.to_string_lossy().into_owned()).collect();
    words.extend(script.into_iter().map(Cow::from));
    shell_line(&words)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // A test fails by panicking.
    use super::*;
    use crate::spec::meeting;
    use crate::spec::options::{Vars, merge};
    use std::collections::BTreeMap;

    fn said(line: &str, nodes: &str) -> String {
        let args: Vec<OsString> = line.split(' ').map(OsString::from).collect();
        let vars = Vars::from([("PADDLE_NNODES".into(), nodes.into())]);
        let meeting = meeting::check(&merge(&BTreeMap::new(), &vars), &mut Vec::new()).unwrap().unwrap();
        words(&args, &meeting)
    }

    #[test]
    fn what_is_this_nodes_alone_is_left_out_however_it_is_written() {
        for own in ["--rank 0", "--rank=0", "--ran 0", "--host 10.0.0.1", "--ho=10.0.0.1", "--job_key x", "--job-key=x"]
        {
            assert_eq!(said(&format!("{own} --nproc 2 t.py"), "2"), "--nnodes 2 --nproc_per_node=2 t.py", "{own}");
        }
        assert_eq!(said("--etcd_user u:p t.py", "2"), "--nnodes 2 t.py");
    }

    #[test]
    fn the_number_of_nodes_is_said_whoever_said_it() {
        assert_eq!(said("t.py", "2:4"), "--nnodes 2:4 t.py");
        assert_eq!(said("--nnodes 7 t.py", "3"), "--nnodes 3 t.py");
    }

    #[test]
    fn the_rest_is_kept_and_what_is_the_scripts_too() {
        assert_eq!(said("--log_dir a t.py --rank 0 --host=x", "2"), "--nnodes 2 --log_dir=a t.py --rank 0 --host=x");
        assert_eq!(said("--gpus 0,1 -m pkg.mod -m x", "2"), "--nnodes 2 --devices=0,1 --module pkg.mod -m x");
        assert_eq!(said("--elastic_level -1 t.py", "2"), "--nnodes 2 --elastic_level=-1 t.py");
    }
}
