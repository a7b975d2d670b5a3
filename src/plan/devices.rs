//! Who gets which device. A visible list in the environment is trusted without probing.

use crate::dialect::Binding;
use crate::spec::options::Vars;
use crate::spec::{LaunchSpec, SpecError};

/// What a launcher may hand out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Visible {
    /// `gpu` or `xpu`.
    pub kind: &'static str,
    /// The variable the list came from, if it did.
    pub from: Option<&'static str>,
    /// The ids, as the list has them.
    pub labels: Vec<String>,
}

const LISTS: [(&str, &str); 3] =
    [("XPULINK_VISIBLE_DEVICES", "xpu"), ("XPU_VISIBLE_DEVICES", "xpu"), ("CUDA_VISIBLE_DEVICES", "gpu")];

/// The devices that the environment or, failing that, the driver shows. An empty list hides them all,
/// as it does for CUDA itself.
pub fn visible(vars: &Vars, gpus: usize) -> Visible {
    for (from, kind) in LISTS {
        match vars.get(from).map(|list| list.trim()) {
            None => {}
            Some("all") => break,
            Some("") => return Visible { kind, from: Some(from), labels: Vec::new() },
            Some(list) => {
                let labels = list.split(',').map(|id| id.trim().to_owned()).collect();
                return Visible { kind, from: Some(from), labels };
            }
        }
    }
    Visible { kind: "gpu", from: None, labels: (0..gpus).map(|i| i.to_string()).collect() }
}

/// Whether the driver has to be asked at all.
pub fn needs_probe(vars: &Vars) -> bool {
    !LISTS.iter().any(|(name, _)| vars.get(*name).is_some_and(|list| list.trim() != "all"))
}

/// How many ranks a request is for.
pub fn ranks(spec: &LaunchSpec, visible: &Visible) -> usize {
    let devices = spec.devices.as_ref().map_or(visible.labels.len(), Vec::len);
    spec.nproc_per_node.unwrap_or(devices).max(1)
}

/// One binding a rank, and what the user should be warned of.
pub fn bind(spec: &LaunchSpec, visible: &Visible) -> Result<(Vec<Binding>, Option<String>), SpecError> {
    let mut warning = None;
    let indices: Vec<String> = match &spec.devices {
        None => (0..visible.labels.len()).map(|i| i.to_string()).collect(),
        Some(wanted) if visible.labels.is_empty() && visible.from.is_none() => {
            warning = Some(format!("no driver shows any device; taking --devices {} as given", wanted.join(",")));
            wanted.clone()
        }
        Some(wanted) => wanted.iter().map(|id| index_of(id, wanted, visible)).collect::<Result<_, _>>()?,
    };
    let ranks = ranks(spec, visible);
    let selected = |indices: String| Binding::Selected { kind: visible.kind.to_owned(), indices };
    let bindings = match indices.len() {
        0 => vec![Binding::Cpu; ranks],
        _ if ranks == 1 => vec![selected(indices.join(","))],
        n if n < ranks => return Err(too_few(spec, visible, n, ranks)),
        _ => indices.into_iter().take(ranks).map(selected).collect(),
    };
    Ok((bindings, warning))
}

fn index_of(id: &str, wanted: &[String], visible: &Visible) -> Result<String, SpecError> {
    match visible.labels.iter().position(|label| label == id) {
        Some(index) => Ok(index.to_string()),
        None => {
            let from = visible.from.unwrap_or("what the driver shows");
            let list = visible.labels.join(",");
            let why = format!("device {id} is not in {from} ({list})");
            Err(SpecError::new("--devices", wanted.join(","), why, "choose among those, or change the list"))
        }
    }
}

fn too_few(spec: &LaunchSpec, visible: &Visible, devices: usize, ranks: usize) -> SpecError {
    let source = match (&spec.devices, visible.from) {
        (Some(wanted), _) => format!("--devices {}", wanted.join(",")),
        (None, Some(from)) => format!("{from}={}", visible.labels.join(",")),
        (None, None) => "the driver".to_owned(),
    };
    SpecError::new(
        "--nproc_per_node",
        ranks.to_string(),
        format!("{source} has only {devices} device(s) for {ranks} ranks"),
        "ask for fewer ranks or more devices; CUDA_VISIBLE_DEVICES= (empty) runs on the CPU",
    )
}
