//! The variables of a legacy job, as captured under the real launcher.

use super::{nvidia, planned};
use std::collections::BTreeMap;

/// Names and values as captured under the real launcher of 3.3.1, on CPU with two ranks.
#[test]
fn a_rank_receives_the_captured_variables() {
    let (plan, _) = planned(&nvidia(0), &[("nproc_per_node", "2")], &[], "").unwrap();
    let variables: BTreeMap<&str, &str> = plan.ranks[1].env.vars().iter().map(|(n, v)| (&**n, &**v)).collect();
    let captured = [
        ("OMP_NUM_THREADS", "1"),
        ("PADDLE_CURRENT_ENDPOINT", "127.0.0.1:7001"),
        ("PADDLE_DISTRI_BACKEND", "gloo"),
        ("PADDLE_GLOO_FS_PATH", "/tmp/own"),
        ("PADDLE_GLOO_RENDEZVOUS", "3"),
        ("PADDLE_LOCAL_DEVICE_IDS", ""),
        ("PADDLE_RANK_IN_NODE", "1"),
        ("PADDLE_TRAINERS_NUM", "2"),
        ("PADDLE_TRAINER_ENDPOINTS", "127.0.0.1:7000,127.0.0.1:7001"),
        ("PADDLE_TRAINER_ID", "1"),
        ("PADDLE_WITH_GLOO", "0"),
        ("PADDLE_WORLD_DEVICE_IDS", ","),
    ];
    let own = variables
        .into_iter()
        .filter(|(name, _)| !name.starts_with("RLAUNCH_") && *name != "PYTHONFAULTHANDLER")
        .collect::<Vec<_>>();
    assert_eq!(own, captured);
}
