//! The command line for the other nodes, from that of the node that serves the master.

use crate::cli::common::dry_run::shell_line;
use crate::cli::paddle::parse;
use crate::cli::paddle::parse::PaddleArgs;
use crate::spec::options::OptKind;
use crate::spec::paddle::options::OPTIONS;
use crate::spec::rendezvous::RendezvousSpec;
use std::borrow::Cow;
use std::ffi::OsString;

/// Options that are this node's own, secret, or added anew.
const LEFT_OUT: [&str; 7] = ["rank", "host", "master", "nnodes", "job_id", "job_secret", "etcd_user"];

/// The arguments after `--master`, quoted for a shell: this node's without `LEFT_OUT`, and the number of nodes wherever it
/// was given here.
pub fn peer_arguments(args: &[OsString], rendezvous: &RendezvousSpec) -> String {
    let Ok(PaddleArgs::Job { flags, rest: script, .. }) = parse::parse(args) else { return String::new() };
    let (min, max) = rendezvous.nodes;
    let nodes = if min == max { max.to_string() } else { format!("{min}:{max}") };
    let mut words: Vec<Cow<'_, str>> = vec!["--nnodes".into(), nodes.into()];
    if rendezvous.job_name != "default" {
        words.extend(["--job_id".into(), rendezvous.job_name.as_str().into()]);
    }
    for opt in OPTIONS.iter().filter(|opt| !LEFT_OUT.contains(&opt.name)) {
        match flags.get(opt.name) {
            Some(_) if opt.kind == OptKind::Flag => words.push(format!("--{}", opt.name).into()),
            // A value that begins with a dash has to stand behind `=`, and some options take one only there.
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
    use crate::spec::options::EnvVars;
    use crate::spec::paddle::options::merge;
    use crate::spec::rendezvous;
    use std::collections::BTreeMap;

    fn arguments_for(line: &str, nodes: &str) -> String {
        let args: Vec<OsString> = line.split(' ').map(OsString::from).collect();
        let vars = EnvVars::from([("PADDLE_NNODES".into(), nodes.into())]);
        let rendezvous = rendezvous::check(&merge(&BTreeMap::new(), &vars), &mut Vec::new()).unwrap().unwrap();
        peer_arguments(&args, &rendezvous)
    }

    #[test]
    fn options_of_this_node_are_left_out_in_every_spelling() {
        for own in
            ["--rank 0", "--rank=0", "--ran 0", "--host 10.0.0.1", "--ho=10.0.0.1", "--job_secret x", "--job-secret=x"]
        {
            assert_eq!(
                arguments_for(&format!("{own} --nproc 2 t.py"), "2"),
                "--nnodes 2 --nproc_per_node=2 t.py",
                "{own}"
            );
        }
        assert_eq!(arguments_for("--etcd_user u:p t.py", "2"), "--nnodes 2 t.py");
    }

    #[test]
    fn the_number_of_nodes_is_given_wherever_it_comes_from() {
        assert_eq!(arguments_for("t.py", "2:4"), "--nnodes 2:4 t.py");
        assert_eq!(arguments_for("--nnodes 7 t.py", "3"), "--nnodes 3 t.py");
    }

    #[test]
    fn the_rest_and_the_scripts_arguments_are_kept() {
        assert_eq!(
            arguments_for("--log_dir a t.py --rank 0 --host=x", "2"),
            "--nnodes 2 --log_dir=a t.py --rank 0 --host=x"
        );
        assert_eq!(arguments_for("--gpus 0,1 -m pkg.mod -m x", "2"), "--nnodes 2 --devices=0,1 --module pkg.mod -m x");
        assert_eq!(arguments_for("--elastic_level -1 t.py", "2"), "--nnodes 2 --elastic_level=-1 t.py");
    }
}
