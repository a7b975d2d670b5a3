//! Dialects: what is written is read back, only declared variables are written, the docs are the table.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // A test fails by panicking.

use proptest::prelude::*;
use rlaunch::dialect::paddle_ps::{Form, Gloo, Heter, PsIdentity, Stage};
use rlaunch::dialect::torch::{Group, Worker};
use rlaunch::dialect::{
    Binding, Identity, document, is_declared, paddle_launch, paddle_ps, paddle_rpc, paddle_spawn, torch,
};
use rlaunch::model::{Endpoint, EnvPatch, Role};

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

fn endpoints(least: usize) -> impl Strategy<Value = Vec<Endpoint>> {
    let hosts = prop::collection::btree_set(("10\\.0\\.0\\.[1-9]|fe80::[1-9]", 1u16..), least..6);
    hosts.prop_map(|all| all.into_iter().map(|(host, port)| Endpoint::new(host, port)).collect())
}

/// A process of a parameter-server job, as far as one is told of it.
fn of_servers() -> impl Strategy<Value = PsIdentity> {
    let role = prop::sample::select(vec![Role::Server, Role::Trainer, Role::Coordinator, Role::HeterWorker]);
    let lists = (endpoints(1), endpoints(1), endpoints(1), endpoints(0), endpoints(0));
    let own = (role, any::<prop::sample::Index>(), 0..99usize, "0|GPU-5c1f", prop::option::of(1..9usize));
    let flags = (any::<bool>(), any::<bool>(), any::<bool>());
    (lists, own, flags).prop_map(|((servers, workers, later, previous, next), own, (newer, heter, cloud))| {
        let (role, index, id, device, nnodes) = own;
        let newer = newer && matches!(role, Role::Server | Role::Trainer);
        let heter = (heter || role == Role::HeterWorker) && role != Role::Coordinator;
        let list = match role {
            Role::Server => &servers,
            Role::HeterWorker => &later,
            _ => &workers,
        };
        let at = index.index(list.len());
        let sizes = vec![workers.len(), later.len()];
        let stage =
            Stage { number: at + 1, sizes, device: "gpu".into(), previous: previous.clone().into(), next: next.into() };
        let stage = (role != Role::Server).then_some(stage);
        let number = if matches!(role, Role::Server | Role::HeterWorker) { at } else { id };
        let form = if newer {
            Form::Newer { nnodes, log_dir: "/log".into(), pod: "abcdef".into() }
        } else {
            Form::Older {
                coordinators: if role == Role::HeterWorker { [].into() } else { previous.into() },
                device: (role != Role::Server).then_some(device),
                heter: heter.then(|| Heter { all: later.clone().into(), stage, cloud }),
            }
        };
        let gloo = Gloo { with: "1".into(), folder: "/tmp/rlaunch-x".into(), http: servers[0].clone() };
        let endpoint = list[at].clone();
        PsIdentity { role, number, endpoint, servers: servers.into(), workers: workers.into(), gloo, form }
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
        let alike = paddle_launch::Alike::of(&who, &pod, &Endpoint::join(&who.endpoints).into());
        paddle_launch::write(&who, &alike, &mut env);
        prop_assert!(env.vars().iter().all(|(name, _)| is_declared(name)));
        prop_assert_eq!(paddle_launch::read(&lookup(&env)), Some((who, pod)));
    }
}

proptest! {
    #[test]
    fn processes_of_servers_read_what_is_written(who in of_servers()) {
        let env = paddle_ps::write(&who, &paddle_ps::Lists::of(&who));
        prop_assert!(env.vars().iter().all(|(name, _)| is_declared(name)));
        prop_assert_eq!(paddle_ps::read(&lookup(&env)), Some(who));
    }

    #[test]
    fn rpc_reads_what_it_writes(who in identity()) {
        let who = Identity { master: Some(who.endpoints[0].clone()), ..who };
        let pod = paddle_launch::Pod { name: "abcdef".into(), log_dir: "/log".into(), auto_cluster: false };
        let env = paddle_rpc::write(&who, &pod);
        prop_assert!(env.vars().iter().all(|(name, _)| is_declared(name)));
        let read = paddle_rpc::read(&lookup(&env)).unwrap();
        prop_assert_eq!((read.rank, read.size), (who.rank, who.endpoints.len()));
        prop_assert_eq!((Some(read.master), read.endpoint), (who.master, who.endpoints[who.rank].clone()));
    }
}

fn worker() -> impl Strategy<Value = (Worker, Group)> {
    let numbers = (0..99usize, 1..99usize, 0..9usize, 1..9usize, 0..9usize, 1..9usize, 0..99usize, 1..99usize);
    let group = ("localhost|10\\.0\\.0\\.1|fe80::1", 1u16.., any::<bool>(), "[a-z0-9-]{1,9}", "[a-z]{1,9}", 0..9u32);
    (numbers, group).prop_map(|(numbers, (host, port, agent_store, run_id, role, max_restarts))| {
        let (rank, world_size, local_rank, local_size, node, nnodes, role_rank, role_size) = numbers;
        let worker = Worker {
            rank,
            world_size,
            local_rank,
            local_size,
            node,
            nnodes,
            role_rank,
            role_size,
            virtual_local_rank: false,
        };
        let (signals, async_error_handling) = ("SIGTERM,SIGINT".to_owned(), "1".to_owned());
        let master = Endpoint::new(host, port);
        (worker, Group { master, agent_store, run_id, role, max_restarts, signals, async_error_handling })
    })
}

proptest! {
    #[test]
    fn torch_reads_what_it_writes((worker, group) in worker()) {
        let mut env = EnvPatch::new();
        torch::write(&worker, &group, &mut env);
        torch::write_attempt(1, "/log/attempt_1/0/error.json", &mut env);
        prop_assert!(env.vars().iter().all(|(name, _)| is_declared(name)));
        prop_assert_eq!(torch::read(&lookup(&env)), Some((worker, group)));
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
