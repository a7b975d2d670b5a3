//! Devices: how visible lists are parsed, the devices of each rank, and refused lists. Tables are snapshots.

use proptest::prelude::*;
use rlaunch::plan::LaunchContext;
use rlaunch::plan::cluster::Cluster;
use rlaunch::plan::collective::plan;
use rlaunch::plan::devices::assign;
use rlaunch::plan::devices::machine::{GpuDevice, MachineDevices};
use rlaunch::plan::devices::visible_devices::{Device, VisibleList, of_cuda, of_others};
use rlaunch::spec::options::EnvVars;
use rlaunch::spec::paddle::launch;
use rlaunch::spec::paddle::options::merge;
use rlaunch::spec::{LaunchSpec, shown};
use std::cell::Cell;
use std::collections::BTreeMap;

const LIST: &str = "CUDA_VISIBLE_DEVICES";

fn vars(pairs: &[(&str, &str)]) -> EnvVars {
    pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

fn spec(options: &[(&'static str, &str)]) -> LaunchSpec {
    let flags: BTreeMap<_, _> = options.iter().map(|(name, value)| (*name, (*value).to_owned())).collect();
    launch::check(&merge(&flags, &EnvVars::new()), &EnvVars::new(), &["train.py".into()]).unwrap()
}

fn nvidia(gpus: usize) -> MachineDevices {
    let gpu = |i| GpuDevice { uuid: format!("GPU-{i}{i}{i}{i}aaaa-0000-0000-0000-00000000000{i}"), migs: Vec::new() };
    MachineDevices { gpus: (0..gpus).map(gpu).collect(), ..MachineDevices::default() }
}

fn with_migs() -> MachineDevices {
    let mut machine = nvidia(2);
    machine.gpus[1].migs = vec!["MIG-aa11-01".into(), "MIG-bb22-02".into()];
    machine
}

/// The device variables of each rank, a line each, or the error; then the warnings.
fn device_table(machine: &MachineDevices, options: &[(&'static str, &str)], list: &[(&str, &str)]) -> String {
    let (spec, vars) = (spec(options), vars(list));
    let ask = || machine;
    let shares = assign::visible(&vars, &ask).and_then(|visible| assign::share(&spec, &visible, &ask));
    let (shares, warnings) = match shares {
        Ok(found) => found,
        Err(error) => return format!("error: {error}\n"),
    };
    let facts = LaunchContext {
        python: "python".into(),
        log_dir: "/log".into(),
        pod_name: "abcdef".into(),
        gloo_tmpdir: "/tmp/x".into(),
    };
    let cluster = Cluster::single_node("127.0.0.1", (7000..).take(shares.len()).collect(), Some(6999));
    let plan = plan(&spec, &vars, &facts, &shares, &cluster).unwrap();
    let ours = |name: &str| name.contains("selected") || name.contains("BACKEND") || name.ends_with("VISIBLE_DEVICES");
    let line = |rank: &rlaunch::plan::RankPlan| {
        let set = rank.env.vars().iter().filter(|(name, _)| ours(name)).map(|(n, v)| format!(" {n}={v}"));
        let unset = rank.env.removed().iter().map(|name| format!(" -{name}"));
        format!("{}:{}\n", rank.rank, set.chain(unset).collect::<String>())
    };
    let ranks: String = plan.ranks.iter().map(line).collect();
    ranks + &warnings.iter().map(|warning| format!("warning: {warning}\n")).collect::<String>()
}

type Case<'a> = (&'a [(&'static str, &'a str)], &'a [(&'a str, &'a str)]);

fn table(machine: &MachineDevices, cases: &[Case<'_>]) -> String {
    let words = |pairs: &[(&str, &str)], dashes: &str| {
        pairs.iter().map(|(n, v)| format!(" {dashes}{n}={v}")).collect::<String>()
    };
    let case = |(options, list): &Case<'_>| {
        format!("${}{}\n{}", words(list, ""), words(options, "--"), device_table(machine, options, list))
    };
    cases.iter().map(case).collect::<Vec<_>>().join("\n")
}

#[test]
fn eight_gpus() {
    let table = table(
        &nvidia(8),
        &[
            (&[], &[]),
            (&[("nproc_per_node", "1")], &[]),
            (&[("nproc_per_node", "1"), ("devices", "0,1")], &[]),
            (&[("nproc_per_node", "2"), ("devices", "5,3,1")], &[]),
            (&[("devices", "0,0,1,1")], &[]),
            (&[("devices", "7,8")], &[]),
            (&[("nproc_per_node", "9")], &[]),
            (&[("devices", "GPU-3333,GPU-1111")], &[]),
            (&[("devices", "GPU-3333,GPU-3333aaaa")], &[]),
            (&[("devices", "GPU-9999")], &[]),
            (&[("devices", "GPU-3333,1")], &[]),
            (&[("devices", "1,GPU-3333")], &[]),
            (&[("devices", "one")], &[]),
            (&[], &[(LIST, "4,5, +6,07")]),
            (&[("devices", "7,4")], &[(LIST, "4,5,6,7")]),
            (&[("devices", "GPU-5555")], &[(LIST, "4,5,6,7")]),
            (&[("devices", "GPU-1111")], &[(LIST, "4,5,6,7")]),
            (&[("devices", "2")], &[(LIST, "GPU-1111,GPU-2222")]),
            (&[("devices", "GPU-2222aaaa-0000")], &[(LIST, "GPU-1111,GPU-2222")]),
            (&[("devices", "GPU-1")], &[(LIST, "GPU-1111,GPU-12")]),
            (&[], &[(LIST, "all")]),
            (&[], &[(LIST, "0,2,-1,1")]),
            (&[], &[(LIST, "-1")]),
            (&[("nproc_per_node", "2")], &[(LIST, "NoDevFiles")]),
        ],
    );
    insta::assert_snapshot!(table);
}

#[test]
fn mig_devices() {
    const THREE: &str = "MIG-aa11,MIG-bb22,MIG-GPU-1111/7/0";
    let table = table(
        &with_migs(),
        &[
            (&[], &[(LIST, THREE)]),
            (&[], &[(LIST, "MIG-aa11")]),
            (&[("devices", "MIG-bb22-02,MIG-GPU-1111/7/0")], &[(LIST, THREE)]),
            (&[("nproc_per_node", "1")], &[(LIST, THREE)]),
            (&[("nproc_per_node", "1"), ("devices", "MIG-bb22")], &[(LIST, THREE)]),
            (&[("nproc_per_node", "4")], &[(LIST, THREE)]),
            (&[("devices", "MIG-aa,MIG-bb")], &[]),
            (&[("devices", "MIG-GPU-1111/7/0")], &[]),
            (&[("devices", "MIG-GPU-9999/7/0")], &[]),
            (&[("devices", "MIG-cc")], &[]),
            (&[("devices", "GPU-0000,MIG-aa")], &[]),
        ],
    );
    insta::assert_snapshot!(table);
}

#[test]
fn other_makers_devices() {
    let npus = MachineDevices { custom: Some(("npu", 2)), ..nvidia(1) };
    let table = table(
        &npus,
        &[
            (&[], &[]),
            (&[("nproc_per_node", "1")], &[]),
            (&[("devices", "1")], &[]),
            (&[("devices", "2")], &[]),
            (&[], &[("NPU_VISIBLE_DEVICES", "4, 5")]),
            (&[("devices", "5")], &[("NPU_VISIBLE_DEVICES", "4,5"), (LIST, "0")]),
            (&[], &[("NPU_VISIBLE_DEVICES", "")]),
            (&[], &[("NPU_VISIBLE_DEVICES", "4,,5")]),
            (&[], &[("MLU_VISIBLE_DEVICES", "3")]),
            (&[], &[("METAX_GPU_VISIBLE_DEVICES", "all")]),
            (&[], &[("XPULINK_VISIBLE_DEVICES", "8,9"), ("XPU_VISIBLE_DEVICES", "1")]),
            (&[("devices", "3")], &[("XPU_VISIBLE_DEVICES", "2,3")]),
        ],
    );
    insta::assert_snapshot!(table);
}

#[test]
fn no_driver() {
    let table = table(
        &MachineDevices::default(),
        &[
            (&[("nproc_per_node", "2")], &[]),
            (&[("devices", "0,1")], &[]),
            (&[("devices", "GPU-aa,GPU-bb")], &[]),
            (&[("devices", "MIG-aa,MIG-bb")], &[]),
            (&[("devices", "0,x")], &[]),
            (&[], &[(LIST, "4,5,6,7")]),
            (&[("devices", "0")], &[(LIST, "GPU-aa")]),
            (&[], &[(LIST, "all")]),
        ],
    );
    insta::assert_snapshot!(table);
}

#[test]
fn gpus_that_the_driver_does_not_show_are_used_as_given() {
    let machine = MachineDevices { has_gpu_node: true, ..MachineDevices::default() };
    for (devices, first) in [("0,1", "FLAGS_selected_gpus=0"), ("GPU-aa,GPU-bb", "CUDA_VISIBLE_DEVICES=GPU-aa,GPU-bb")]
    {
        let table = device_table(&machine, &[("devices", devices)], &[]);
        assert!(table.starts_with(&format!("0: {first}")), "{table}");
        let warning = format!("warning: no driver shows any device; --devices {devices} is used as given\n");
        assert!(table.ends_with(&warning), "{table}");
    }
    // A plan may be for another machine.
    let planned = device_table(&MachineDevices::default(), &[("devices", "0"), ("dry_run", "json")], &[]);
    assert!(planned.starts_with("0: FLAGS_selected_gpus=0"), "{planned}");
}

#[test]
fn lists_that_the_driver_would_misread_are_refused() {
    let lists = [
        "x",
        "0,x,2",
        "0,,2",
        ",0",
        "0 1",
        "0;1",
        "1gpu2",
        "0x1",
        "0,0",
        "0,+0",
        "1,01",
        "0,GPU-aa",
        "GPU-aa,0",
        "GPU-aa,MIG-aa",
        "GPU-aa, GPU-bb",
        " GPU-aa",
        "GPU-aa,GPU-aa",
        "GPU-aa,GPU-AA-11",
        "GPU-",
        "GPU-zz",
        "gpu-aa",
        "MIG-GPU-aa/1",
        "MIG-GPU-aa/1/0,MIG-GPU-aa/1/0",
        "0,all",
        "99999999999",
        "0,1\n2",
        "GPU-1d48ae7a-6e35-db9c-012e-04f1528d02e70,1",
        "GPU-1d48ae7a-6e35-db9c-012e-04f1528d02e7 ,1",
        "GPU-1d48ae7a-6e35-db9c-012e-04f1528d02e7 ,GPU-1d48",
    ];
    let line = |list: &&str| format!("{}\n", of_cuda(LIST, list).unwrap_err());
    let lines: String = lists.iter().map(line).collect();
    insta::assert_snapshot!(lines);
}

#[test]
fn lists_that_the_driver_reads_as_intended_are_accepted() {
    let read = |list: &str| match of_cuda(LIST, list) {
        Ok(VisibleList::These(devices)) => devices.iter().map(Device::to_string).collect::<Vec<_>>().join(" "),
        other => format!("{other:?}"),
    };
    for (list, devices) in [
        ("0,1", "0 1"),
        ("7, 4\t,+2,03", "7 4 2 3"),
        ("-0", "0"),
        ("GPU-1d48ae7a-6e35-db9c-012e-04f1528d02e7 ,GPU-aa", "GPU-1d48ae7a-6e35-db9c-012e-04f1528d02e7 GPU-aa"),
        ("0,1,", "0 1"),
        ("0,2,-1,1", "0 2"),
        ("0,-2,x", "0"),
        ("-1", ""),
        ("", ""),
        ("  ", ""),
        ("NoDevFiles", ""),
        ("none", ""),
        ("Void", ""),
        (" all ", "Ok(All)"),
        ("GPU-8932f937-d72c-4106-c12f-20bd9faed9f6,GPU-1", "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6 GPU-1"),
        ("MIG-aa,MIG-bb", "MIG-aa MIG-bb"),
        ("MIG-GPU-aa/1/0,MIG-GPU-aa/1/00,MIG-GPU-aa/10/0", "MIG-GPU-aa/1/0 MIG-GPU-aa/1/00 MIG-GPU-aa/10/0"),
    ] {
        assert_eq!(read(list), devices, "{list:?}");
    }
}

#[test]
fn a_list_is_trusted_without_asking_the_machine() {
    let asked = Cell::new(false);
    let machine = nvidia(1);
    let ask = || {
        asked.set(true);
        &machine
    };
    for list in ["4,5,6,7", "GPU-aa,GPU-bb", "MIG-aa,MIG-bb", "-1", ""] {
        let visible = assign::visible(&vars(&[(LIST, list)]), &ask).unwrap();
        assign::share(&spec(&[("nproc_per_node", "2")]), &visible, &ask).unwrap();
    }
    let visible = assign::visible(&vars(&[(LIST, "4,5")]), &ask).unwrap();
    assign::share(&spec(&[("devices", "5")]), &visible, &ask).unwrap();
    assert!(!asked.get());
    // The reverse, or this test could not fail.
    assign::visible(&vars(&[(LIST, "all")]), &ask).unwrap();
    assert!(asked.get());
}

#[test]
fn a_program_sees_the_devices_of_the_machine_that_its_list_shows() {
    let npus = MachineDevices { custom: Some(("npu", 4)), xpus: 2, ..nvidia(1) };
    let xpus = MachineDevices { xpus: 2, ..nvidia(1) };
    for (machine, list, seen) in [
        (&npus, vec![], ("npu", 4)),
        (&npus, vec![("NPU_VISIBLE_DEVICES", "2,3"), (LIST, "")], ("npu", 2)),
        (&npus, vec![("NPU_VISIBLE_DEVICES", "all")], ("npu", 4)),
        (&npus, vec![("NPU_VISIBLE_DEVICES", "")], ("npu", 0)),
        (&xpus, vec![("XPU_VISIBLE_DEVICES", "1")], ("xpu", 1)),
        (&nvidia(4), vec![("NPU_VISIBLE_DEVICES", "1")], ("gpu", 4)),
        (&nvidia(4), vec![(LIST, "3,1")], ("gpu", 2)),
        (&nvidia(4), vec![(LIST, "3,4,1")], ("gpu", 1)),
        (&nvidia(4), vec![(LIST, "all")], ("gpu", 0)),
        (&with_migs(), vec![(LIST, "MIG-aa,MIG-bb")], ("gpu", 1)),
        (&MachineDevices::default(), vec![(LIST, "x")], ("gpu", 0)),
    ] {
        assert_eq!(assign::count_visible(&vars(&list), machine), Ok(seen), "{list:?}");
    }
    assert!(assign::count_visible(&vars(&[(LIST, "x")]), &nvidia(1)).is_err());
}

#[test]
fn the_gpus_of_a_job_are_found_by_the_names_in_its_lists() {
    let lists = |list, devices| (vec![(LIST, list)], devices);
    let gpus = |machine: &MachineDevices, list: &[(&str, &str)], wanted: &str, ranks: &str| {
        let (vars, ask) = (vars(list), || machine);
        let visible = assign::visible(&vars, &ask).unwrap();
        let spec = spec(&[("devices", wanted), ("nproc_per_node", ranks)]);
        let (shares, _) = assign::share(&spec, &visible, &ask).unwrap();
        assign::gpus(&shares, &visible)
    };
    let migs = with_migs();
    let old = format!("MIG-{}/1/0", migs.gpus[1].uuid);
    for (machine, (list, wanted), ranks, numbers) in [
        (&nvidia(4), (vec![], ""), "0", vec![0, 1, 2, 3]),
        (&nvidia(4), (vec![], "2,0,2"), "0", vec![0, 2]),
        (&nvidia(4), (vec![], "3,1"), "1", vec![1, 3]),
        (&nvidia(4), lists("all", "3"), "0", vec![3]),
        // Only as many as there are ranks.
        (&nvidia(4), lists("3,1,2", ""), "2", vec![1, 3]),
        (&nvidia(4), lists("3,1,2", "2"), "0", vec![2]),
        (&nvidia(4), lists("GPU-3333aaaa,GPU-0000aaaa", ""), "1", vec![0, 3]),
        (&nvidia(4), (vec![], "GPU-3333aaaa"), "0", vec![3]),
        (&migs, lists("MIG-aa11-01,MIG-bb22-02", ""), "2", vec![1]),
        (&migs, (vec![], "MIG-bb22-02"), "0", vec![1]),
        (&migs, lists(&old, ""), "1", vec![1]),
        // What the driver does not show: all that it does.
        (&nvidia(4), lists("4,5", ""), "2", vec![0, 1, 2, 3]),
        (&nvidia(2), lists("GPU-ff", ""), "1", vec![0, 1]),
        (&MachineDevices { has_gpu_node: true, ..MachineDevices::default() }, (vec![], "0,1"), "0", vec![]),
    ] {
        let found = gpus(machine, &list, wanted, ranks);
        assert!(!found.is_empty(), "{list:?} {wanted:?}");
        assert_eq!(machine.numbers(&found), numbers, "{list:?} {wanted:?} {ranks}: {found:?}");
    }
    for list in [(LIST, ""), ("XPU_VISIBLE_DEVICES", "0,1"), ("NPU_VISIBLE_DEVICES", "0,1")] {
        assert_eq!(gpus(&nvidia(4), &[list], "", "2"), []);
    }
}

fn element() -> impl Strategy<Value = String> {
    let likely =
        "[ +-]?[0-9]{1,3} ?|GPU-[0-9a-f-]{0,4}|MIG-[0-9a-f]{1,2}|MIG-GPU-[a-f]{1,2}/[01]/[01]|all|none|NoDevFiles";
    prop_oneof![8 => likely, 1 => "\\PC{0,6}", 1 => any::<String>()]
}

fn list() -> impl Strategy<Value = String> {
    prop::collection::vec(element(), 0..6).prop_map(|elements| elements.join(","))
}

/// The devices that CUDA's driver reads from a list, after `torch.cuda._parse_visible_devices`.
fn as_the_driver_does(list: &str) -> Vec<String> {
    let named = ["GPU-", "MIG-"].into_iter().find(|prefix| list.starts_with(prefix));
    let mut found: Vec<String> = Vec::new();
    for element in list.split(',') {
        let name = match named {
            Some(prefix) if element.starts_with(prefix) => element.to_owned(),
            Some(_) => break,
            None => {
                let bare = element.trim();
                let sign = usize::from(bare.starts_with(['+', '-']));
                let digits = bare[sign..].bytes().take_while(u8::is_ascii_digit).count();
                match bare[..sign + digits].parse::<i64>() {
                    Ok(number) if number >= 0 => number.to_string(),
                    _ => break,
                }
            }
        };
        if found.contains(&name) {
            return Vec::new();
        }
        found.push(name);
    }
    found
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn a_list_is_read_as_the_driver_does_or_refused_by_name(list in list()) {
        match of_cuda(LIST, &list) {
            Ok(VisibleList::These(devices)) => {
                let names: Vec<String> = devices.iter().map(Device::to_string).collect();
                prop_assert_eq!(names, as_the_driver_does(&list));
            }
            Ok(VisibleList::All) => prop_assert_eq!(list.trim(), "all"),
            Err(error) => {
                let text = error.to_string();
                prop_assert!(text.starts_with(&format!("{LIST} {}: ", shown(&list))), "{}", text);
                prop_assert!(text.contains("the driver would silently") || text.contains("CUDA would find no device"), "{}", text);
                prop_assert!(!text.contains('\n'), "{}", text);
            }
        }
    }

    #[test]
    fn others_lists_are_taken_or_refused_by_name(list in list()) {
        if let Err(error) = of_others("XPU_VISIBLE_DEVICES", &list) {
            prop_assert!(error.to_string().contains(&shown(&list)));
        }
    }

    #[test]
    fn every_request_is_met_or_refused_in_one_line(list in prop::option::of(list()), wanted in list(), ranks in 0..5u8) {
        let flags = BTreeMap::from([("devices", wanted.clone()), ("nproc_per_node", ranks.to_string())]);
        let Ok(spec) = launch::check(&merge(&flags, &EnvVars::new()), &EnvVars::new(), &["train.py".into()]) else {
            return Ok(());
        };
        let machine = with_migs();
        let ask = || &machine;
        let vars: EnvVars = list.iter().map(|list| (LIST.to_owned(), list.clone())).collect();
        let found = assign::visible(&vars, &ask).and_then(|visible| {
            let shares = assign::share(&spec, &visible, &ask)?;
            Ok((assign::ranks(&spec, &visible), shares))
        });
        match found {
            Ok((ranks, (shares, _))) => prop_assert_eq!(shares.len(), ranks),
            Err(error) => prop_assert!(!error.to_string().contains(['\n', '\r']), "{}", error),
        }
    }
}
