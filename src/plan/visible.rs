//! Reads visible lists. CUDA's driver reads CUDA_VISIBLE_DEVICES without a word of complaint: an element that is none
//! ends the list, and one that comes twice empties it (CUDA C++ Programming Guide, "CUDA Environment Variables";
//! `torch.cuda._parse_visible_devices`, which was made after the driver). What it would not read as it was meant is refused.

use crate::spec::SpecError;
use std::fmt;

/// An element of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Device {
    /// A number.
    Index(u32),
    /// `GPU-` and the UUID, or so much of it that no other GPU's begins so.
    Gpu(String),
    /// `MIG-` and a UUID, or the older `MIG-GPU-<uuid>/<GPU instance>/<compute instance>`.
    Mig(String),
    /// What another maker's driver makes of it is its own affair.
    Other(String),
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Device::Index(index) => write!(f, "{index}"),
            Device::Gpu(text) | Device::Mig(text) | Device::Other(text) => f.write_str(text),
        }
    }
}

impl Device {
    /// A device as CUDA's driver would name it; `None`: it would not.
    pub fn of_cuda(text: &str) -> Option<Self> {
        match read(text) {
            Element::Device(device) => Some(device),
            Element::End | Element::Cut(_) | Element::Nothing => None,
        }
    }

    /// Whether both mean one device, as far as their names tell: of two UUIDs, one may be the other's beginning.
    pub fn means(&self, other: &Device) -> bool {
        match (self, other) {
            (Device::Gpu(a), Device::Gpu(b)) | (Device::Mig(a), Device::Mig(b)) => {
                !differ_in_form(a, b) && (begins(a, b) || begins(b, a))
            }
            (a, b) => a == b,
        }
    }

    /// The GPU that an older name of a MIG device holds.
    pub fn gpu(&self) -> Option<Device> {
        let Device::Mig(name) = self else { return None };
        let (gpu, _) = name.strip_prefix("MIG-")?.split_once('/')?;
        Some(Device::Gpu(gpu.to_owned()))
    }

    /// Whether `uuid` begins with this device's.
    pub fn begins(&self, uuid: &str) -> bool {
        match self {
            Device::Gpu(own) | Device::Mig(own) => begins(own, uuid),
            Device::Index(_) | Device::Other(_) => false,
        }
    }

    fn form(&self) -> &'static str {
        match self {
            Device::Index(_) => "numbers",
            Device::Gpu(_) => "UUIDs of GPUs",
            Device::Mig(_) => "names of MIG devices",
            Device::Other(_) => "names",
        }
    }
}

/// In any case of letters.
fn begins(head: &str, text: &str) -> bool {
    text.get(..head.len()).is_some_and(|start| start.eq_ignore_ascii_case(head))
}

/// Of the older names of MIG devices, which are never abbreviated, one is no beginning of another: 1/1, 1/10.
fn differ_in_form(a: &str, b: &str) -> bool {
    (a.contains('/') || b.contains('/')) && !a.eq_ignore_ascii_case(b)
}

/// What a list says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum List {
    /// `all`.
    All,
    /// These, in this order; none hides them all.
    These(Vec<Device>),
}

enum Element {
    Device(Device),
    /// A number below 0, with which people end lists.
    End,
    /// A number with something behind it, which the driver drops.
    Cut(u32),
    Nothing,
}

/// One element, as the driver reads it: `strtol` unless it begins with GPU- or MIG-.
fn read(text: &str) -> Element {
    for (prefix, named) in [("GPU-", Device::Gpu as fn(String) -> Device), ("MIG-", Device::Mig)] {
        if let Some(rest) = text.strip_prefix(prefix) {
            let named = is_name(prefix, rest).then(|| named(text.to_owned()));
            return named.map_or(Element::Nothing, Element::Device);
        }
    }
    let bare = text.trim();
    let (below, digits) = match bare.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, bare.strip_prefix('+').unwrap_or(bare)),
    };
    let (number, rest) = digits.split_at(digits.bytes().take_while(u8::is_ascii_digit).count());
    match number.parse::<u32>() {
        Ok(1..) if below => Element::End,
        Ok(index) if rest.is_empty() => Element::Device(Device::Index(index)),
        Ok(index) => Element::Cut(index),
        Err(_) => Element::Nothing,
    }
}

fn is_name(prefix: &str, rest: &str) -> bool {
    let hex = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_hexdigit() || b == b'-');
    let number = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    match rest.strip_prefix("GPU-").filter(|_| prefix == "MIG-") {
        None => hex(rest),
        Some(old) => match old.split('/').collect::<Vec<_>>()[..] {
            [uuid, gi, ci] => hex(uuid) && number(gi) && number(ci),
            _ => false,
        },
    }
}

/// Words for no device. CUDA knows none of them, and so hides all devices: NoDevFiles is what Slurm writes.
const NONE: [&str; 4] = ["", "NoDevFiles", "none", "void"];

/// CUDA_VISIBLE_DEVICES, or a list of the same form, `field`.
pub fn of_cuda(field: &str, text: &str) -> Result<List, SpecError> {
    let refuse = |why: String, hint: &str| Err(SpecError::new(field, text, why, hint));
    if text.trim() == "all" {
        return Ok(List::All);
    }
    if NONE.iter().any(|word| text.trim().eq_ignore_ascii_case(word)) {
        return Ok(List::These(Vec::new()));
    }
    let mut devices: Vec<Device> = Vec::new();
    let mut elements = text.split(',').peekable();
    while let Some(element) = elements.next() {
        let shown = format!("'{}'", crate::spec::shown(element));
        let end = |devices: &[Device]| match devices {
            [] => "hide every device".to_owned(),
            some => format!("show only {}", joined(some)),
        };
        let device = match read(element) {
            Element::Device(device) => device,
            Element::End => break,
            // A comma at the end.
            Element::Nothing if element.trim().is_empty() && elements.peek().is_none() => break,
            Element::Cut(index) => {
                let why = format!("of {shown} the driver would silently take {index}, and drop what follows it");
                return refuse(why, "join ids with commas, such as 0,1");
            }
            Element::Nothing => {
                let why = format!("{shown} is no device, and the driver would silently {}", end(&devices));
                return refuse(why, "give numbers, GPU-... or MIG-..., joined by commas without blanks");
            }
        };
        if let Some(first) = devices.first().filter(|first| first.form() != device.form()) {
            let forms = format!("{shown} stands among {}", first.form());
            let why = format!("{forms}, and the driver would silently {}", end(&devices));
            return refuse(why, "give all devices in one form");
        }
        if let Some(same) = devices.iter().find(|d| d.means(&device)) {
            let twice =
                if *same == device { format!("{shown} comes twice") } else { format!("{shown} is {same} again") };
            return refuse(
                format!("{twice}, and the driver would silently hide every device"),
                "name each device once",
            );
        }
        devices.push(device);
    }
    Ok(List::These(devices))
}

/// Another maker's list. Nothing is known of how it is read, so elements are taken as they are.
pub fn of_others(field: &str, text: &str) -> Result<List, SpecError> {
    match text.trim() {
        "all" => return Ok(List::All),
        "" => return Ok(List::These(Vec::new())),
        _ => {}
    }
    let elements: Vec<&str> = text.split(',').map(str::trim).collect();
    if elements.contains(&"") {
        let why = "has an empty place in the list, and how the driver reads it is not known";
        return Err(SpecError::new(field, text, why, "give ids joined by commas, such as 0,1"));
    }
    Ok(List::These(elements.into_iter().map(|text| Device::Other(text.to_owned())).collect()))
}

/// As a list.
pub fn joined(devices: &[Device]) -> String {
    devices.iter().map(Device::to_string).collect::<Vec<_>>().join(",")
}
