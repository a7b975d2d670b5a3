//! The kind of job: collective, parameter servers, RPC, or one of the legacy launcher.

use crate::spec::error::SpecError;
use crate::spec::legacy::collective;
use crate::spec::legacy::collective::LegacySpec;
use crate::spec::legacy::elastic;
use crate::spec::options::{EnvVars, OptValues};
use crate::spec::paddle::ps;
use crate::spec::paddle::ps::PsSpec;
use crate::spec::rendezvous;

/// The kind of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JobKind {
    /// Equal ranks.
    Collective,
    /// Equal ranks, as the legacy launcher starts them.
    Legacy(Box<LegacySpec>),
    /// Parameter servers and trainers.
    Ps(PsSpec),
    /// Ranks for remote procedure calls.
    Rpc,
}

/// Options that only jobs with parameter servers have.
const PS_OPTIONS: [&str; 4] = ["servers", "trainers", "server_num", "trainer_num"];
/// The same, of the legacy launcher only.
const LEGACY_PS_OPTIONS: [&str; 5] = ["workers", "worker_num", "coordinators", "coordinator_num", "http_port"];
/// The same, for jobs with later stages.
const HETER_OPTIONS: [&str; 3] = ["heter_workers", "heter_worker_num", "heter_devices"];

/// Determines the kind of job from `--run_mode`, or from options that only one kind has. `warnings` receives messages
/// for the user.
pub fn check(values: &OptValues, vars: &EnvVars, warnings: &mut Vec<String>) -> Result<JobKind, SpecError> {
    let given = |names: &[&'static str]| names.iter().copied().find(|name| values.is_set(name));
    let (own, legacy, heter) = (given(&PS_OPTIONS), given(&LEGACY_PS_OPTIONS), given(&HETER_OPTIONS));
    let is_legacy = collective::is_requested(values)?;
    if is_legacy {
        collective::check_mode(values, vars, warnings)?;
    }
    let mode = values.text("run_mode").unwrap_or("").to_ascii_lowercase();
    match (mode.as_str(), own.or(legacy).or(heter)) {
        ("collective" | "rpc", Some(name)) => {
            let hint = "leave out one of the two";
            Err(values.error(name, &format!("is only for parameter servers, and --run_mode is {mode}"), hint))
        }
        ("rpc", None) => Ok(JobKind::Rpc),
        ("" | "collective", None) if is_legacy => {
            Ok(JobKind::Legacy(Box::new(collective::check(values, vars, warnings)?)))
        }
        ("" | "collective", None) => Ok(JobKind::Collective),
        ("" | "ps" | "ps-heter", _) => {
            if let (Some(name), "ps") = (heter, mode.as_str()) {
                return Err(values.error(
                    name,
                    "is only for --run_mode ps-heter",
                    "give that mode, or leave out this option",
                ));
            }
            let heter = heter.is_some() || mode == "ps-heter";
            if is_legacy && elastic::is_requested(values, vars) {
                let hint = "leave out these options or variables, and list the servers";
                let why = "a job with parameter servers cannot be elastic (--elastic_server, PADDLE_ELASTIC_SERVER)";
                return Err(SpecError::new("--run_mode", "ps", why, hint));
            }
            let by_legacy_options = is_legacy || heter || legacy.is_some();
            let idle = ["nproc_per_node", "devices"].into_iter().take(if by_legacy_options { 1 } else { 2 });
            let idle = idle.filter(|name| values.given(name).is_some_and(|text| !text.trim().is_empty()));
            // Only options are named: a platform may set the variables for every job.
            let counted = !by_legacy_options && !values.is_set("servers");
            let others: &[&'static str] = match (counted, rendezvous::nnodes(values)) {
                (false, _) => &["start_port", "rank", "sort_ip"],
                // Several nodes find each other, and have an order.
                (true, Ok((_, 2..))) => &["start_port", "gloo_port", "elastic_level"],
                (true, _) => &["start_port", "rank", "sort_ip", "gloo_port"],
            };
            let others = others.iter().copied();
            for name in idle.chain(others.filter(|name| values.on_command_line(name).is_some())) {
                warnings.push(format!("--{name} has no effect on parameter servers"));
            }
            if by_legacy_options {
                ps::from_legacy_options(values, vars, heter, warnings).map(JobKind::Ps)
            } else {
                for (name, what) in [("server_num", "server"), ("trainer_num", "trainer")] {
                    if counted && values.text(name).is_some_and(|text| text.trim() == "0") {
                        warnings.push(format!(
                            "--{name} 0 starts 1 {what}, as in Paddle; for ranks without servers give --nproc_per_node"
                        ));
                    }
                }
                ps::from_launch_options(values, vars).map(JobKind::Ps)
            }
        }
        _ => Err(values.error("run_mode", "is not a run mode", "give collective, ps, ps-heter or rpc")),
    }
}
