//! The command line of `python -m rlaunch.run`: how its options are parsed, and each rule of the checked request.

use proptest::prelude::*;
use rlaunch::cli::torchrun::parse::{TorchrunArgs, parse};
use rlaunch::spec::SpecError;
use rlaunch::spec::frameworks::Framework;
use rlaunch::spec::options::{DryRun, EnvVars};
use rlaunch::spec::torchrun::options::{GROUPS, OPTIONS, SIGNALS, is_torchs, merge};
use rlaunch::spec::torchrun::{
    EventLog, LogDir, Nproc, NumaBinding, OutputCapture, StreamRoute, TorchScript, TorchSpec, TorchrunBackend, check,
    namespace,
};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::time::Duration;

fn words(line: &str) -> Vec<OsString> {
    line.split(' ').filter(|word| !word.is_empty()).map(OsString::from).collect()
}

fn job(line: &str) -> (BTreeMap<&'static str, String>, Vec<OsString>) {
    match parse(&words(line)) {
        Ok(TorchrunArgs::Job { flags, rest, .. }) => (flags, rest),
        other => panic!("{line}: {other:?}"),
    }
}

fn refused(line: &str) -> String {
    match parse(&words(line)) {
        Err(error) => error.to_string(),
        other => panic!("{line}: {other:?}"),
    }
}

fn vars(pairs: &[(&str, &str)]) -> EnvVars {
    pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

fn asked(line: &str, pairs: &[(&str, &str)]) -> Result<TorchSpec, SpecError> {
    let (flags, rest) = job(line);
    let vars = vars(pairs);
    check(&merge(&flags, &vars, true), &vars, &rest)
}

pub(super) fn spec(line: &str) -> TorchSpec {
    asked(&format!("{line} t.py"), &[]).unwrap_or_else(|error| panic!("{line}: {error}"))
}

pub(super) fn error(line: &str) -> String {
    asked(&format!("{line} t.py"), &[]).expect_err(line).to_string()
}

#[test]
fn options_are_spelt_in_many_ways() {
    for line in ["--nproc-per-node 2", "--nproc_per_node=2", "--nproc=2", "--nproc 2", "--np 2", "--nproc 1 --nproc=2"]
    {
        assert_eq!(job(&format!("{line} t.py")), (BTreeMap::from([("nproc-per-node", "2".into())]), words("t.py")));
    }
    let flags = |list: &[(&'static str, &str)]| list.iter().map(|(n, v)| (*n, (*v).to_owned())).collect();
    for (line, expected) in [
        ("-mt3 x", vec![("module", "true"), ("tee", "3")]),
        ("-r3 x", vec![("redirects", "3")]),
        ("-r=3 -t 1 x", vec![("redirects", "3"), ("tee", "1")]),
        ("-m x", vec![("module", "true")]),
        ("--redirect=3 --standa x", vec![("redirects", "3"), ("standalone", "true")]),
        ("--rdzv-e=a:1 --rdzv_i b x", vec![("rdzv-endpoint", "a:1"), ("rdzv-id", "b")]),
        ("--node-rank -1 x", vec![("node-rank", "-1")]),
        ("--log-dir= x", vec![("log-dir", "")]),
        // Unique in torchrun, and still that beside --version.
        ("--v x", vec![("virtual-local-rank", "true")]),
        ("--dry-run x", vec![("dry-run", "")]),
        ("--dry_run=json x", vec![("dry-run", "json")]),
        ("--omp x", vec![("omp-compat", "true")]),
    ] {
        assert_eq!(job(line).0, flags(&expected), "{line}");
    }
    let spaced = ["--role", "-x y", "t.py"].map(OsString::from);
    let (flags, rest) = (flags(&[("role", "-x y")]), words("t.py"));
    assert_eq!(parse(&spaced), Ok(TorchrunArgs::Job { flags, rest }));
}

#[test]
fn everything_after_the_script_is_the_scripts() {
    for (line, rest) in [
        ("--role a t.py --role b --help -m --nproc", "t.py --role b --help -m --nproc"),
        ("t.py -- -x", "t.py -x"),
        ("t.py -- -- -x", "t.py -- -x"),
        ("t.py a -- -x", "t.py a -- -x"),
        ("-- t.py -- -x", "t.py -- -x"),
        ("-- --role", "--role"),
        ("-1 --role", "-1 --role"),
        ("- a", "- a"),
    ] {
        assert_eq!(job(line).1, words(rest), "{line}");
    }
}

#[test]
fn unreadable_command_lines_are_refused_in_one_line() {
    assert_eq!(
        refused("--rdzv=2 t.py"),
        "ambiguous option: --rdzv could match --rdzv-backend, --rdzv-endpoint, --rdzv-id, --rdzv-conf"
    );
    assert_eq!(
        refused("--nproc-pre-node 2 t.py"),
        "unknown option --nproc-pre-node; did you mean --nproc-per-node? Options of the script go after it"
    );
    assert_eq!(
        refused("--dr --d t.py"),
        "ambiguous option: --d could match --duplicate-stdout-filters, --duplicate-stderr-filters"
    );
    assert!(refused("--nproc-per_node 2 t.py").starts_with("unknown option --nproc-per_node; did you mean "));
    assert_eq!(
        refused("--use_env t.py"),
        "unknown option --use_env; ranks always read their number from the environment; leave it out"
    );
    for (line, name) in
        [("--role", "--role"), ("--role -x", "--role"), ("-r", "-r"), ("-mt -- x", "-t"), ("--tee --", "--tee")]
    {
        let text = refused(line);
        assert!(text.starts_with(&format!("option {name} needs a value (expected one argument)")), "{line}: {text}");
    }
    assert_eq!(refused("--standalone=1 t.py"), "option --standalone takes no value: --standalone=1");
    assert_eq!(refused("-mx t.py"), "option -m takes no value: -mx");
    assert!(refused("--print-completion tcsh").contains("bash, zsh and fish"));
}

#[test]
fn help_version_and_completion_are_printed() {
    let printed = |line: &str| match parse(&words(line)) {
        Ok(TorchrunArgs::Print(text)) => text,
        other => panic!("{line}: {other:?}"),
    };
    assert_eq!(printed("--role a --h --nope"), printed("-h train.py"));
    let help = printed("--role a --h all --nope");
    for opt in OPTIONS {
        assert!(help.contains(&format!("--{}", opt.name)), "{}", opt.name);
        for var in opt.env {
            assert!(help.contains(var), "{var}");
        }
    }
    assert!(GROUPS.iter().all(|group| help.contains(&format!("{}:", group.heading))));
    assert_eq!(printed("--version"), format!("rlaunch {}\n", env!("CARGO_PKG_VERSION")));
    for shell in ["bash", "zsh", "fish"] {
        let script = printed(&format!("--print-completion {shell}"));
        assert!(["rlaunch-run", "nproc-per-node", "security"].iter().all(|word| script.contains(word)), "{shell}");
    }
}

#[test]
fn names_and_variables_of_the_table_are_one_each() {
    let mut seen = BTreeSet::new();
    for opt in OPTIONS {
        assert!(seen.insert(opt.name.to_owned()) && opt.env.iter().all(|var| seen.insert((*var).to_owned())));
        assert!(!opt.name.contains('_') && opt.aliases.is_empty(), "{}", opt.name);
        let pet = format!("PET_{}", opt.name.to_uppercase().replace('-', "_"));
        assert!(is_torchs(opt.name) || !opt.env.contains(&pet.as_str()), "{}", opt.name);
        assert!(opt.env.iter().all(|var| *var == pet || var.starts_with("RLAUNCH_")), "{}", opt.name);
    }
    assert!(GROUPS.iter().all(|group| seen.contains(group.first)));
}

#[test]
fn the_command_line_beats_a_variable() {
    let pet = [("PET_NPROC_PER_NODE", "3"), ("PET_ROLE", "r"), ("PET_R", "3")];
    let made = asked("--nproc=2 t.py", &pet).unwrap();
    assert_eq!((made.nproc, made.role.as_str(), made.streams.of(0)), (Nproc::Count(2), "r", Default::default()));
    let all = vars(&[("PET_ROLE", "r"), ("RLAUNCH_CAPTURE", "none")]);
    let made = check(&merge(&BTreeMap::new(), &all, false), &all, &words("t.py")).unwrap();
    assert_eq!((made.role.as_str(), made.capture), ("default", OutputCapture::None));
    for (text, on) in [("0", false), ("1", true), ("2", true), ("true", true), ("No", false), (" 1 ", true)] {
        let made = asked("t.py", &[("PET_MODULE", text)]).unwrap();
        assert_eq!(matches!(made.script, TorchScript::Module(_)), on, "{text}");
    }
    let error = asked("t.py", &[("PET_MODULE", "maybe")]).unwrap_err().to_string();
    assert!(error.starts_with("PET_MODULE maybe: is neither a number nor true or false; "), "{error}");
    let error = asked("t.py", &[("PET_MASTER_PORT", "abc")]).unwrap_err().to_string();
    assert_eq!(error, "PET_MASTER_PORT abc: invalid int value: 'abc'; give a whole number");
}

#[test]
fn the_default_is_one_rank_on_this_node_alone() {
    let made = spec("");
    assert_eq!(
        (made.script, made.args.len(), made.nodes, made.nproc),
        (TorchScript::Python("t.py".into()), 0, (1, 1), Nproc::Count(1))
    );
    assert_eq!((made.rendezvous, made.run_id, made.backend.as_str()), (TorchrunBackend::Alone, None, "c10d"));
    assert_eq!((made.max_restarts, made.monitor_interval), (0, Duration::from_millis(100)));
    assert_eq!((made.shutdown_timeout, made.log_dir), (Duration::from_secs(30), LogDir::Temporary));
    assert_eq!((made.signals, made.signals_text.as_str()), (vec![15, 2, 1, 3], SIGNALS));
    assert_eq!((made.event_log, made.capture, made.dry_run), (EventLog::Null, OutputCapture::Stderr, None));
    assert_eq!((made.frameworks, made.log_level.as_str()), (BTreeSet::from([Framework::Torch]), "WARNING"));
    assert_eq!((made.warnings, made.numa, made.local_ranks_filter), (vec![], None, None));
}

#[test]
fn commands_of_ranks() {
    let script = |line: &str| asked(line, &[]).unwrap().script;
    assert_eq!(script("-m a.b"), TorchScript::Module("a.b".into()));
    assert_eq!(script("--no-python ls"), TorchScript::Program("ls".into()));
    assert_eq!(script("--run-path --no-python -m /t.py"), TorchScript::RunPath("/t.py".into()));
    assert!(
        error("-m --no-python")
            .contains("Don't use both the '--no-python' flag and the '--module' flag at the same time")
    );
    assert!(spec("--pass-local-rank").pass_local_rank);
    assert!(error("--pass-local-rank --no-python").starts_with("--pass-local-rank: "));
    assert!(
        error("--start-method x").starts_with("--start-method x: invalid choice: 'x'; give spawn, fork or forkserver")
    );
    assert!(asked("t.py", &[("PET_START_METHOD", "x")]).is_ok());
    assert!(asked("--run-path t.py", &[("PET_START_METHOD", "x")]).is_err());
    assert_eq!(
        error("--logs-specs mine").split(';').next().unwrap(),
        "--logs-specs mine: Could not find entrypoint under 'torchrun.logs_specs[mine]' key"
    );
}

#[test]
fn counts_of_ranks() {
    for (text, nproc) in [
        ("8", Nproc::Count(8)),
        ("+1_0", Nproc::Count(10)),
        ("007", Nproc::Count(7)),
        ("cpu", Nproc::Cpu),
        ("gpu", Nproc::Gpu),
        ("xpu", Nproc::Xpu),
        ("auto", Nproc::Auto),
    ] {
        assert_eq!(spec(&format!("--nproc {text}")).nproc, nproc);
    }
    assert!(error("--nproc 0").starts_with("--nproc-per-node 0: "));
    assert!(error("--nproc -1").starts_with("--nproc-per-node -1: "));
    assert!(error("--nproc -99999999999999999999").starts_with("--nproc-per-node -99999999999999999999: "));
    for text in ["1__0", "_1", "1.5"] {
        assert!(error(&format!("--nproc {text}")).contains(": Unsupported nproc_per_node value: "), "{text}");
    }
    assert!(error("--nproc tpu").starts_with("--nproc-per-node tpu: Unsupported nproc_per_node value: tpu; "));
}

#[test]
fn one_node_has_its_own_rendezvous() {
    let alone = |line: &str| {
        let made = spec(line);
        assert_eq!(made.rendezvous, TorchrunBackend::Alone, "{line}");
        (made.run_id, made.backend)
    };
    assert_eq!(alone("--rdzv-id lost"), (None, "c10d".into()));
    assert_eq!(alone("--standalone --rdzv-backend etcd --rdzv-endpoint a:1 --master-port 1"), (None, "c10d".into()));
    assert_eq!(alone("--rdzv-backend c10d --rdzv-id kept"), (Some("kept".into()), "c10d".into()));
    assert_eq!(alone("--rdzv-backend etcd-v2 --rdzv-endpoint [::1]:1"), (Some("none".into()), "etcd-v2".into()));
    assert!(error("--rdzv-backend c10d --rdzv-id a/b").starts_with("--rdzv-id a/b: cannot be part of a file name"));
    assert!(
        error("--rdzv-backend c10d --rdzv-endpoint a:b").contains("The port number of the rendezvous endpoint 'a:b'")
    );
    assert!(error("--standalone --nnodes 2").starts_with("--nnodes 2: has several nodes, but"));
    assert!(error("--rdzv-conf join_timeout=x").contains("'join_timeout' does not represent a valid integer value"));
}

#[test]
fn where_a_secret_is_required_every_open_job_is_refused() {
    for (line, expected) in [
        ("--rdzv-backend static", "the static rendezvous does not have"),
        ("--rdzv-backend c10d", "set RLAUNCH_JOB_SECRET to one secret"),
        ("--rdzv-backend etcd", "neither a user nor a certificate for etcd"),
    ] {
        let line = format!("--nnodes 2 --rdzv-endpoint h:1 {line}");
        assert!(error(&format!("{line} --require-secret")).contains(expected), "{line}");
        spec(&line);
        spec(&format!("{line} --nnodes 1 --require-secret"));
    }
    spec("--nnodes 2 --rdzv-backend c10d --rdzv-endpoint h:1 --require-secret --job-secret 0123456789abcdef");
    spec("--nnodes 2 --rdzv-backend etcd --rdzv-endpoint h:1 --require-secret --etcd-user me:word");
}

#[test]
fn a_password_in_the_settings_is_warned_of() {
    let job = "--nnodes 2 --rdzv-backend etcd --rdzv-endpoint h:1";
    let warned = spec(&format!("{job} --rdzv-conf user=me,password=word")).warnings.concat();
    assert!(warned.contains("has a password, and other users") && warned.contains("RLAUNCH_ETCD_USER"), "{warned}");
    assert_eq!(spec(job).warnings, [""; 0]);
}

#[test]
fn useless_options_are_warned_of() {
    let node_rank = "node_rank is only used for static rdzv_backend. It will be ignored for rdzv_backend=c10d.";
    assert_eq!(spec("--node-rank 1").warnings, [node_rank]);
    assert_eq!(spec("--master-addr a").warnings, [""; 0]);
    assert!(spec("--rdzv-backend c10d --master-addr a").warnings[0].starts_with("master_addr is only used for static"));
    assert_eq!(spec("--rdzv-backend c10d --rdzv-endpoint b --master-addr a").warnings, [""; 0]);
}

#[test]
fn streams_go_by_local_rank() {
    let streams = spec("-r 0:1,12:3 -t 12:2").streams;
    let way = |redirect, tee| StreamRoute { redirect, tee };
    assert_eq!((streams.of(0).stdout, streams.of(0).stderr), (way(true, false), way(false, false)));
    assert_eq!((streams.of(12).stdout, streams.of(12).stderr), (way(true, false), way(true, true)));
    assert_eq!(streams.of(1), Default::default());
    assert_eq!(spec("-t 3").streams.of(99).stderr, way(true, true));
    for text in ["4", "x", "0:4", "0:1,", ",", "0:1,2", "+1:1", "1:", "33"] {
        assert!(
            error(&format!("--tee {text}"))
                .starts_with(&format!("--tee {text}: {text} does not match: <^[0123]$> or <"))
        );
    }
}

#[test]
fn the_console() {
    assert_eq!(spec("--local-ranks-filter 0,2,-1").local_ranks_filter, Some([0, 2].into()));
    assert!(
        error("--local-ranks-filter 0,x").contains("--local_ranks_filter must be a comma-separated list of integers")
    );
    let made = spec("--duplicate-stdout-filters a,,b,c");
    assert_eq!(
        (made.duplicate_stdout_filters, made.duplicate_stderr_filters),
        (vec!["a,b".to_owned(), "c".into()], vec![])
    );
    let template = [("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE", "t")];
    assert_eq!(asked("t.py", &template).unwrap().prefix_template.as_deref(), Some("t"));
    assert_eq!(asked("--log-line-prefix-template o t.py", &template).unwrap().prefix_template.as_deref(), Some("o"));
    assert_eq!(spec("--log-dir /dev/null").log_dir, LogDir::Nowhere);
    assert_eq!(spec("--log-dir a").log_dir, LogDir::At("a".into()));
    assert_eq!(spec("--event-log-handler console").event_log, EventLog::Console);
    assert!(error("--event-log-handler mine").starts_with("--event-log-handler mine: "));
    assert_eq!(spec("--capture none").capture, OutputCapture::None);
    assert!(error("--capture all").contains("invalid choice: 'all'; give none or stderr"));
    assert_eq!((spec("").pty, spec("--pty never").pty), (true, false));
    assert!(error("--pty on").contains("invalid choice: 'on'; give auto or never"));
    assert_eq!((spec("--dry-run").dry_run, spec("--dry-run=json").dry_run), (Some(DryRun::Table), Some(DryRun::Json)));
    let level = |text| asked("t.py", &[("LOGLEVEL", text)]).map(|made| made.log_level).map_err(|e| e.to_string());
    assert_eq!((level("warn"), level("INFO")), (Ok("WARNING".into()), Ok("INFO".into())));
    assert!(level("loud").unwrap_err().starts_with("LOGLEVEL loud: Unknown level: 'loud'"));
}

#[test]
fn stops_and_restarts() {
    assert_eq!(spec("--max-restarts 3").max_restarts, 3);
    assert!(error("--max-restarts -1").starts_with("--max-restarts -1: max_restarts must be >= 0"));
    assert!(error("--monitor-interval 0").starts_with("--monitor-interval 0: "));
    assert!(error("--monitor-interval nan").starts_with("--monitor-interval nan: "));
    assert!(error("--monitor-interval x").contains("invalid float value: 'x'"));
    let other = [("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "7")];
    assert_eq!(asked("t.py", &other).unwrap().shutdown_timeout.as_secs(), 7);
    assert_eq!(asked("--shutdown-timeout 0 t.py", &other).unwrap().shutdown_timeout.as_secs(), 0);
    assert!(error("--shutdown-timeout -1").contains("shutdown_timeout must be non-negative, got -1"));
    let made = spec("--signals-to-handle SIGTERM,SIGUSR1,SIGTERM,NOPE,SIGKILL,TERM");
    assert_eq!((made.signals, made.warnings.len()), (vec![libc::SIGTERM, libc::SIGUSR1], 3));
    assert_eq!(made.warnings[0], "Failed to register signal handler for NOPE: it is not a signal");
}

#[test]
fn rlaunchs_own() {
    let made =
        spec("--frameworks jax,Paddle --omp-compat --exit-code-compat --bind-report --numa-binding core-complex");
    assert_eq!(made.frameworks, [Framework::Paddle, Framework::Jax].into());
    assert!(made.omp_compat && made.exit_code_compat && made.bind_report);
    assert_eq!(made.numa, Some(NumaBinding::CoreComplex));
    assert_eq!(made.preload, None);
    let zygote = spec("--preload auto").preload.unwrap();
    assert_eq!((zygote.names(), zygote.auto), ("torch".into(), true));
    for text in ["", "mxnet", "torch,"] {
        assert!(error(&format!("--frameworks={text}")).starts_with("--frameworks"), "{text}");
    }
    assert!(error("--numa-binding x").contains("give node, socket, exclusive or core-complex"));
}

/// Texts that are near to what options take.
fn text() -> impl Strategy<Value = String> {
    let piece = prop::sample::select(vec![
        "0", "1", "9", "65536", ":", ",", "=", "-", ".", "[", "]", "_", "+", "cpu", "auto", "c10d", "static", "SIG",
        "TERM", "é", " ", "\n", "\0", "1e9", "timeout", "true",
    ]);
    prop_oneof![prop::collection::vec(piece, 0..8).prop_map(|parts| parts.concat()), ".{0,12}"]
}

proptest! {
    #[test]
    fn no_text_panics_and_every_error_names_its_option(
        which in prop::collection::vec((0..OPTIONS.len(), text(), any::<bool>()), 1..5),
        level in prop::option::of(text()),
    ) {
        let (mut flags, mut all) = (BTreeMap::new(), EnvVars::new());
        for (index, text, by_variable) in which {
            let opt = &OPTIONS[index];
            match opt.env.first().filter(|_| by_variable) {
                Some(var) => drop(all.insert((*var).to_owned(), text)),
                None => drop(flags.insert(opt.name, text)),
            }
        }
        all.extend(level.map(|text| ("LOGLEVEL".to_owned(), text)));
        let values = merge(&flags, &all, true);
        let _ = namespace::attributes(&values);
        if let Err(error) = check(&values, &all, &words("t.py a")) {
            let named = flags.keys().map(|name| format!("--{name}")).chain(all.keys().cloned());
            prop_assert!(named.into_iter().any(|name| name == error.field), "{error:?}");
            let value = flags.get(error.field.trim_start_matches("--")).or(all.get(&error.field)).unwrap();
            // Endpoints are read without the blanks at their ends, as torchrun does.
            prop_assert!([value, value.trim(), "", "***"].contains(&error.value.as_deref().unwrap_or("")), "{error:?}");
            prop_assert_eq!(error.to_string().lines().count(), 1);
            prop_assert!(!error.why.is_empty() && error.hint.is_some());
        }
    }

    #[test]
    fn no_command_line_panics(args in prop::collection::vec(prop_oneof![text(), prop::sample::select(vec![
        "--", "-", "-m", "-r", "-t", "-mr", "-mt3", "--nproc", "--role", "--rdzv", "--dry-run", "--h", "t.py", "-h=",
    ]).prop_map(String::from)], 0..6)) {
        let args: Vec<OsString> = args.into_iter().map(OsString::from).collect();
        if let Err(why) = parse(&args) {
            prop_assert_eq!(why.to_string().lines().count(), 1);
        }
    }
}
