//! Variables of each framework: values are read back as written, only declared variables are written.

use proptest::prelude::*;
use rlaunch::framework::paddle_ps::{GlooRendezvous, HeterStage, HeterStages, PsIdentity, PsVariant};
use rlaunch::framework::torch::{TorchWorker, WorkerGroup};
use rlaunch::framework::{
    Binding, RankIdentity, is_declared, is_paddle_variable, jax, paddle_launch, paddle_ps, paddle_rpc, paddle_spawn,
    torch,
};
use rlaunch::model::{Endpoint, EnvDelta, Role};
use rlaunch::plan::cluster::Cluster;
use rlaunch::plan::devices::assign::DeviceShare;
use rlaunch::plan::env::frameworks::{ExtraFrameworks, FrameworkServers, PaddleEnv, gpu_mismatch};
use rlaunch::plan::{cluster::ClusterNode, spawn};
use rlaunch::spec::frameworks::{Framework, read};
use rlaunch::spec::options::EnvVars;
use std::collections::BTreeSet;

fn identity() -> impl Strategy<Value = RankIdentity> {
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
        RankIdentity {
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

/// A process of a parameter-server job, as far as its environment describes it.
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
        let stage = HeterStage {
            number: at + 1,
            sizes,
            device: "gpu".into(),
            previous: previous.clone().into(),
            next: next.into(),
        };
        let stage = (role != Role::Server).then_some(stage);
        let number = if matches!(role, Role::Server | Role::HeterWorker) { at } else { id };
        let variant = if newer {
            PsVariant::Launch { nnodes, log_dir: "/log".into(), pod: "abcdef".into() }
        } else {
            PsVariant::Legacy {
                coordinators: if role == Role::HeterWorker { [].into() } else { previous.into() },
                device: (role != Role::Server).then_some(device),
                heter: heter.then(|| HeterStages { all: later.clone().into(), stage, cloud }),
            }
        };
        let gloo = GlooRendezvous { with: "1".into(), dir: "/tmp/rlaunch-x".into(), http: servers[0].clone() };
        let endpoint = list[at].clone();
        PsIdentity { role, number, endpoint, servers: servers.into(), workers: workers.into(), gloo, variant }
    })
}

fn lookup(env: &EnvDelta) -> impl Fn(&str) -> Option<String> + '_ {
    |name| env.get(name).map(str::to_owned)
}

proptest! {
    #[test]
    fn spawn_environment_round_trips(who in identity()) {
        let env = paddle_spawn::write(&who);
        prop_assert!(env.vars().iter().all(|(name, _)| is_declared(name)));
        prop_assert_eq!(paddle_spawn::read(&lookup(&env)), Some(RankIdentity { master: None, ..who }));
    }

    #[test]
    fn launch_environment_round_trips(who in identity(), auto_cluster: bool, name in "[a-z]{6}") {
        let pod = paddle_launch::PodInfo { name, log_dir: "/tmp/log".into(), auto_cluster };
        let mut env = EnvDelta::new();
        let alike = paddle_launch::NodeEnv::of(&who, &pod, &Endpoint::join(&who.endpoints).into());
        paddle_launch::write(&who, &alike, &mut env);
        prop_assert!(env.vars().iter().all(|(name, _)| is_declared(name)));
        prop_assert_eq!(paddle_launch::read(&lookup(&env)), Some((who, pod)));
    }
}

proptest! {
    #[test]
    fn parameter_server_environment_round_trips(who in of_servers()) {
        let env = paddle_ps::write(&who, &paddle_ps::EndpointLists::of(&who));
        prop_assert!(env.vars().iter().all(|(name, _)| is_declared(name)));
        prop_assert_eq!(paddle_ps::read(&lookup(&env)), Some(who));
    }

    #[test]
    fn rpc_environment_round_trips(who in identity()) {
        let who = RankIdentity { master: Some(who.endpoints[0].clone()), ..who };
        let pod = paddle_launch::PodInfo { name: "abcdef".into(), log_dir: "/log".into(), auto_cluster: false };
        let env = paddle_rpc::write(&who, &pod);
        prop_assert!(env.vars().iter().all(|(name, _)| is_declared(name)));
        let read = paddle_rpc::read(&lookup(&env)).unwrap();
        prop_assert_eq!((read.rank, read.size), (who.rank, who.endpoints.len()));
        prop_assert_eq!((Some(read.master), read.endpoint), (who.master, who.endpoints[who.rank].clone()));
    }
}

fn worker() -> impl Strategy<Value = (TorchWorker, WorkerGroup)> {
    let numbers = (0..99usize, 1..99usize, 0..9usize, 1..9usize, 0..9usize, 1..9usize, 0..99usize, 1..99usize);
    let group = ("localhost|10\\.0\\.0\\.1|fe80::1", 1u16.., any::<bool>(), "[a-z0-9-]{1,9}", "[a-z]{1,9}", 0..9u32);
    (numbers, group).prop_map(|(numbers, (host, port, agent_store, run_id, role, max_restarts))| {
        let (rank, world_size, local_rank, local_size, node, nnodes, role_rank, role_size) = numbers;
        let worker = TorchWorker {
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
        (worker, WorkerGroup { master, agent_store, run_id, role, max_restarts, signals, async_error_handling })
    })
}

proptest! {
    #[test]
    fn torch_environment_round_trips((worker, group) in worker()) {
        let mut env = EnvDelta::new();
        torch::write(&worker, &group, &mut env);
        torch::write_attempt(1, "/log/attempt_1/0/error.json", &mut env);
        prop_assert!(env.vars().iter().all(|(name, _)| is_declared(name)));
        prop_assert_eq!(torch::read(&lookup(&env)), Some((worker, group)));
    }
}

fn process() -> impl Strategy<Value = jax::JaxProcess> {
    let endpoint = ("localhost|10\\.0\\.0\\.1|fe80::1", 1u16..).prop_map(|(host, port)| Endpoint::new(host, port));
    let optional = (prop::option::of(endpoint.clone()), prop::option::of("[0-9](,[0-9])?"));
    (0..99usize, 1..99usize, 0..9usize, endpoint, optional).prop_map(
        |(id, count, local_id, coordinator, (bind, devices))| jax::JaxProcess {
            id,
            count,
            local_id,
            coordinator,
            bind,
            devices,
        },
    )
}

fn frameworks() -> impl Strategy<Value = BTreeSet<Framework>> {
    let each = prop::sample::select(vec![Framework::Paddle, Framework::Torch, Framework::Jax]);
    prop::collection::btree_set(each, 1..4)
}

proptest! {
    #[test]
    fn jax_environment_round_trips(who in process()) {
        let mut env = EnvDelta::new();
        jax::write(&who, &mut env);
        prop_assert!(env.vars().iter().all(|(name, _)| is_declared(name) && !is_paddle_variable(name)));
        prop_assert_eq!(jax::read(&lookup(&env)), Some(who));
    }

    /// Of `python -m rlaunch` and `spawn`.
    #[test]
    fn all_frameworks_identify_a_rank_the_same(who in identity(), frameworks in frameworks(), ports in any::<[u16; 2]>()) {
        let servers = FrameworkServers::at(&frameworks, "127.0.0.1", ports);
        let mut env = EnvDelta::new();
        servers.write(&who, 0, ("job", 2), &EnvVars::new(), &mut env);
        prop_assert!(env.vars().iter().all(|(name, _)| is_declared(name) && !is_paddle_variable(name)));
        let of_torch = torch::read(&lookup(&env));
        prop_assert_eq!(of_torch.is_some(), frameworks.contains(&Framework::Torch));
        if let Some((worker, group)) = of_torch {
            prop_assert_eq!((worker.rank, worker.world_size), (who.rank, who.endpoints.len()));
            prop_assert_eq!((worker.local_rank, worker.local_size), (who.local_rank, who.local_size));
            prop_assert_eq!((group.master.port, group.agent_store, group.max_restarts), (ports[0], false, 2));
        }
        let of_jax = jax::read(&lookup(&env));
        prop_assert_eq!(of_jax.is_some(), frameworks.contains(&Framework::Jax));
        if let Some(process) = of_jax {
            prop_assert_eq!((process.id, process.count), (who.rank, who.endpoints.len()));
            prop_assert_eq!(process.coordinator.port, ports[1]);
            prop_assert_eq!(process.bind.as_ref(), Some(&process.coordinator));
            let selected = match &who.binding {
                Binding::Selected { kind, indices } if kind == "gpu" => Some(indices.clone()),
                _ => None,
            };
            prop_assert_eq!(process.devices, selected);
        }
    }

    /// Of `python -m rlaunch.run`.
    #[test]
    fn a_worker_has_the_same_identity_for_paddle_and_jax(
        (mut worker, _) in worker(),
        list in endpoints(1),
        gpus in 0..3usize,
        index: prop::sample::Index,
    ) {
        (worker.world_size, worker.rank, worker.nnodes) = (list.len(), index.index(list.len()), 1);
        let paddle = PaddleEnv {
            endpoints: list.clone().into(),
            master: Endpoint::new("127.0.0.1", 5),
            devices: ("gpu".into(), gpus),
            pod: "abcdef".into(),
        };
        let beside = ExtraFrameworks { paddle: Some(paddle), jax: Some(Endpoint::new("127.0.0.1", 7)) };
        let mut env = EnvDelta::new();
        beside.write(&worker, "/log", &EnvVars::new(), &mut env);
        let (who, pod) = paddle_launch::read(&lookup(&env)).unwrap();
        prop_assert_eq!((who.rank, who.local_rank, &who.endpoints[..]), (worker.rank, worker.local_rank, &list[..]));
        prop_assert_eq!((pod.name.as_str(), pod.log_dir.as_str()), ("abcdef", "/log"));
        prop_assert_eq!(who.binding == Binding::Cpu, worker.local_size > gpus);
        let process = jax::read(&lookup(&env)).unwrap();
        prop_assert_eq!((process.id, process.count, process.local_id), (worker.rank, list.len(), worker.local_rank));
    }

    #[test]
    fn several_nodes_come_to_the_same_servers(frameworks in frameworks(), own in 0..2usize, ranks in 1..4u16) {
        let ports = |first: u16| (first..first + ranks).collect();
        let nodes = vec![ClusterNode { host: "a".into(), ports: ports(6070) }, ClusterNode { host: "b".into(), ports: ports(7000) }];
        let from = ("--ips".to_owned(), "a,b".to_owned());
        let cluster = Cluster::new(nodes, own).with_framework_servers(&frameworks, &from).unwrap();
        let expected = FrameworkServers::at(&frameworks, "a", [6070 + ranks, 6071 + ranks]);
        prop_assert_eq!(&cluster.servers, &expected);
        prop_assert_eq!(spawn::servers(&frameworks, &cluster.endpoints, usize::from(ranks)).unwrap(), expected);
        let full = vec![ClusterNode { host: "a".into(), ports: vec![65534] }];
        let refused = Cluster::new(full, 0).with_framework_servers(&frameworks, &from).is_err();
        prop_assert_eq!(refused, frameworks.iter().any(|framework| *framework != Framework::Paddle));
    }
}

#[test]
fn jax_variables_of_the_user_stay() {
    let names = ["JAX_COORDINATOR_BIND_ADDRESS", "JAX_LOCAL_DEVICE_IDS"];
    let vars: EnvVars = names.iter().map(|name| (name.to_string(), "own".to_owned())).collect();
    let who = RankIdentity {
        rank: 0,
        local_rank: 0,
        local_size: 1,
        nnodes: 1,
        endpoints: [Endpoint::new("127.0.0.1", 1)].into(),
        master: None,
        binding: Binding::Selected { kind: "gpu".into(), indices: "3".into() },
    };
    let servers = FrameworkServers::at(&[Framework::Jax].into(), "127.0.0.1", [1, 2]);
    let written = |vars: &EnvVars, who: &RankIdentity| {
        let mut env = EnvDelta::new();
        servers.write(who, 0, ("job", 0), vars, &mut env);
        names.map(|name| env.get(name).map(str::to_owned))
    };
    assert_eq!(written(&vars, &who), [None, None]);
    assert_eq!(written(&EnvVars::new(), &who), [Some("127.0.0.1:2".into()), Some("3".into())]);
    // Where others have to reach it, it listens on all addresses.
    let of_two = RankIdentity { nnodes: 2, ..who };
    assert_eq!(written(&EnvVars::new(), &of_two)[0], None);
}

#[test]
fn a_warning_says_where_torch_scripts_would_take_another_gpu() {
    let share = |indices: &str| DeviceShare {
        binding: Binding::Selected { kind: "gpu".into(), indices: indices.into() },
        lists: EnvDelta::new(),
    };
    let torch = BTreeSet::from([Framework::Torch]);
    assert_eq!(gpu_mismatch(&torch, &[share("0"), share("1")]), None);
    let said = gpu_mismatch(&torch, &[share("0"), share("3")]).unwrap();
    assert!(said.contains("local rank 1 is given 3"), "{said}");
    assert_eq!(gpu_mismatch(&[Framework::Paddle, Framework::Jax].into(), &[share("3")]), None);
}

#[test]
fn names_of_frameworks_are_read_in_any_case_and_order() {
    assert_eq!(read(" Jax,paddle,jax"), Some([Framework::Paddle, Framework::Jax].into()));
    for text in ["", "jax,", "mpi", "paddle torch"] {
        assert_eq!(read(text), None, "{text}");
    }
}

/// Names and order as captured under the real `paddle.distributed.spawn` of 3.3.1.
#[test]
fn spawn_writes_the_captured_variables() {
    let endpoints = vec![Endpoint::new("127.0.0.1", 36049), Endpoint::new("127.0.0.1", 44775)];
    let mut who = RankIdentity {
        rank: 1,
        local_rank: 1,
        local_size: 2,
        nnodes: 1,
        endpoints: endpoints.into(),
        master: None,
        binding: Binding::Cpu,
    };
    let text = |env: &EnvDelta| env.vars().iter().map(|(n, v)| format!("{n}={v}")).collect::<Vec<_>>().join(" ");
    let common = "PADDLE_TRAINER_ID=1 PADDLE_CURRENT_ENDPOINT=127.0.0.1:44775 PADDLE_TRAINERS_NUM=2 \
                  PADDLE_TRAINER_ENDPOINTS=127.0.0.1:36049,127.0.0.1:44775";
    assert_eq!(text(&paddle_spawn::write(&who)), format!("{common} PADDLE_DISTRI_BACKEND=gloo"));
    who.binding = Binding::Selected { kind: "gpu".into(), indices: "3".into() };
    assert_eq!(text(&paddle_spawn::write(&who)), format!("FLAGS_selected_gpus=3 {common}"));
}
