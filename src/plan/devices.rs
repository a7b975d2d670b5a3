//! Who gets which device. A visible list in the environment is trusted: the machine is asked only where the list does not
//! say, or where `--devices` names devices in another form.

use super::machine::{Ask, Machine};
use super::visible::{self, Device, List, joined};
use crate::dialect::Binding;
use crate::model::EnvPatch;
use crate::model::accelerator::CUSTOM;
use crate::spec::options::Vars;
use crate::spec::{LaunchSpec, SpecError};
use std::borrow::Cow;

/// What a launcher may hand out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Visible {
    /// `gpu`, `xpu` or a custom type.
    pub kind: &'static str,
    /// The variable the list came from, if it did.
    pub from: Option<&'static str>,
    /// The devices, in the list's order.
    pub devices: Vec<Device>,
    /// CUDA_VISIBLE_DEVICES is `all`, which CUDA does not know.
    pub all: bool,
}

/// What one rank gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Share {
    /// Its devices.
    pub binding: Binding,
    /// What changes in the visible lists that it sees; mostly nothing.
    pub lists: EnvPatch,
}

/// All shares, one a rank, and what the user should be warned of.
pub type Shares = (Vec<Share>, Vec<String>);

const CUDA: &str = "CUDA_VISIBLE_DEVICES";
const LISTS: [(&str, &str); 3] = [("XPULINK_VISIBLE_DEVICES", "xpu"), ("XPU_VISIBLE_DEVICES", "xpu"), (CUDA, "gpu")];
const ONE_MIG: &str = "the driver shows a process the first MIG device of its list, and would silently hide the others";

/// The devices that the environment or, failing that, the machine shows. An empty list hides them all,
/// as it does for CUDA itself.
pub fn visible(vars: &Vars, machine: Ask<'_>) -> Result<Visible, SpecError> {
    among(vars, &|_| true, &|| machine().devices())
}

/// The same of one kind alone, `gpu` or `xpu`, whatever else there is.
pub fn visible_of(kind: &'static str, vars: &Vars, machine: Ask<'_>) -> Result<Visible, SpecError> {
    let count = || if kind == "gpu" { machine().gpus.len() } else { machine().xpus };
    among(vars, &|of| of == kind, &|| (kind, count()))
}

fn among(
    vars: &Vars,
    counts: &dyn Fn(&str) -> bool,
    machine: &dyn Fn() -> (&'static str, usize),
) -> Result<Visible, SpecError> {
    let mut all = false;
    if let Some((name, kind, text)) = listed(vars, counts) {
        match read(name, text)? {
            List::These(devices) => return Ok(Visible { kind, from: Some(name), devices, all }),
            List::All => all = name == CUDA,
        }
    }
    let (kind, count) = machine();
    let devices =
        (0..count as u32).map(|i| if kind == "gpu" { Device::Index(i) } else { Device::Other(i.to_string()) });
    Ok(Visible { kind, from: None, devices: devices.collect(), all: all && kind == "gpu" })
}

/// The first visible list that is set: its variable, its kind and its text.
fn listed<'a>(vars: &'a Vars, counts: &dyn Fn(&str) -> bool) -> Option<(&'static str, &'static str, &'a str)> {
    let lists = CUSTOM.iter().map(|custom| (custom.list, custom.kind)).chain(LISTS);
    lists.filter(|(_, kind)| counts(kind)).find_map(|(name, kind)| Some((name, kind, vars.get(name)?.as_str())))
}

fn read(name: &str, text: &str) -> Result<List, SpecError> {
    if name == CUDA { visible::of_cuda(name, text) } else { visible::of_others(name, text) }
}

/// The kind of devices that a program started now would see, and how many of them.
pub fn seen(vars: &Vars, machine: &Machine) -> Result<(&'static str, usize), SpecError> {
    let (kind, count) = machine.devices();
    let list = LISTS.into_iter().chain(CUSTOM.iter().map(|custom| (custom.list, custom.kind)));
    let list = list.filter(|(_, of)| *of == kind && count > 0).find_map(|(name, _)| Some((name, vars.get(name)?)));
    let Some((name, text)) = list else { return Ok((kind, count)) };
    match read(name, text)? {
        // CUDA does not know the word.
        List::All if name == CUDA => Ok((kind, 0)),
        List::All => Ok((kind, count)),
        // Of MIG devices it is shown the first.
        List::These(devices) if matches!(devices[..], [Device::Mig(_), ..]) => Ok((kind, 1)),
        List::These(devices) => {
            let there = |device: &&Device| !matches!(device, Device::Index(index) if *index as usize >= count);
            Ok((kind, devices.iter().take_while(there).count()))
        }
    }
}

/// How many ranks a request is for.
pub fn ranks(spec: &LaunchSpec, visible: &Visible) -> usize {
    let devices = spec.devices.as_ref().map_or(visible.devices.len(), Vec::len);
    spec.nproc_per_node.unwrap_or(devices).max(1)
}

/// What each rank gets. A device named twice in `--devices` gets two ranks.
pub fn share(spec: &LaunchSpec, visible: &Visible, machine: Ask<'_>) -> Result<Shares, SpecError> {
    let ranks = ranks(spec, visible);
    let (chosen, warnings) = choose(spec, visible, machine)?;
    let shares = match chosen.places.len() {
        0 => vec![Share { binding: Binding::Cpu, lists: EnvPatch::new() }; ranks],
        _ if ranks == 1 => vec![chosen.share(spec, visible, &chosen.places)?],
        n if n < ranks => return Err(too_few(spec, visible, n, ranks)),
        _ => chosen.places[..ranks].iter().map(|p| chosen.share(spec, visible, &[*p])).collect::<Result<_, _>>()?,
    };
    Ok((shares, warnings))
}

/// What each rank gets of all chosen devices, in contiguous blocks of one size.
pub fn blocks(spec: &LaunchSpec, visible: &Visible, machine: Ask<'_>) -> Result<Shares, SpecError> {
    let ranks = ranks(spec, visible);
    let (chosen, warnings) = choose(spec, visible, machine)?;
    let devices = chosen.places.len();
    if devices % ranks != 0 {
        let why = format!("{}s' number:{devices} mod args.nproc_per_node:{ranks} must == 0", visible.kind);
        return Err(SpecError::new("--nproc_per_node", ranks.to_string(), why, "each rank gets as many devices"));
    }
    let shares = chosen.places.chunks((devices / ranks).max(1)).map(|block| chosen.share(spec, visible, block));
    Ok((shares.collect::<Result<_, _>>()?, warnings))
}

/// The chosen devices, as a visible list names them, and what the user should be warned of.
pub fn names(spec: &LaunchSpec, visible: &Visible, machine: Ask<'_>) -> Result<(Vec<String>, Vec<String>), SpecError> {
    let (chosen, warnings) = choose(spec, visible, machine)?;
    // Numbers without a list are the driver's own.
    let name = |place: &usize| chosen.list.get(*place).map_or(place.to_string(), Device::to_string);
    Ok((chosen.places.iter().map(name).collect(), warnings))
}

fn choose<'a>(
    spec: &LaunchSpec,
    visible: &'a Visible,
    machine: Ask<'_>,
) -> Result<(Chosen<'a>, Vec<String>), SpecError> {
    let mut warnings = Vec::new();
    let chosen = match &spec.devices {
        None => Chosen::all_of(visible),
        Some(wanted) if visible.from.is_none() && visible.kind == "gpu" => {
            if visible.devices.is_empty() {
                let list = wanted.join(",");
                warnings.push(format!("no driver shows any device; taking --devices {list} as given"));
            }
            without_list(wanted, visible, machine)?
        }
        Some(wanted) => {
            let places = wanted.iter().map(|id| place_of(id, wanted, visible, machine)).collect::<Result<_, _>>()?;
            Chosen { places, ..Chosen::all_of(visible) }
        }
    };
    if visible.all && !visible.devices.is_empty() {
        warnings.push(format!("{CUDA}=all: CUDA does not know the word and would hide every GPU; ranks get it unset"));
    }
    Ok((chosen, warnings))
}

/// The GPUs of these shares, as their ranks' lists name them; a list that is not there is the driver's.
pub fn gpus(shares: &[Share], visible: &Visible) -> Vec<Device> {
    let mut gpus = Vec::new();
    for Share { binding, lists } in shares {
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

/// Places in a list of devices.
struct Chosen<'a> {
    list: Cow<'a, [Device]>,
    /// Whether the list is made of what `--devices` names, for want of one.
    made: bool,
    places: Vec<usize>,
}

impl<'a> Chosen<'a> {
    fn all_of(visible: &'a Visible) -> Self {
        let list = &visible.devices;
        Self { list: Cow::Borrowed(list), made: false, places: (0..list.len()).collect() }
    }

    /// What the rank gets that is told these places. Only one MIG device is visible to a process, so there the list is
    /// cut down to it.
    fn share(&self, spec: &LaunchSpec, visible: &Visible, places: &[usize]) -> Result<Share, SpecError> {
        let mut lists = EnvPatch::new();
        let mut indices = places.iter().map(usize::to_string).collect::<Vec<_>>().join(",");
        match places.first().and_then(|place| self.list.get(*place)) {
            Some(Device::Mig(_)) if places.len() > 1 => {
                let (field, list) = source(spec, visible);
                return Err(SpecError::new(
                    field,
                    list,
                    ONE_MIG,
                    "ask for one rank a MIG device, or for one MIG device",
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
        Ok(Share { binding: Binding::Selected { kind: visible.kind.to_owned(), indices }, lists })
    }
}

/// `--devices` where no list is set: numbers are the driver's own; UUIDs and MIG devices become a list.
fn without_list(wanted: &[String], visible: &Visible, machine: Ask<'_>) -> Result<Chosen<'static>, SpecError> {
    let list = wanted.join(",");
    let refuse = |why: String, hint: &str| Err(SpecError::new("--devices", &list, why, hint));
    let mut named: Vec<Device> = Vec::new();
    let mut places = Vec::new();
    for id in wanted {
        let Some(device) = Device::of_cuda(id) else {
            return refuse(format!("{} is no device", id.escape_debug()), "give numbers, GPU-... or MIG-...");
        };
        if let (Device::Index(index), true) = (&device, named.is_empty()) {
            if !visible.devices.is_empty() && !visible.devices.contains(&device) {
                return Err(not_there(id, wanted, visible));
            }
            places.push(*index as usize);
            continue;
        }
        if matches!(device, Device::Index(_)) || (named.is_empty() && !places.is_empty()) {
            return refuse("has numbers and names".into(), "give all devices in one form");
        }
        if !machine().gpus.is_empty() && !machine().has(&device) {
            return refuse(format!("{id} is not exactly one device of the driver's"), "nvidia-smi -L lists them");
        }
        let known = named.iter().position(|d| d.means(&device));
        places.push(known.unwrap_or(named.len()));
        if known.is_none() {
            named.push(device);
        }
    }
    if named.iter().any(|d| matches!(d, Device::Gpu(_))) && named.iter().any(|d| matches!(d, Device::Mig(_))) {
        return refuse("has GPUs and MIG devices".into(), "give all devices in one form");
    }
    Ok(Chosen { list: Cow::Owned(named), made: true, places })
}

/// Where in the list `id` stands.
fn place_of(id: &str, wanted: &[String], visible: &Visible, machine: Ask<'_>) -> Result<usize, SpecError> {
    let device = match visible.kind {
        "gpu" => Device::of_cuda(id),
        _ => Some(Device::Other(id.to_owned())),
    };
    let Some(device) = device else { return Err(not_there(id, wanted, visible)) };
    let mut places = (0..visible.devices.len()).filter(|place| visible.devices[*place].means(&device));
    match (places.next(), places.next()) {
        (Some(place), None) => Ok(place),
        (Some(_), Some(_)) => Err(SpecError::new(
            "--devices",
            wanted.join(","),
            format!("{id} may be any of several in {CUDA} ({})", joined(&visible.devices)),
            "give more of its UUID",
        )),
        (None, _) => in_another_form(&device, visible, machine).ok_or_else(|| not_there(id, wanted, visible)),
    }
}

/// A number where the list has UUIDs, or the reverse: only the driver knows.
fn in_another_form(device: &Device, visible: &Visible, machine: Ask<'_>) -> Option<usize> {
    let same_form = |other: &Device| std::mem::discriminant(other) == std::mem::discriminant(device);
    if visible.kind != "gpu" || visible.devices.iter().any(same_form) {
        return None;
    }
    let machine: &Machine = machine();
    let uuid = machine.uuid(device)?;
    visible.devices.iter().position(|listed| machine.uuid(listed) == Some(uuid))
}

fn not_there(id: &str, wanted: &[String], visible: &Visible) -> SpecError {
    let from = visible.from.unwrap_or("what the driver shows");
    let list = joined(&visible.devices);
    let why = format!("device {} is not in {from} ({})", id.escape_debug(), list.escape_debug());
    SpecError::new("--devices", wanted.join(","), why, "choose among those, or change the list")
}

/// Where the devices come from: an option or a variable, and its value.
fn source(spec: &LaunchSpec, visible: &Visible) -> (&'static str, String) {
    match (&spec.devices, visible.from) {
        (Some(wanted), _) => ("--devices", wanted.join(",")),
        (None, Some(from)) => (from, joined(&visible.devices)),
        (None, None) => ("the driver", String::new()),
    }
}

fn too_few(spec: &LaunchSpec, visible: &Visible, devices: usize, ranks: usize) -> SpecError {
    let source = match source(spec, visible) {
        (name, list) if name.starts_with('-') => format!("{name} {list}"),
        (name, list) if !list.is_empty() => format!("{name}={list}"),
        (name, _) => name.to_owned(),
    };
    SpecError::new(
        "--nproc_per_node",
        ranks.to_string(),
        format!("{source} has only {devices} device(s) for {ranks} ranks"),
        "ask for fewer ranks or more devices; --devices 0,0 puts two ranks on one; CUDA_VISIBLE_DEVICES= (empty) runs \
         on the CPU",
    )
}
