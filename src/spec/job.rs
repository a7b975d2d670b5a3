//! What kind of job is asked for.

use super::SpecError;
use super::legacy::{self, LegacySpec};
use super::older_elastic;
use super::options::{Values, Vars};
use super::ps::{self, PsSpec};

/// The kind of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Job {
    /// Ranks that are all alike.
    Collective,
    /// The same, in the older launcher's ways.
    Legacy(Box<LegacySpec>),
    /// Servers that hold the parameters, and ranks that train.
    Ps(PsSpec),
    /// Ranks that call each other.
    Rpc,
}

/// Options that only parameter servers have, in the newer launcher's words.
const NEWER: [&str; 4] = ["servers", "trainers", "server_num", "trainer_num"];
/// The same, of the older launcher alone.
const OLDER: [&str; 5] = ["workers", "worker_num", "coordinators", "coordinator_num", "http_port"];
/// The same, for jobs with later stages.
const HETER: [&str; 3] = ["heter_workers", "heter_worker_num", "heter_devices"];

/// The kind of job, by `--run_mode` or by the options that only one kind has. `said` gets what the user should know.
pub fn check(values: &Values, vars: &Vars, said: &mut Vec<String>) -> Result<Job, SpecError> {
    let given = |names: &[&'static str]| names.iter().copied().find(|name| is_given(values, name));
    let (newer, older, heter) = (given(&NEWER), given(&OLDER), given(&HETER));
    let older_launcher = legacy::is_asked(values)?;
    if older_launcher {
        legacy::check_mode(values, vars, said)?;
    }
    let mode = values.text("run_mode").unwrap_or("").to_ascii_lowercase();
    match (mode.as_str(), newer.or(older).or(heter)) {
        ("collective" | "rpc", Some(name)) => {
            let hint = "leave one of the two out";
            Err(values.error(name, &format!("is for parameter servers, and --run_mode is {mode}"), hint))
        }
        ("rpc", None) => Ok(Job::Rpc),
        ("" | "collective", None) if older_launcher => Ok(Job::Legacy(Box::new(legacy::check(values, vars, said)?))),
        ("" | "collective", None) => Ok(Job::Collective),
        ("" | "ps" | "ps-heter", _) => {
            if let (Some(name), "ps") = (heter, mode.as_str()) {
                return Err(values.error(name, "is for --run_mode ps-heter", "give that, or leave this option out"));
            }
            let heter = heter.is_some() || mode == "ps-heter";
            if older_launcher && older_elastic::is_asked(values, vars) {
                let hint = "leave those words or variables out; servers are named by their lists";
                let why = "no job with parameter servers is elastic (--elastic_server, PADDLE_ELASTIC_SERVER)";
                return Err(SpecError::new("--run_mode", "ps", why, hint));
            }
            let in_older_words = older_launcher || heter || older.is_some();
            let idle = ["nproc_per_node", "devices"].into_iter().take(if in_older_words { 1 } else { 2 });
            let idle = idle.filter(|name| values.given(name).is_some_and(|text| !text.trim().is_empty()));
            // A platform may set their variables for every job. Counted processes get a free rendezvous' port.
            let counted = !in_older_words && !is_given(values, "servers");
            let words = ["start_port", "rank", "sort_ip", "gloo_port"].into_iter().take(if counted { 4 } else { 3 });
            for name in idle.chain(words.filter(|name| values.on_command_line(name).is_some())) {
                said.push(format!("--{name} has no effect on parameter servers"));
            }
            if in_older_words {
                ps::older(values, vars, heter, said).map(Job::Ps)
            } else {
                ps::newer(values, vars).map(Job::Ps)
            }
        }
        _ => Err(values.error("run_mode", "is no mode", "give collective, ps, ps-heter or rpc")),
    }
}

/// Nothing, and no processes, count as not given.
pub(super) fn is_given(values: &Values, name: &str) -> bool {
    values.given(name).is_some_and(|text| !matches!(text.trim(), "" | "0"))
}
