//! The workers of a job in torchrun's words: their commands, what they are told, where their output goes.

use super::dialects::{self, Beside};
use super::nested::Hashes;
use super::{Elastic, Filter, HostFacts, Output, PerAttempt, Plan, RankPlan, Sink, Stream, surroundings};
use crate::dialect::torch::{self, Group, Worker};
use crate::dialect::{Binding, paddle_launch};
use crate::model::{CpuSet, Endpoint, EnvPatch, Role};
use crate::spec::SpecError;
use crate::spec::dialects::Dialect;
use crate::spec::options::Vars;
use crate::spec::torchrun::{Capture, LogDir, TorchScript, TorchSpec};
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::sync::Arc;

/// Where this node stands in its job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// This node's number.
    pub node: usize,
    /// Nodes in the job.
    pub nnodes: usize,
    /// Its first worker's number.
    pub first_rank: usize,
    /// Workers in the job.
    pub world_size: usize,
    /// Its first worker's number among those of its role.
    pub first_role_rank: usize,
    /// Workers of its role in the job.
    pub role_size: usize,
    /// Where the store listens.
    pub master: Endpoint,
    /// What the workers are told for other frameworks.
    pub beside: Beside,
    /// The interface that leads to the other nodes, if it is known and not loopback.
    pub interface: Option<String>,
}

impl Place {
    /// Of a node that is alone.
    pub fn alone(workers: usize, master: Endpoint) -> Self {
        Self {
            node: 0,
            nnodes: 1,
            first_rank: 0,
            world_size: workers,
            first_role_rank: 0,
            role_size: workers,
            master,
            beside: Beside::default(),
            interface: None,
        }
    }

    /// Of one among nodes that are all alike.
    pub fn among_alike(workers: usize, (node, nnodes): (usize, usize), master: Endpoint) -> Self {
        let (first_rank, world_size) = (node * workers, nnodes * workers);
        let alone = Self::alone(workers, master);
        Self { node, nnodes, first_rank, world_size, first_role_rank: first_rank, role_size: world_size, ..alone }
    }
}

/// Whose lines of which stream are shown, and what stands before each; `None`: shown byte for byte.
pub type Shown = BTreeMap<(usize, Stream), Option<String>>;

/// The plan for this node. `run_id`: the job's name; `workers`: how many on this node; `threads`: OMP_NUM_THREADS, if
/// the launcher sets it; `cpus`: those of each worker, if they are bound to any; `host`: this machine's short name.
pub fn plan(
    spec: &TorchSpec,
    vars: &Vars,
    facts: &HostFacts,
    (run_id, host): (&str, &str),
    (workers, threads, cpus): (usize, Option<usize>, &[CpuSet]),
    place: &Place,
) -> Result<(Plan, Shown), SpecError> {
    let group = Group {
        master: place.master.clone(),
        agent_store: true,
        run_id: run_id.to_owned(),
        role: spec.role.clone(),
        max_restarts: spec.max_restarts,
        signals: spec.signals_text.clone(),
        async_error_handling: dialects::async_error_handling(vars),
    };
    let (mut shown, mut hashes) = (Shown::new(), Hashes::default());
    let mut ranks = Vec::with_capacity(workers);
    for local_rank in 0..workers {
        let worker = Worker {
            rank: place.first_rank + local_rank,
            world_size: place.world_size,
            local_rank,
            local_size: workers,
            node: place.node,
            nnodes: place.nnodes,
            role_rank: place.first_role_rank + local_rank,
            role_size: place.role_size,
            virtual_local_rank: spec.virtual_local_rank,
        };
        let mut env = EnvPatch::new();
        if spec.dialects.contains(&Dialect::Torch) {
            torch::write(&worker, &group, &mut env);
        }
        place.beside.write(&worker, &facts.log_dir, vars, &mut env);
        if let Some(threads) = threads {
            env.set("OMP_NUM_THREADS", threads.to_string());
        }
        if let Some(interface) = &place.interface {
            surroundings::set_interface(&mut env, vars, interface);
        }
        if spec.virtual_local_rank {
            see_one_device(local_rank, vars, &mut env)?;
        }
        let backup = surroundings::complete(&mut env, vars, &facts.log_dir, worker.rank, &mut hashes)?;
        let error_file = (spec.log_dir != LogDir::Nowhere)
            .then(|| PerAttempt::new(format!("{}/attempt_", facts.log_dir), format!("/{local_rank}/error.json")));
        let prefix = prefix(spec, &worker, host);
        let sinks = Stream::BOTH.map(|stream| {
            let (sink, lines) = sink(spec, stream, local_rank);
            let whole = (workers > 1).then(String::new);
            match lines {
                Lines::Hidden => None,
                Lines::AsTheyAre => shown.insert((local_rank, stream), whole),
                Lines::Prefixed => shown.insert((local_rank, stream), Some(prefix.clone())),
            };
            sink
        });
        ranks.push(RankPlan {
            role: Role::Trainer,
            rank: worker.rank,
            endpoint: None,
            binding: Binding::Cpu,
            argv: argv(spec, &facts.python, local_rank),
            env,
            cpus: cpus.get(local_rank).cloned(),
            elastic: Some(Elastic { error_file, restarts: None }),
            output: Output::Apart(sinks),
            backup,
        });
    }
    let pod = paddle_launch::Pod { name: String::new(), log_dir: facts.log_dir.clone(), auto_cluster: false };
    let (nnodes, world_size, job_id) = (place.nnodes, place.world_size, run_id.to_owned());
    Ok((Plan { ranks, nnodes, world_size, pod, job_id, mode: "torch", servers_end: false }, shown))
}

/// The files for lines that somebody looks for.
pub fn filters(spec: &TorchSpec) -> Vec<Filter> {
    let texts = [&spec.duplicate_stdout_filters, &spec.duplicate_stderr_filters];
    let wanted = Stream::BOTH.into_iter().zip(texts);
    let wanted = wanted.filter(|(_, texts)| !texts.is_empty() && spec.log_dir != LogDir::Nowhere);
    let file = |stream: Stream| PerAttempt::new("attempt_", format!("/filtered_{}", stream.log()));
    wanted.map(|(stream, texts)| Filter { stream, texts: texts.clone(), file: file(stream) }).collect()
}

/// What is shown of a stream that a launcher reads.
enum Lines {
    Hidden,
    AsTheyAre,
    Prefixed,
}

fn sink(spec: &TorchSpec, stream: Stream, local_rank: usize) -> (Sink, Lines) {
    let ways = spec.streams.of(local_rank);
    let wanted = match stream {
        Stream::Stdout => ways.stdout,
        Stream::Stderr => ways.stderr,
    };
    let hidden = spec.local_ranks_filter.as_ref().is_some_and(|shown| !shown.contains(&local_rank));
    let tail = format!("/{local_rank}/{}", stream.log());
    if (wanted.redirect || wanted.tee) && spec.log_dir != LogDir::Nowhere {
        let lines = if wanted.tee && !hidden { Lines::Prefixed } else { Lines::Hidden };
        return (Sink::File(PerAttempt::new("attempt_", tail)), lines);
    }
    if stream == Stream::Stderr && spec.capture == Capture::Stderr {
        let lines = if hidden { Lines::Hidden } else { Lines::AsTheyAre };
        return (Sink::Captured(PerAttempt::new("rlaunch/attempt_", tail)), lines);
    }
    (if hidden { Sink::Dropped } else { Sink::Inherited }, Lines::Hidden)
}

/// `[default0]:`, or the template with its words replaced.
fn prefix(spec: &TorchSpec, worker: &Worker, host: &str) -> String {
    let Some(template) = &spec.prefix_template else { return format!("[{}{}]:", spec.role, worker.local_rank) };
    let word = |name: &str| match name {
        "role_name" => Some(spec.role.clone()),
        "local_rank" => Some(worker.local_rank.to_string()),
        "rank" => Some(worker.rank.to_string()),
        "hostname" => Some(host.to_owned()),
        _ => None,
    };
    String::from_utf8_lossy(&substituted(template.as_bytes(), &word)).into_owned()
}

/// Program and arguments of one worker. `${local_rank}` in an argument is its number.
fn argv(spec: &TorchSpec, python: &OsStr, local_rank: usize) -> Arc<[OsString]> {
    let of_python = |options: &[&str]| -> Vec<OsString> {
        std::iter::once(python.to_owned()).chain(options.iter().map(OsString::from)).collect()
    };
    let (mut argv, script) = match &spec.script {
        TorchScript::Python(name) => (of_python(&["-u"]), Some(name)),
        TorchScript::Module(name) => (of_python(&["-u", "-m"]), Some(name)),
        TorchScript::RunPath(name) => (of_python(&["-u", "-m", "rlaunch._run_path"]), Some(name)),
        TorchScript::Program(name) => (vec![name.clone()], None),
    };
    let word = |name: &str| (name == "local_rank").then(|| local_rank.to_string());
    let given = script.into_iter().chain(&spec.args);
    let mut given: Vec<OsString> = given.map(|arg| OsString::from_vec(substituted(arg.as_bytes(), &word))).collect();
    if spec.pass_local_rank {
        given.insert(usize::from(script.is_some()), format!("--local-rank={local_rank}").into());
    }
    argv.extend(given);
    argv.into()
}

/// As `string.Template.safe_substitute` does it: `$name` and `${name}` where `word` knows the name (letters, digits and
/// `_` of ASCII), `$$` is `$`, and all else stays.
fn substituted(text: &[u8], word: &dyn Fn(&str) -> Option<String>) -> Vec<u8> {
    let (mut out, mut rest) = (Vec::with_capacity(text.len()), text);
    while let Some(at) = rest.iter().position(|byte| *byte == b'$') {
        out.extend_from_slice(&rest[..at]);
        rest = &rest[at + 1..];
        if rest.first() == Some(&b'$') {
            out.push(b'$');
            rest = &rest[1..];
            continue;
        }
        let braced = rest.first() == Some(&b'{');
        let name = &rest[usize::from(braced)..];
        let length = name.iter().enumerate().take_while(|(i, b)| is_of_name(**b, *i == 0)).count();
        let closed = !braced || name.get(length) == Some(&b'}');
        let known = std::str::from_utf8(&name[..length]).ok().filter(|_| length > 0 && closed).and_then(word);
        match known {
            Some(value) => {
                out.extend_from_slice(value.as_bytes());
                rest = &rest[length + 2 * usize::from(braced)..];
            }
            None => out.push(b'$'),
        }
    }
    out.extend_from_slice(rest);
    out
}

fn is_of_name(byte: u8, first: bool) -> bool {
    byte == b'_' || byte.is_ascii_alphabetic() || !first && byte.is_ascii_digit()
}

/// `--virtual-local-rank`: each worker sees one device of the launcher's list, or the one with its number.
fn see_one_device(local_rank: usize, vars: &Vars, env: &mut EnvPatch) -> Result<(), SpecError> {
    let hip = vars.get("HIP_VISIBLE_DEVICES").filter(|list| !list.is_empty());
    let (name, list) = match hip {
        Some(list) => ("HIP_VISIBLE_DEVICES", Some(list)),
        None => ("CUDA_VISIBLE_DEVICES", vars.get("CUDA_VISIBLE_DEVICES")),
    };
    let device = match list {
        None => local_rank.to_string(),
        Some(list) => match list.split(',').nth(local_rank) {
            Some(device) => device.trim().to_owned(),
            None => {
                let why = format!("has no device for local_rank {local_rank}");
                let hint = "name as many devices as there are workers, or leave out --virtual-local-rank";
                return Err(SpecError::new(name, list, why, hint));
            }
        },
    };
    env.set("CUDA_VISIBLE_DEVICES", device.as_str());
    if hip.is_some() {
        env.set("HIP_VISIBLE_DEVICES", device);
    }
    Ok(())
}

/// What the job is called in its report: the script, the module or the program.
pub fn title(spec: &TorchSpec) -> String {
    match &spec.script {
        TorchScript::Python(name) | TorchScript::Module(name) | TorchScript::Program(name) => {
            name.to_string_lossy().into_owned()
        }
        TorchScript::RunPath(_) => "run_script_path".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_replaced_as_pythons_template_does_it() {
        let word = |name: &str| (name == "local_rank").then(|| "3".to_owned());
        for (text, expected) in [
            ("a", "a"),
            ("--x=${local_rank}", "--x=3"),
            ("$local_rank.log", "3.log"),
            ("$local_rank2 ${local_rank", "$local_rank2 ${local_rank"),
            ("$$local_rank $${local_rank}", "$local_rank ${local_rank}"),
            ("$ $5 ${} ${other} $", "$ $5 ${} ${other} $"),
        ] {
            assert_eq!(substituted(text.as_bytes(), &word), expected.as_bytes(), "{text}");
        }
    }
}
