//! Assignment of devices to ranks: `--gpus 0,1` (`--devices`, read in `spec/paddle/launch.rs`) or all visible devices, one per
//! rank. A rank receives its device as `FLAGS_selected_gpus`, an index into the visible list (`framework/paddle_launch.rs`). A
//! visible list in the environment (`CUDA_VISIBLE_DEVICES`) is trusted: the machine is queried only if there is no list, or if
//! `--devices` names devices in another form.

use crate::framework::Binding;
use crate::model::EnvDelta;
use crate::model::accelerator::CUSTOM;
use crate::plan::devices::machine::{DeviceQuery, MachineDevices};
use crate::plan::devices::visible_devices;
use crate::plan::devices::visible_devices::{Device, VisibleList, joined};
use crate::spec::options::EnvVars;
use crate::spec::{LaunchSpec, SpecError, shown};
use std::borrow::Cow;

/// Devices that a launcher may assign.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VisibleDevices {
    /// `gpu`, `xpu` or a custom type.
    pub kind: &'static str,
    /// The variable with the list, if one is set.
    pub from: Option<&'static str>,
    /// The devices, in the order of the list.
    pub devices: Vec<Device>,
    /// CUDA_VISIBLE_DEVICES is `all`, which CUDA does not support.
    pub all: bool,
}

impl VisibleDevices {
    /// The same. If there are none and no list, their kind is what the name of the option says: `--xpus`.
    pub fn or_kind_of_option(self, spec: &LaunchSpec) -> Self {
        let kind = match spec.devices_option.as_str() {
            "--xpus" | "--selected_xpus" => "xpu",
            "--npus" => "npu",
            _ => return self,
        };
        if self.from.is_none() && self.devices.is_empty() { Self { kind, ..self } } else { self }
    }
}

/// The devices that the user requests.
#[derive(Clone, Copy)]
struct RequestedDevices<'a> {
    ids: &'a [String],
    /// The option that gives them.
    option: &'a str,
}

impl RequestedDevices<'_> {
    /// An error about the option.
    fn error(self, why: String, hint: &str) -> SpecError {
        SpecError::new(self.option, self.ids.join(","), why, hint)
    }
}

/// Devices of one rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceShare {
    /// Its devices.
    pub binding: Binding,
    /// Changes to its visible lists; usually none.
    pub lists: EnvDelta,
}

/// Shares, one a rank, and warnings for the user.
pub type DeviceShares = (Vec<DeviceShare>, Vec<String>);

const CUDA: &str = "CUDA_VISIBLE_DEVICES";
const LISTS: [(&str, &str); 3] = [("XPULINK_VISIBLE_DEVICES", "xpu"), ("XPU_VISIBLE_DEVICES", "xpu"), (CUDA, "gpu")];
const ONE_MIG: &str = "the driver shows a process only the first MIG device of its list";

/// The visible devices: those of the list in the environment, otherwise those of the machine. As in CUDA, an empty list
/// hides all devices.
pub fn visible(vars: &EnvVars, machine: DeviceQuery<'_>) -> Result<VisibleDevices, SpecError> {
    among(vars, &|_| true, &|| machine().devices())
}

/// The visible devices of one kind, `gpu` or `xpu`.
pub fn visible_of(kind: &'static str, vars: &EnvVars, machine: DeviceQuery<'_>) -> Result<VisibleDevices, SpecError> {
    let count = || if kind == "gpu" { machine().gpus.len() } else { machine().xpus };
    among(vars, &|of| of == kind, &|| (kind, count()))
}

fn among(
    vars: &EnvVars,
    counts: &dyn Fn(&str) -> bool,
    machine: &dyn Fn() -> (&'static str, usize),
) -> Result<VisibleDevices, SpecError> {
    let mut all = false;
    if let Some((name, kind, text)) = listed(vars, counts) {
        match read(name, text)? {
            VisibleList::These(devices) => return Ok(VisibleDevices { kind, from: Some(name), devices, all }),
            VisibleList::All => all = name == CUDA,
        }
    }
    let (kind, count) = machine();
    let devices =
        (0..count as u32).map(|i| if kind == "gpu" { Device::Index(i) } else { Device::Other(i.to_string()) });
    Ok(VisibleDevices { kind, from: None, devices: devices.collect(), all: all && kind == "gpu" })
}

/// The first visible list that is set: its variable, its kind and its text.
fn listed<'a>(vars: &'a EnvVars, counts: &dyn Fn(&str) -> bool) -> Option<(&'static str, &'static str, &'a str)> {
    let lists = CUSTOM.iter().map(|custom| (custom.list, custom.kind)).chain(LISTS);
    lists.filter(|(_, kind)| counts(kind)).find_map(|(name, kind)| Some((name, kind, vars.get(name)?.as_str())))
}

fn read(name: &str, text: &str) -> Result<VisibleList, SpecError> {
    if name == CUDA { visible_devices::of_cuda(name, text) } else { visible_devices::of_others(name, text) }
}

/// Kind and number of the devices that are visible to a program with these variables.
pub fn count_visible(vars: &EnvVars, machine: &MachineDevices) -> Result<(&'static str, usize), SpecError> {
    let (kind, count) = machine.devices();
    let list = LISTS.into_iter().chain(CUSTOM.iter().map(|custom| (custom.list, custom.kind)));
    let list = list.filter(|(_, of)| *of == kind && count > 0).find_map(|(name, _)| Some((name, vars.get(name)?)));
    let Some((name, text)) = list else { return Ok((kind, count)) };
    match read(name, text)? {
        // CUDA does not support this value.
        VisibleList::All if name == CUDA => Ok((kind, 0)),
        VisibleList::All => Ok((kind, count)),
        // A process sees only the first MIG device.
        VisibleList::These(devices) if matches!(devices[..], [Device::Mig(_), ..]) => Ok((kind, 1)),
        VisibleList::These(devices) => {
            let exists = |device: &&Device| !matches!(device, Device::Index(index) if *index as usize >= count);
            Ok((kind, devices.iter().take_while(exists).count()))
        }
    }
}

/// Number of ranks that the spec requests.
pub fn ranks(spec: &LaunchSpec, visible: &VisibleDevices) -> usize {
    let devices = spec.devices.as_ref().map_or(visible.devices.len(), Vec::len);
    spec.nproc_per_node.unwrap_or(devices).max(1)
}

/// The devices of each rank. A device that `--devices` names twice gets two ranks.
pub fn share(spec: &LaunchSpec, visible: &VisibleDevices, machine: DeviceQuery<'_>) -> Result<DeviceShares, SpecError> {
    let ranks = ranks(spec, visible);
    let (chosen, warnings) = choose(spec, visible, machine)?;
    let shares = match chosen.places.len() {
        0 => vec![DeviceShare { binding: Binding::Cpu, lists: EnvDelta::new() }; ranks],
        _ if ranks == 1 => vec![chosen.share(spec, visible, &chosen.places)?],
        n if n < ranks => return Err(too_few(spec, visible, n, ranks)),
        _ => chosen.places[..ranks].iter().map(|p| chosen.share(spec, visible, &[*p])).collect::<Result<_, _>>()?,
    };
    Ok((shares, warnings))
}

/// The devices of each rank: contiguous blocks, of equal size, of all chosen devices.
pub fn blocks(
    spec: &LaunchSpec,
    visible: &VisibleDevices,
    machine: DeviceQuery<'_>,
) -> Result<DeviceShares, SpecError> {
    let ranks = ranks(spec, visible);
    let (chosen, warnings) = choose(spec, visible, machine)?;
    let devices = chosen.places.len();
    if devices % ranks != 0 {
        let why = format!("{}s' number:{devices} mod args.nproc_per_node:{ranks} must == 0", visible.kind);
        return Err(SpecError::new(
            "--nproc_per_node",
            ranks.to_string(),
            why,
            "each rank gets the same number of devices",
        ));
    }
    let shares = chosen.places.chunks((devices / ranks).max(1)).map(|block| chosen.share(spec, visible, block));
    Ok((shares.collect::<Result<_, _>>()?, warnings))
}

/// Names of the chosen devices, in the form of a visible list, and warnings for the user.
pub fn names(
    spec: &LaunchSpec,
    visible: &VisibleDevices,
    machine: DeviceQuery<'_>,
) -> Result<(Vec<String>, Vec<String>), SpecError> {
    let (chosen, warnings) = choose(spec, visible, machine)?;
    // Without a list, indices are the driver's numbers.
    let name = |place: &usize| chosen.list.get(*place).map_or(place.to_string(), Device::to_string);
    Ok((chosen.places.iter().map(name).collect(), warnings))
}

fn choose<'a>(
    spec: &LaunchSpec,
    visible: &'a VisibleDevices,
    machine: DeviceQuery<'_>,
) -> Result<(DeviceIndices<'a>, Vec<String>), SpecError> {
    let mut warnings = Vec::new();
    let requested = spec.devices.as_ref().map(|ids| RequestedDevices { ids, option: &spec.devices_option });
    let chosen = match requested {
        None => DeviceIndices::all_of(visible),
        Some(requested) if visible.from.is_none() && visible.kind == "gpu" => {
            without_list(requested, visible, machine)?
        }
        Some(requested) => {
            let is_as_given = visible.from.is_none() && visible.devices.is_empty();
            let place = |id: &String| match id.parse() {
                Ok(number) if is_as_given => Ok(number),
                Err(_) if is_as_given => Err(requested.error(format!("{} is not a device", shown(id)), "give numbers")),
                _ => place_of(id, requested, visible, machine),
            };
            let places = requested.ids.iter().map(place).collect::<Result<_, _>>()?;
            DeviceIndices { places, ..DeviceIndices::all_of(visible) }
        }
    };
    if let (Some(requested), None, true) = (requested, visible.from, visible.devices.is_empty()) {
        // A plan may be for another machine.
        if visible.kind == "gpu" && spec.dry_run.is_none() && !machine().has_gpu_node {
            return Err(no_gpu(requested, ranks(spec, visible)));
        }
        let (option, ids) = (requested.option, requested.ids.join(","));
        warnings.push(format!("no driver shows any device; {option} {ids} is used as given"));
    }
    if visible.all && !visible.devices.is_empty() {
        warnings.push(format!(
            "{CUDA}=all: CUDA does not support this value and would hide every GPU; it is unset for ranks"
        ));
    }
    Ok((chosen, warnings))
}

/// The GPUs of these shares, as named by the visible list of each rank. Without a list, they are the driver's numbers.
pub fn gpus(shares: &[DeviceShare], visible: &VisibleDevices) -> Vec<Device> {
    let mut gpus = Vec::new();
    for DeviceShare { binding, lists } in shares {
        let Binding::Selected { kind, indices } = binding else { continue };
        if kind != "gpu" {
            continue;
        }
        let own = lists.get(CUDA).map(|list| list.split(',').filter_map(Device::of_cuda).collect::<Vec<_>>());
        let list = own.as_ref().unwrap_or(&visible.devices);
        for place in indices.split(',').filter_map(|place| place.parse::<u32>().ok()) {
            let device = list.get(place as usize).cloned().unwrap_or(Device::Index(place));
            if !gpus.contains(&device) {
                gpus.push(device);
            }
        }
    }
    gpus
}

/// Chosen indices in a list of devices.
struct DeviceIndices<'a> {
    list: Cow<'a, [Device]>,
    /// Whether the list was made from the requested devices, because none is set.
    made: bool,
    places: Vec<usize>,
}

impl<'a> DeviceIndices<'a> {
    fn all_of(visible: &'a VisibleDevices) -> Self {
        let list = &visible.devices;
        Self { list: Cow::Borrowed(list), made: false, places: (0..list.len()).collect() }
    }

    /// The share of a rank with these indices. A process sees only the first MIG device of its list, so the list of the rank
    /// is reduced to its own.
    fn share(&self, spec: &LaunchSpec, visible: &VisibleDevices, places: &[usize]) -> Result<DeviceShare, SpecError> {
        let mut lists = EnvDelta::new();
        let mut indices = places.iter().map(usize::to_string).collect::<Vec<_>>().join(",");
        match places.first().and_then(|place| self.list.get(*place)) {
            Some(Device::Mig(_)) if places.len() > 1 => {
                let (field, list) = source(spec, visible);
                return Err(SpecError::new(
                    field,
                    list,
                    ONE_MIG,
                    "request one rank for each MIG device, or a single MIG device",
                ));
            }
            Some(Device::Mig(name)) => {
                if self.made || self.list.len() > 1 {
                    lists.set(CUDA, name.as_str());
                }
                indices = "0".into();
            }
            Some(Device::Gpu(_)) if self.made => {
                lists.set(CUDA, joined(&self.list));
            }
            _ if visible.all => {
                lists.unset(CUDA);
            }
            _ => {}
        }
        Ok(DeviceShare { binding: Binding::Selected { kind: visible.kind.to_owned(), indices }, lists })
    }
}

/// Requested devices without a visible list: numbers are the driver's; UUIDs and MIG devices become a list.
fn without_list(
    requested: RequestedDevices<'_>,
    visible: &VisibleDevices,
    machine: DeviceQuery<'_>,
) -> Result<DeviceIndices<'static>, SpecError> {
    let refuse = |why: String, hint: &str| Err(requested.error(why, hint));
    let mut named: Vec<Device> = Vec::new();
    let mut places = Vec::new();
    for id in requested.ids {
        let Some(device) = Device::of_cuda(id) else {
            return refuse(format!("{} is not a device", shown(id)), "give numbers, GPU-... or MIG-...");
        };
        if let (Device::Index(index), true) = (&device, named.is_empty()) {
            if !visible.devices.is_empty() && !visible.devices.contains(&device) {
                return Err(not_there(id, requested, visible));
            }
            places.push(*index as usize);
            continue;
        }
        if matches!(device, Device::Index(_)) || (named.is_empty() && !places.is_empty()) {
            return refuse("mixes numbers and names".into(), "give all devices in one form");
        }
        if !machine().gpus.is_empty() && !machine().has(&device) {
            return refuse(format!("{id} does not match exactly one device of the driver"), "nvidia-smi -L lists them");
        }
        let known = named.iter().position(|d| d.means(&device));
        places.push(known.unwrap_or(named.len()));
        if known.is_none() {
            named.push(device);
        }
    }
    if named.iter().any(|d| matches!(d, Device::Gpu(_))) && named.iter().any(|d| matches!(d, Device::Mig(_))) {
        return refuse("mixes GPUs and MIG devices".into(), "give all devices in one form");
    }
    Ok(DeviceIndices { list: Cow::Owned(named), made: true, places })
}

fn no_gpu(requested: RequestedDevices<'_>, ranks: usize) -> SpecError {
    let hint =
        format!("give --nproc_per_node {ranks} for ranks on the CPU, or name GPUs that it does not show in {CUDA}");
    requested.error("the NVIDIA driver shows no GPU".into(), &hint)
}

/// The index of `id` in the list.
fn place_of(
    id: &str,
    requested: RequestedDevices<'_>,
    visible: &VisibleDevices,
    machine: DeviceQuery<'_>,
) -> Result<usize, SpecError> {
    let device = match visible.kind {
        "gpu" => Device::of_cuda(id),
        _ => Some(Device::Other(id.to_owned())),
    };
    let Some(device) = device else { return Err(not_there(id, requested, visible)) };
    let mut places = (0..visible.devices.len()).filter(|place| visible.devices[*place].means(&device));
    match (places.next(), places.next()) {
        (Some(place), None) => Ok(place),
        (Some(_), Some(_)) => Err(requested.error(
            format!("{id} matches several devices in {CUDA} ({})", joined(&visible.devices)),
            "give a longer prefix of its UUID",
        )),
        (None, _) => in_another_form(&device, visible, machine).ok_or_else(|| not_there(id, requested, visible)),
    }
}

/// Matches a number with the UUIDs of the list, or the reverse, by asking the driver.
fn in_another_form(device: &Device, visible: &VisibleDevices, machine: DeviceQuery<'_>) -> Option<usize> {
    let same_form = |other: &Device| std::mem::discriminant(other) == std::mem::discriminant(device);
    if visible.kind != "gpu" || visible.devices.iter().any(same_form) {
        return None;
    }
    let machine: &MachineDevices = machine();
    let uuid = machine.uuid(device)?;
    visible.devices.iter().position(|listed| machine.uuid(listed) == Some(uuid))
}

fn not_there(id: &str, requested: RequestedDevices<'_>, visible: &VisibleDevices) -> SpecError {
    let from = visible.from.unwrap_or("the driver's devices");
    let list = joined(&visible.devices);
    let why = format!("device {} is not in {from} ({})", shown(id), shown(&list));
    requested.error(why, "choose from the list, or change it")
}

/// The option or variable that determines the devices, and its value.
fn source<'a>(spec: &'a LaunchSpec, visible: &VisibleDevices) -> (&'a str, String) {
    match (&spec.devices, visible.from) {
        (Some(requested), _) => (&spec.devices_option, requested.join(",")),
        (None, Some(from)) => (from, joined(&visible.devices)),
        (None, None) => ("the driver", String::new()),
    }
}

fn too_few(spec: &LaunchSpec, visible: &VisibleDevices, devices: usize, ranks: usize) -> SpecError {
    let source = match source(spec, visible) {
        (name, list) if name.starts_with('-') => format!("{name} {list}"),
        (name, list) if !list.is_empty() => format!("{name}={list}"),
        (name, _) => name.to_owned(),
    };
    SpecError::new(
        "--nproc_per_node",
        ranks.to_string(),
        format!("{source} has only {devices} device(s) for {ranks} ranks"),
        "request fewer ranks or more devices; --devices 0,0 puts two ranks on one device; CUDA_VISIBLE_DEVICES= \
         (empty) runs on the CPU",
    )
}
