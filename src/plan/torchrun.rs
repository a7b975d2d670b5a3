//! Plan of a torchrun job: command, environment and output routing of each worker.

use crate::framework::torch;
use crate::framework::torch::{TorchWorker, WorkerGroup};
use crate::framework::{Binding, paddle_launch};
use crate::model::{CpuSet, Endpoint, EnvDelta, Role};
use crate::plan::env::base_env;
use crate::plan::env::frameworks;
use crate::plan::env::frameworks::ExtraFrameworks;
use crate::plan::env::nested::ExportHashes;
use crate::plan::{
    AttemptText, LaunchContext, LineFilter, OutputPlan, PerAttemptEnv, Plan, RankPlan, ShownStream, Stream, StreamSink,
};
use crate::spec::SpecError;
use crate::spec::frameworks::Framework;
use crate::spec::options::EnvVars;
use crate::spec::torchrun::{LogDir, OutputCapture, StreamRoute, TorchScript, TorchSpec};
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::sync::Arc;

/// Position of this node in its job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodePosition {
    /// Number of this node.
    pub node: usize,
    /// Number of nodes.
    pub nnodes: usize,
    /// Rank of its first worker.
    pub first_rank: usize,
    /// Number of workers in the job.
    pub world_size: usize,
    /// Rank of its first worker among the workers of its role.
    pub first_role_rank: usize,
    /// Number of workers of its role in the job.
    pub role_size: usize,
    /// Endpoint of the store.
    pub master: Endpoint,
    /// Variables of frameworks other than torch.
    pub extra_frameworks: ExtraFrameworks,
    /// Network interface to the other nodes, if known and not loopback.
    pub interface: Option<String>,
}

impl NodePosition {
    /// The position of a single node.
    pub fn single_node(workers: usize, master: Endpoint) -> Self {
        Self {
            node: 0,
            nnodes: 1,
            first_rank: 0,
            world_size: workers,
            first_role_rank: 0,
            role_size: workers,
            master,
            extra_frameworks: ExtraFrameworks::default(),
            interface: None,
        }
    }

    /// The position of a node among nodes with the same number of workers.
    pub fn among_equal_nodes(workers: usize, (node, nnodes): (usize, usize), master: Endpoint) -> Self {
        let (first_rank, world_size) = (node * workers, nnodes * workers);
        let single = Self::single_node(workers, master);
        Self { node, nnodes, first_rank, world_size, first_role_rank: first_rank, role_size: world_size, ..single }
    }
}

/// Shown streams by local rank.
pub type ShownStreams = BTreeMap<(usize, Stream), ShownStream>;

/// The plan for this node. `run_id`: name of the job; `host`: short name of this machine; `workers`: number of workers on
/// this node; `threads`: OMP_NUM_THREADS, if the launcher sets it; `cpus`: CPUs of each worker, if they are bound.
pub fn plan(
    spec: &TorchSpec,
    vars: &EnvVars,
    context: &LaunchContext,
    (run_id, host): (&str, &str),
    (workers, threads, cpus): (usize, Option<usize>, &[CpuSet]),
    position: &NodePosition,
) -> Result<(Plan, ShownStreams), SpecError> {
    let group = WorkerGroup {
        master: position.master.clone(),
        agent_store: true,
        run_id: run_id.to_owned(),
        role: spec.role.clone(),
        max_restarts: spec.max_restarts,
        signals: spec.signals_text.clone(),
        async_error_handling: frameworks::async_error_handling(vars),
    };
    let (mut shown, mut hashes) = (ShownStreams::new(), ExportHashes::default());
    let mut ranks = Vec::with_capacity(workers);
    for local_rank in 0..workers {
        let worker = TorchWorker {
            rank: position.first_rank + local_rank,
            world_size: position.world_size,
            local_rank,
            local_size: workers,
            node: position.node,
            nnodes: position.nnodes,
            role_rank: position.first_role_rank + local_rank,
            role_size: position.role_size,
            virtual_local_rank: spec.virtual_local_rank,
        };
        let mut env = EnvDelta::new();
        if spec.frameworks.contains(&Framework::Torch) {
            torch::write(&worker, &group, &mut env);
        }
        position.extra_frameworks.write(&worker, &context.log_dir, vars, &mut env);
        if let Some(threads) = threads {
            env.set("OMP_NUM_THREADS", threads.to_string());
        }
        if let Some(interface) = &position.interface {
            base_env::set_interface(&mut env, vars, interface);
        }
        if spec.virtual_local_rank {
            restrict_to_one_device(local_rank, vars, &mut env)?;
        }
        let env_overflow = base_env::complete(&mut env, vars, &context.log_dir, worker.rank, &mut hashes)?;
        let error_file = (spec.log_dir != LogDir::Nowhere)
            .then(|| AttemptText::new(format!("{}/attempt_", context.log_dir), format!("/{local_rank}/error.json")));
        let prefix = prefix(spec, &worker, host);
        let sinks = Stream::BOTH.map(|stream| {
            let (sink, lines) = sink(spec, stream, local_rank);
            let whole = (workers > 1).then(String::new);
            let how = match lines {
                ShownLines::Hidden => None,
                ShownLines::Unchanged => Some(ShownStream { prefix: whole, pty: spec.pty }),
                ShownLines::Prefixed => Some(ShownStream { prefix: Some(prefix.clone()), pty: false }),
            };
            shown.extend(how.map(|how| ((local_rank, stream), how)));
            sink
        });
        ranks.push(RankPlan {
            role: Role::Trainer,
            rank: worker.rank,
            endpoint: None,
            binding: Binding::Cpu,
            argv: argv(spec, &context.python, local_rank),
            env,
            cpus: cpus.get(local_rank).cloned(),
            per_attempt: Some(PerAttemptEnv { error_file, restarts: None }),
            output: OutputPlan::Separate(sinks),
            env_overflow,
        });
    }
    let pod = paddle_launch::PodInfo { name: String::new(), log_dir: context.log_dir.clone(), auto_cluster: false };
    let (nnodes, world_size, job_id) =
        (position.nnodes, position.world_size, spec.name.as_deref().unwrap_or(run_id).to_owned());
    Ok((Plan { ranks, nnodes, world_size, pod, job_id, mode: "torch", awaits_servers: false }, shown))
}

/// The filter files of `--duplicate-stdout-filters` and `--duplicate-stderr-filters`.
pub fn filters(spec: &TorchSpec) -> Vec<LineFilter> {
    let texts = [&spec.duplicate_stdout_filters, &spec.duplicate_stderr_filters];
    let wanted = Stream::BOTH.into_iter().zip(texts);
    let wanted = wanted.filter(|(_, texts)| !texts.is_empty() && spec.log_dir != LogDir::Nowhere);
    let file = |stream: Stream| AttemptText::new("attempt_", format!("/filtered_{}", stream.log()));
    wanted.map(|(stream, texts)| LineFilter { stream, texts: texts.clone(), file: file(stream) }).collect()
}

/// How the lines of a captured stream are shown.
enum ShownLines {
    Hidden,
    Unchanged,
    Prefixed,
}

fn sink(spec: &TorchSpec, stream: Stream, local_rank: usize) -> (StreamSink, ShownLines) {
    let routing = spec.streams.of(local_rank);
    let wanted = match stream {
        Stream::Stdout => routing.stdout,
        Stream::Stderr => routing.stderr,
    };
    let hidden = spec.local_ranks_filter.as_ref().is_some_and(|shown| !shown.contains(&local_rank));
    let tail = format!("/{local_rank}/{}", stream.log());
    let has_log = |wanted: StreamRoute| (wanted.redirect || wanted.tee) && spec.log_dir != LogDir::Nowhere;
    if has_log(wanted) {
        let lines = if wanted.tee && !hidden { ShownLines::Prefixed } else { ShownLines::Hidden };
        return (StreamSink::File(AttemptText::new("attempt_", tail)), lines);
    }
    let captured = |tail: String| StreamSink::Captured(AttemptText::new("rlaunch/attempt_", tail));
    let shown = if hidden { ShownLines::Hidden } else { ShownLines::Unchanged };
    match (stream, spec.capture) {
        (_, OutputCapture::Both { joined: true })
            if !hidden && !has_log(routing.stdout) && !has_log(routing.stderr) =>
        {
            // The file is followed once, as that of stdout.
            let lines = if stream == Stream::Stdout { shown } else { ShownLines::Hidden };
            return (captured(format!("/{local_rank}/output.log")), lines);
        }
        (Stream::Stdout, OutputCapture::Both { .. }) if !hidden => return (captured(tail), shown),
        (Stream::Stderr, OutputCapture::Stderr | OutputCapture::Both { .. }) => return (captured(tail), shown),
        _ => {}
    }
    (if hidden { StreamSink::Dropped } else { StreamSink::Inherited }, ShownLines::Hidden)
}

/// `[default0]:`, or the template with its placeholders replaced.
fn prefix(spec: &TorchSpec, worker: &TorchWorker, host: &str) -> String {
    let Some(template) = &spec.prefix_template else { return format!("[{}{}]:", spec.role, worker.local_rank) };
    let value = |name: &str| match name {
        "role_name" => Some(spec.role.clone()),
        "local_rank" => Some(worker.local_rank.to_string()),
        "rank" => Some(worker.rank.to_string()),
        "hostname" => Some(host.to_owned()),
        _ => None,
    };
    String::from_utf8_lossy(&substituted(template.as_bytes(), &value)).into_owned()
}

/// Program and arguments of one worker. `${local_rank}` in an argument is replaced by its local rank.
fn argv(spec: &TorchSpec, python: &OsStr, local_rank: usize) -> Arc<[OsString]> {
    let of_python = |options: &[&str]| -> Vec<OsString> {
        std::iter::once(python.to_owned()).chain(options.iter().map(OsString::from)).collect()
    };
    let (mut argv, script) = match &spec.script {
        TorchScript::Python(name) => (of_python(&["-u"]), Some(name)),
        TorchScript::Module(name) => (of_python(&["-u", "-m"]), Some(name)),
        TorchScript::RunPath(name) => (of_python(&["-u", "-m", "rlaunch._elastic.run_path"]), Some(name)),
        TorchScript::Program(name) => (vec![name.clone()], None),
    };
    let value = |name: &str| (name == "local_rank").then(|| local_rank.to_string());
    let given = script.into_iter().chain(&spec.args);
    let mut given: Vec<OsString> = given.map(|arg| OsString::from_vec(substituted(arg.as_bytes(), &value))).collect();
    if spec.pass_local_rank {
        given.insert(usize::from(script.is_some()), format!("--local-rank={local_rank}").into());
    }
    argv.extend(given);
    argv.into()
}

/// Like `string.Template.safe_substitute`: replaces `$name` and `${name}` if `value` knows the name (ASCII letters, digits
/// and `_`) and `$$` by `$`; everything else stays.
fn substituted(text: &[u8], value: &dyn Fn(&str) -> Option<String>) -> Vec<u8> {
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
        let known = std::str::from_utf8(&name[..length]).ok().filter(|_| length > 0 && closed).and_then(value);
        match known {
            Some(text) => {
                out.extend_from_slice(text.as_bytes());
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

/// `--virtual-local-rank`: makes one device visible to each worker, from the launcher's list or by its local rank.
fn restrict_to_one_device(local_rank: usize, vars: &EnvVars, env: &mut EnvDelta) -> Result<(), SpecError> {
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

/// Name of the job in its failure report: the script, the module or the program.
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
    fn placeholders_are_replaced_like_string_template() {
        let value = |name: &str| (name == "local_rank").then(|| "3".to_owned());
        for (text, expected) in [
            ("a", "a"),
            ("--x=${local_rank}", "--x=3"),
            ("$local_rank.log", "3.log"),
            ("$local_rank2 ${local_rank", "$local_rank2 ${local_rank"),
            ("$$local_rank $${local_rank}", "$local_rank ${local_rank}"),
            ("$ $5 ${} ${other} $", "$ $5 ${} ${other} $"),
        ] {
            assert_eq!(substituted(text.as_bytes(), &value), expected.as_bytes(), "{text}");
        }
    }
}
