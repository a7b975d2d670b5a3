//! Reads values back from the environment of a rank.

use super::identity::Binding;
use crate::model::{Endpoint, accelerator};

pub(super) fn number(get: &dyn Fn(&str) -> Option<String>, name: &str) -> Option<usize> {
    get(name)?.parse().ok()
}

/// Comma-separated endpoints.
pub(super) fn endpoint_list(get: &dyn Fn(&str) -> Option<String>, name: &str) -> Option<Vec<Endpoint>> {
    get(name)?.split(',').map(Endpoint::parse).collect()
}

/// The first `FLAGS_selected_*s` of the kinds that a Paddle build can have.
pub(super) fn binding(get: &dyn Fn(&str) -> Option<String>) -> Binding {
    let custom = accelerator::CUSTOM.iter().map(|custom| custom.kind);
    for kind in ["gpu", "xpu", "ipu"].into_iter().chain(custom) {
        if let Some(indices) = get(&format!("FLAGS_selected_{kind}s")) {
            return Binding::Selected { kind: kind.into(), indices };
        }
    }
    Binding::Cpu
}
