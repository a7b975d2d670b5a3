//! Dialects: what is written is read back, only declared variables are written, the docs are the table.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // A test fails by panicking.

use proptest::prelude::*;
use rlaunch::dialect::{Binding, Identity, document, is_declared, paddle_launch, paddle_spawn};
use rlaunch::model::{Endpoint, EnvPatch};

fn identity() -> impl Strategy<Value = Identity> {
    let binding = prop_oneof![
        Just(Binding::Cpu),
        ("gpu|xpu|ipu|npu|mlu|metax_gpu|custom_cpu", "[0-9](,[0-9])?")
            .prop_map(|(kind, indices)| Binding::Selected { kind, indices }),
    ];
    let hosts = prop::collection::vec(("10\\.0\\.0\\.[1-9]|fe80::[1-9]", 1u16..), 1..9);
    (hosts, any::<prop::sample::Index>(), any::<bool>(), binding).prop_map(|(hosts, index, master, binding)| {
        let endpoints: Vec<_> = hosts.into_iter().map(|(host, port)| Endpoint::new(host, port)).collect();
        let rank = index.index(endpoints.len());
        let master = master.then(|| endpoints[0].clone());
        Identity {
            rank,
            local_rank: rank,
            local_size: endpoints.len(),
            nnodes: 1,
            endpoints: endpoints.into(),
            master,
            binding,
        }
    })
}

fn lookup(env: &EnvPatch) -> impl Fn(&str) -> Option<String> + '_ {
    |name| env.get(name).map(str::to_owned)
}

proptest! {
    #[test]
    fn spawn_reads_what_it_writes(who in identity()) {
        let env = paddle_spawn::write(&who);
        prop_assert!(env.vars().iter().all(|(name, _)| is_declared(name)));
        prop_assert_eq!(paddle_spawn::read(&lookup(&env)), Some(Identity { master: None, ..who }));
    }

    #[test]
    fn launch_reads_what_it_writes(who in identity(), auto_cluster: bool, name in "[a-z]{6}") {
        let pod = paddle_launch::Pod { name, log_dir: "/tmp/log".into(), auto_cluster };
        let mut env = EnvPatch::new();
        paddle_launch::write(&who, &pod, &Endpoint::join(&who.endpoints).into(), &mut env);
        prop_assert!(env.vars().iter().all(|(name, _)| is_declared(name)));
        prop_assert_eq!(paddle_launch::read(&lookup(&env)), Some((who, pod)));
    }
}

/// Names and order as captured under the real `paddle.distributed.spawn` of 3.3.1.
#[test]
fn spawn_writes_the_captured_variables() {
    let endpoints = vec![Endpoint::new("127.0.0.1", 36049), Endpoint::new("127.0.0.1", 44775)];
    let mut who = Identity {
        rank: 1,
        local_rank: 1,
        local_size: 2,
        nnodes: 1,
        endpoints: endpoints.into(),
        master: None,
        binding: Binding::Cpu,
    };
    let text = |env: &EnvPatch| env.vars().iter().map(|(n, v)| format!("{n}={v}")).collect::<Vec<_>>().join(" ");
    let common = "PADDLE_TRAINER_ID=1 PADDLE_CURRENT_ENDPOINT=127.0.0.1:44775 PADDLE_TRAINERS_NUM=2 \
                  PADDLE_TRAINER_ENDPOINTS=127.0.0.1:36049,127.0.0.1:44775";
    assert_eq!(text(&paddle_spawn::write(&who)), format!("{common} PADDLE_DISTRI_BACKEND=gloo"));
    who.binding = Binding::Selected { kind: "gpu".into(), indices: "3".into() };
    assert_eq!(text(&paddle_spawn::write(&who)), format!("FLAGS_selected_gpus=3 {common}"));
}

#[test]
fn the_document_is_the_table() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/environment.md");
    if std::env::var_os("RLAUNCH_UPDATE_DOCS").is_some() {
        std::fs::write(path, document()).unwrap();
    }
    assert_eq!(std::fs::read_to_string(path).unwrap(), document(), "RLAUNCH_UPDATE_DOCS=1 cargo test writes it anew");
}
