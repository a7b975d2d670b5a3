//! Custom devices: accelerators that Paddle supports through a plugin of the vendor.

/// One type of custom device.
#[derive(Debug, PartialEq, Eq)]
pub struct CustomDevice {
    /// Name of the type, as in the plugin and in `FLAGS_selected_{kind}s`.
    pub kind: &'static str,
    /// Variable with the visible list: `{KIND}_VISIBLE_DEVICES`.
    pub list: &'static str,
    /// Name of its device nodes in /dev, without the number, where known.
    pub node: Option<&'static str>,
}

const fn custom(kind: &'static str, list: &'static str, node: Option<&'static str>) -> CustomDevice {
    CustomDevice { kind, list, node }
}

/// Device nodes of Kunlun XPUs, which do not include /dev/xpuctrl (PaddlePaddle/PaddleX, guide to containers with XPUs).
pub const XPU_NODE: &str = "xpu";

/// The types of PaddlePaddle/PaddleCustomDevice. Nodes: Ascend/ascend-device-plugin (davinci0, beside davinci_manager)
/// and Cambricon's k8s-device-plugin, pkg/mlu/const.go (cambricon_dev0).
pub const CUSTOM: [CustomDevice; 8] = [
    custom("npu", "NPU_VISIBLE_DEVICES", Some("davinci")),
    custom("mlu", "MLU_VISIBLE_DEVICES", Some("cambricon_dev")),
    custom("gcu", "GCU_VISIBLE_DEVICES", None),
    custom("sdaa", "SDAA_VISIBLE_DEVICES", None),
    custom("intel_hpu", "INTEL_HPU_VISIBLE_DEVICES", None),
    custom("iluvatar_gpu", "ILUVATAR_GPU_VISIBLE_DEVICES", None),
    custom("metax_gpu", "METAX_GPU_VISIBLE_DEVICES", None),
    custom("custom_cpu", "CUSTOM_CPU_VISIBLE_DEVICES", None),
];

/// Whether devices of this type need a plugin. Paddle itself can be built for the others.
pub fn is_custom(kind: &str) -> bool {
    !matches!(kind, "gpu" | "xpu" | "ipu")
}
