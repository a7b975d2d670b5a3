//! Parser of visible lists. In CUDA_VISIBLE_DEVICES an invalid element ends the list without any error (CUDA C++ Programming Guide,
//! "CUDA Environment Variables"), and with a duplicate CUDA finds no device: torch counts none
//! (`torch.cuda._parse_visible_devices`), and cuInit of driver 580 fails with CUDA_ERROR_INVALID_DEVICE. Here such lists are errors.

use crate::spec::SpecError;
use std::fmt;

/// Element of a visible list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Device {
    /// Number.
    Index(u32),
    /// `GPU-` and the UUID, or a unique prefix of it.
    Gpu(String),
    /// `MIG-` and a UUID, or the old form `MIG-GPU-<uuid>/<GPU instance>/<compute instance>`.
    Mig(String),
    /// Name of a device of another vendor, in any form.
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
    /// Parses a device as CUDA's driver does; `None` if it is invalid.
    pub fn of_cuda(text: &str) -> Option<Self> {
        match read(text) {
            Element::Device(device) => Some(device),
            Element::End | Element::Cut(_) | Element::Nothing => None,
        }
    }

    /// Whether both may name the same device. One UUID may be a prefix of the other.
    pub fn means(&self, other: &Device) -> bool {
        match (self, other) {
            (Device::Gpu(a), Device::Gpu(b)) | (Device::Mig(a), Device::Mig(b)) => {
                !differ_in_form(a, b) && (begins(a, b) || begins(b, a))
            }
            (a, b) => a == b,
        }
    }

    /// The GPU in an old name of a MIG device.
    pub fn gpu(&self) -> Option<Device> {
        let Device::Mig(name) = self else { return None };
        let (gpu, _) = name.strip_prefix("MIG-")?.split_once('/')?;
        Some(Device::Gpu(gpu.to_owned()))
    }

    /// Whether this UUID is a prefix of `uuid`.
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

/// Whether `head` is a prefix of `text`, ignoring case.
fn begins(head: &str, text: &str) -> bool {
    text.get(..head.len()).is_some_and(|start| start.eq_ignore_ascii_case(head))
}

/// Whether the names differ and one is an old name of a MIG device. Old names are never abbreviated: 1/1 is not 1/10.
fn differ_in_form(a: &str, b: &str) -> bool {
    (a.contains('/') || b.contains('/')) && !a.eq_ignore_ascii_case(b)
}

/// A parsed visible list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VisibleList {
    /// `all`.
    All,
    /// These devices, in this order; an empty list hides all.
    These(Vec<Device>),
}

enum Element {
    Device(Device),
    /// A negative number, which ends the list.
    End,
    /// A number or a whole UUID followed by other characters, which the driver ignores.
    Cut(Device),
    Nothing,
}

/// Length of `GPU-` and a whole UUID.
const WHOLE: usize = 40;

/// Parses one element as the driver does: with `strtol`, unless it begins with GPU- or MIG-. Of a name that is longer than a whole UUID,
/// driver 580 ignores the rest (tests/gpu).
fn read(text: &str) -> Element {
    if let Some((name, rest)) =
        text.split_at_checked(WHOLE).filter(|(name, rest)| name.starts_with("GPU-") && !rest.is_empty())
    {
        return match read(name) {
            Element::Device(device) if rest.trim().is_empty() => Element::Device(device),
            Element::Device(device) => Element::Cut(device),
            other => other,
        };
    }
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
        Ok(index) => Element::Cut(Device::Index(index)),
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

/// Values for no device. CUDA supports none of them, and so hides all devices. Slurm writes NoDevFiles.
const NONE: [&str; 4] = ["", "NoDevFiles", "none", "void"];

/// Parses CUDA_VISIBLE_DEVICES, or an option or variable `field` of the same form.
pub fn of_cuda(field: &str, text: &str) -> Result<VisibleList, SpecError> {
    let refuse = |why: String, hint: &str| Err(SpecError::new(field, text, why, hint));
    if text.trim() == "all" {
        return Ok(VisibleList::All);
    }
    if NONE.iter().any(|word| text.trim().eq_ignore_ascii_case(word)) {
        return Ok(VisibleList::These(Vec::new()));
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
            // A trailing comma.
            Element::Nothing if element.trim().is_empty() && elements.peek().is_none() => break,
            Element::Cut(device) => {
                let why = format!("the driver would silently read {shown} as {device} and ignore the rest");
                return refuse(why, "separate ids by commas, such as 0,1");
            }
            Element::Nothing => {
                let why = format!("{shown} is not a device, and the driver would silently {}", end(&devices));
                return refuse(why, "give numbers, GPU-... or MIG-..., separated by commas without blanks");
            }
        };
        if let Some(first) = devices.first().filter(|first| first.form() != device.form()) {
            let forms = format!("{shown} is mixed with {}", first.form());
            let why = format!("{forms}, and the driver would silently {}", end(&devices));
            return refuse(why, "give all devices in one form");
        }
        if let Some(same) = devices.iter().find(|d| d.means(&device)) {
            let twice = if *same == device {
                format!("{shown} occurs twice")
            } else {
                format!("{shown} and {same} are the same device")
            };
            return refuse(format!("{twice}, and CUDA would find no device"), "name each device once");
        }
        devices.push(device);
    }
    Ok(VisibleList::These(devices))
}

/// Parses the list of another vendor. Its driver's rules are unknown, so elements are taken unchanged.
pub fn of_others(field: &str, text: &str) -> Result<VisibleList, SpecError> {
    match text.trim() {
        "all" => return Ok(VisibleList::All),
        "" => return Ok(VisibleList::These(Vec::new())),
        _ => {}
    }
    let elements: Vec<&str> = text.split(',').map(str::trim).collect();
    if elements.contains(&"") {
        let why = "has an empty element, and how the driver reads it is unknown";
        return Err(SpecError::new(field, text, why, "give comma-separated ids, such as 0,1"));
    }
    Ok(VisibleList::These(elements.into_iter().map(|text| Device::Other(text.to_owned())).collect()))
}

/// Formats devices as a visible list.
pub fn joined(devices: &[Device]) -> String {
    devices.iter().map(Device::to_string).collect::<Vec<_>>().join(",")
}
