//! What changes in the environment of every process, whatever it is told of the job.

use super::nested::Hashes;
use super::{Backup, nested};
use crate::model::EnvPatch;
use crate::spec::SpecError;
use crate::spec::options::Vars;
use std::fmt::Display;

/// Lower-case proxies break the traffic between ranks: they are kept under another name.
pub fn proxies_set_aside(vars: &Vars) -> EnvPatch {
    let mut env = EnvPatch::new();
    for name in PROXIES {
        if let Some(value) = vars.get(name) {
            env.unset(name).set(format!("{name}_original"), value.as_str());
        }
    }
    env
}

/// Proxy variables that no rank sees.
pub const PROXIES: [&str; 2] = ["http_proxy", "https_proxy"];

/// Both look for an interface by themselves, and may find one that other nodes cannot reach: gloo the one with the
/// address of the host's name, which is often loopback's, NCCL the first that is neither loopback's nor a container's.
/// Each is told, unless the user has. To NCCL a bare name would be the beginning of any (its user guide,
/// "NCCL_SOCKET_IFNAME").
pub fn set_interface(env: &mut EnvPatch, vars: &Vars, interface: &str) {
    for (name, value) in [("GLOO_SOCKET_IFNAME", interface.to_owned()), ("NCCL_SOCKET_IFNAME", format!("={interface}"))]
    {
        if !vars.contains_key(name) {
            env.set(name, value);
        }
    }
}

/// Linux takes no string of more than 128 KiB into an environment, name and end included (execve(2)).
const LONGEST: usize = 131_072;

/// Lists that are left out of the environment when they reach PADDLE_ENV_LIMIT_LEN (48000 bytes), or what Linux
/// takes; their readers look into PADDLE_BACKUP_ENV_PATH then.
const LISTS: [&str; 2] = ["TRAINER_IP_PORT_LIST", "PADDLE_TRAINER_ENDPOINTS"];

/// The last changes, once all others are in `env`: what is too long goes into a file, and a nested launcher is told
/// what it inherits. `name` tells the file from those of other processes.
pub fn complete(
    env: &mut EnvPatch,
    vars: &Vars,
    log_dir: &str,
    name: impl Display,
    hashes: &mut Hashes,
) -> Result<Option<Backup>, SpecError> {
    let backup = set_aside_too_long(env, vars, log_dir, name);
    env.set(nested::OUTER_LOGS, log_dir);
    env.set(nested::EXPORTED, nested::exported(env, vars, hashes));
    match env.vars().iter().find(|(name, value)| name.len() + value.len() + 2 > LONGEST) {
        None => Ok(backup),
        Some((name, value)) => Err(SpecError::new(
            &**name,
            &**value,
            format!("is {} bytes long; Linux takes {} at most", value.len(), LONGEST - name.len() - 2),
            "use fewer nodes or shorter names: its readers look for it in the environment alone",
        )),
    }
}

/// Whether a list is left out of the environment for its length.
pub fn is_too_long(list: &str, value: &str, vars: &Vars) -> bool {
    let limit = vars.get("PADDLE_ENV_LIMIT_LEN").and_then(|t| t.parse().ok()).unwrap_or(48_000);
    value.len() >= limit || list.len() + value.len() + 2 > LONGEST
}

fn set_aside_too_long(env: &mut EnvPatch, vars: &Vars, log_dir: &str, name: impl Display) -> Option<Backup> {
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
        Backup { path, vars: long }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interface_is_told_to_each_that_the_user_has_told_none() {
        let told = |vars: &Vars| {
            let mut env = EnvPatch::new();
            set_interface(&mut env, vars, "eth0");
            ["GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"].map(|name| env.get(name).map(str::to_owned))
        };
        let (gloo, nccl) = (Some("eth0".to_owned()), Some("=eth0".to_owned()));
        assert_eq!(told(&Vars::new()), [gloo.clone(), nccl.clone()]);
        assert_eq!(told(&Vars::from([("NCCL_SOCKET_IFNAME".into(), "ib".into())])), [gloo, None]);
        assert_eq!(told(&Vars::from([("GLOO_SOCKET_IFNAME".into(), String::new())])), [None, nccl]);
    }
}
