//! Devices that Paddle knows by a plugin of their maker's ("custom devices").

/// One type of them.
#[derive(Debug, PartialEq, Eq)]
pub struct Custom {
    /// As the plugin calls it, and `FLAGS_selected_{kind}s`.
    pub kind: &'static str,
    /// The variable with the visible list: `{KIND}_VISIBLE_DEVICES`.
    pub list: &'static str,
    /// Name of a device's node in /dev, less its number, where that is known.
    pub node: Option<&'static str>,
}

const fn custom(kind: &'static str, list: &'static str, node: Option<&'static str>) -> Custom {
    Custom { kind, list, node }
}

/// Kunlun's nodes; /dev/xpuctrl is none of them (PaddlePaddle/PaddleX, the guide to containers with XPUs).
pub const XPU_NODE: &str = "xpu";

/// The types of PaddlePaddle/PaddleCustomDevice. Nodes: Ascend/ascend-device-plugin (davinci0, beside davinci_manager)
/// and Cambricon's k8s-device-plugin, pkg/mlu/const.go (cambricon_dev0).
pub const CUSTOM: [Custom; 8] = [
    custom("npu", "NPU_VISIBLE_DEVICES", Some("davinci")),
    custom("mlu", "MLU_VISIBLE_DEVICES", Some("cambricon_dev")),
    custom("gcu", "GCU_VISIBLE_DEVICES", None),
    custom("sdaa", "SDAA_VISIBLE_DEVICES", None),
    custom("intel_hpu", "INTEL_HPU_VISIBLE_DEVICES", None),
    custom("iluvatar_gpu", "ILUVATAR_GPU_VISIBLE_DEVICES", None),
    custom("metax_gpu", "METAX_GPU_VISIBLE_DEVICES", None),
    custom("custom_cpu", "CUSTOM_CPU_VISIBLE_DEVICES", None),
];

/// Whether devices of this kind have a plugin: all but those that Paddle itself can be built for.
pub fn is_custom(kind: &str) -> bool {
    !matches!(kind, "gpu" | "xpu" | "ipu")
}
