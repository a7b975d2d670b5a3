//! Changes to the environment that every process gets, independent of its framework.

use crate::model::EnvDelta;
use crate::plan::EnvOverflowFile;
use crate::plan::env::nested;
use crate::plan::env::nested::ExportHashes;
use crate::spec::SpecError;
use crate::spec::options::EnvVars;
use crate::spec::shown;
use crate::spec::spawn::options::python_int;
use std::fmt::Display;

/// The changes that Paddle's launcher makes for processes of every role: it moves lower-case proxy variables to other names,
/// because proxies break the traffic between ranks, and sets OMP_NUM_THREADS.
pub fn of_paddles_launcher(vars: &EnvVars) -> EnvDelta {
    let mut env = EnvDelta::new();
    for name in PROXIES {
        if let Some(value) = vars.get(name) {
            env.unset(name).set(format!("{name}_original"), value.as_str());
        }
    }
    set_openmp_threads(&mut env, vars);
    env
}

/// Sets OMP_NUM_THREADS as `import paddle` does in Paddle's launchers: 1 unless it is a whole number.
pub fn set_openmp_threads(env: &mut EnvDelta, vars: &EnvVars) {
    let given = vars.get(OMP_NUM_THREADS).map(String::as_str);
    let threads = given.and_then(|text| python_int(text).ok()).unwrap_or(1).to_string();
    if given != Some(&threads) {
        env.set(OMP_NUM_THREADS, threads);
    }
}

/// The warning about an OMP_NUM_THREADS that `set_openmp_threads` replaces by 1.
pub fn replaced_openmp_threads(vars: &EnvVars) -> Option<String> {
    let text = vars.get(OMP_NUM_THREADS).filter(|text| !text.is_empty() && python_int(text).is_err())?;
    Some(format!(
        "{OMP_NUM_THREADS} {}: is not a whole number, so ranks receive 1, as from Paddle's launcher; give a number",
        shown(text)
    ))
}

/// The variable with the number of threads of each rank.
pub const OMP_NUM_THREADS: &str = "OMP_NUM_THREADS";

/// Proxy variables that are removed from the environment of ranks.
pub const PROXIES: [&str; 2] = ["http_proxy", "https_proxy"];

/// Sets the network interface of gloo and NCCL, unless the user has. Each selects one by itself, which other nodes may not
/// reach: gloo the one with the address of the host's name, which is often loopback, NCCL the first that is neither
/// loopback nor a container's. For NCCL a bare name would be a prefix (its user guide, "NCCL_SOCKET_IFNAME").
pub fn set_interface(env: &mut EnvDelta, vars: &EnvVars, interface: &str) {
    for (name, value) in [("GLOO_SOCKET_IFNAME", interface.to_owned()), ("NCCL_SOCKET_IFNAME", format!("={interface}"))]
    {
        if !vars.contains_key(name) {
            env.set(name, value);
        }
    }
}

/// Maximum length of one variable in Linux, including the name and the terminating byte (execve(2)).
const MAX_VARIABLE: usize = 131_072;

/// Lists that move to the file of PADDLE_BACKUP_ENV_PATH, where Paddle reads them, if they reach PADDLE_ENV_LIMIT_LEN
/// (48000 bytes) or the maximum of Linux.
const LISTS: [&str; 2] = ["TRAINER_IP_PORT_LIST", "PADDLE_TRAINER_ENDPOINTS"];

/// Makes the last changes, after all others are in `env`: moves lists that are too long to a file, and sets the variables
/// for nested launchers. `name` is part of the file name, unique among the processes.
pub fn complete(
    env: &mut EnvDelta,
    vars: &EnvVars,
    log_dir: &str,
    name: impl Display,
    hashes: &mut ExportHashes,
) -> Result<Option<EnvOverflowFile>, SpecError> {
    set_crash_evidence(env, vars, log_dir);
    let env_overflow = move_long_lists(env, vars, log_dir, name);
    env.set(nested::OUTER_LOGS, log_dir);
    env.set(nested::EXPORTED, nested::exported(env, vars, hashes));
    match env.vars().iter().find(|(name, value)| name.len() + value.len() + 2 > MAX_VARIABLE) {
        None => Ok(env_overflow),
        Some((name, value)) => Err(SpecError::new(
            &**name,
            &**value,
            format!("is {} bytes long; the maximum in Linux is {}", value.len(), MAX_VARIABLE - name.len() - 2),
            "use fewer nodes or shorter names; the variable cannot be moved to a file",
        )),
    }
}

/// Makes crashes leave evidence, unless the user has decided: Python prints the stacks of a crash in native code (faulthandler), and
/// the flight recorder of torch, if it is on, writes to the log folder.
fn set_crash_evidence(env: &mut EnvDelta, vars: &EnvVars, log_dir: &str) {
    if !vars.contains_key(FAULTHANDLER) {
        env.set(FAULTHANDLER, "1");
    }
    let is_on = |size: &&str| vars.get(*size).is_some_and(|text| !matches!(text.trim(), "" | "0"));
    if RECORDER_SIZES.iter().any(is_on) && !RECORDER_FILES.iter().any(|file| vars.contains_key(*file)) {
        for file in RECORDER_FILES {
            env.set(file, format!("{log_dir}/rlaunch/flight_recorder_rank_"));
        }
    }
}

const FAULTHANDLER: &str = "PYTHONFAULTHANDLER";

/// Variables of torch's flight recorder, with their names before and since torch 2.8: how many collectives it keeps, and the beginning of
/// its files' names, to which each process adds its rank (torch.distributed, "Flight Recorder").
const RECORDER_SIZES: [&str; 2] = ["TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"];
const RECORDER_FILES: [&str; 2] = ["TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"];

/// Whether a list is too long for the environment.
pub fn is_too_long(list: &str, value: &str, vars: &EnvVars) -> bool {
    let limit = vars.get("PADDLE_ENV_LIMIT_LEN").and_then(|t| t.parse().ok()).unwrap_or(48_000);
    value.len() >= limit || list.len() + value.len() + 2 > MAX_VARIABLE
}

fn move_long_lists(env: &mut EnvDelta, vars: &EnvVars, log_dir: &str, name: impl Display) -> Option<EnvOverflowFile> {
    let mut long = Vec::new();
    for list in LISTS {
        let value = env.shared(list).or_else(|| Some(vars.get(list)?.as_str().into()));
        if let Some(value) = value.filter(|value| is_too_long(list, value, vars)) {
            env.unset(list);
            long.push((list.to_owned(), value));
        }
    }
    (!long.is_empty()).then(|| {
        let path = format!("{log_dir}/backup_env.{name}.json");
        env.set("PADDLE_BACKUP_ENV_PATH", path.as_str());
        EnvOverflowFile { path, vars: long }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn openmp_has_one_thread_unless_the_user_gives_a_number() {
        // As seen in ranks of Paddle's launchers.
        for (given, changed, is_replaced) in [
            (None, Some("1"), false),
            (Some(""), Some("1"), false),
            (Some("3"), None, false),
            (Some(" 03"), Some("3"), false),
            (Some("4,2"), Some("1"), true),
        ] {
            let vars: EnvVars = given.map(|text| (OMP_NUM_THREADS.to_owned(), text.to_owned())).into_iter().collect();
            assert_eq!(of_paddles_launcher(&vars).get(OMP_NUM_THREADS), changed, "{given:?}");
            assert_eq!(replaced_openmp_threads(&vars).is_some(), is_replaced, "{given:?}");
        }
    }

    #[test]
    fn crashes_leave_evidence_unless_the_user_has_decided() {
        let set = |vars: &[(&str, &str)]| {
            let vars = vars.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
            let mut env = EnvDelta::new();
            set_crash_evidence(&mut env, &vars, "/log");
            [FAULTHANDLER, RECORDER_FILES[0], RECORDER_FILES[1]].map(|name| env.get(name).map(str::to_owned))
        };
        let on = Some("1".to_owned());
        let file = Some("/log/rlaunch/flight_recorder_rank_".to_owned());
        assert_eq!(set(&[]), [on.clone(), None, None]);
        assert_eq!(set(&[(FAULTHANDLER, ""), (RECORDER_SIZES[0], "0")]), [None, None, None]);
        assert_eq!(set(&[(RECORDER_SIZES[1], "2000")]), [on.clone(), file.clone(), file]);
        assert_eq!(set(&[(RECORDER_SIZES[0], "2000"), (RECORDER_FILES[1], "/tmp/fr")]), [on, None, None]);
    }

    #[test]
    fn the_interface_is_set_unless_the_user_has_set_one() {
        let set = |vars: &EnvVars| {
            let mut env = EnvDelta::new();
            set_interface(&mut env, vars, "eth0");
            ["GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"].map(|name| env.get(name).map(str::to_owned))
        };
        let (gloo, nccl) = (Some("eth0".to_owned()), Some("=eth0".to_owned()));
        assert_eq!(set(&EnvVars::new()), [gloo.clone(), nccl.clone()]);
        assert_eq!(set(&EnvVars::from([("NCCL_SOCKET_IFNAME".into(), "ib".into())])), [gloo, None]);
        assert_eq!(set(&EnvVars::from([("GLOO_SOCKET_IFNAME".into(), String::new())])), [None, nccl]);
    }
}
