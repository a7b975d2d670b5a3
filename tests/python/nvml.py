"""A driver's library that shows GPUs where there are none: a fake of its calls, built here."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

# Four GPUs; of the seven MIG devices that the last one could have, two are there.
FAKE = """
#include <stdio.h>
#define OK 0
#define NOT_FOUND 6
#define DRIVER_NOT_LOADED 9
#ifdef UNLOADED
int nvmlInit_v2(void) { return DRIVER_NOT_LOADED; }
#else
int nvmlInit_v2(void) { return OK; }
#endif
int nvmlShutdown(void) { return OK; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 4; return OK; }
#ifndef OLD
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) {
    *device = (void *)(unsigned long)(index + 1);
    return index < 4 ? OK : NOT_FOUND;
}
int nvmlDeviceGetMaxMigDeviceCount(void *device, unsigned *count) {
    *count = device == (void *)4 ? 7 : 0;
    return OK;
}
int nvmlDeviceGetMigDeviceHandleByIndex(void *device, unsigned index, void **mig) {
    *mig = (void *)(unsigned long)(100 + index);
    return device == (void *)4 && (index == 0 || index == 2) ? OK : NOT_FOUND;
}
int nvmlDeviceGetUUID(void *device, char *uuid, unsigned length) {
    unsigned long number = (unsigned long)device;
    const char *form = number < 100 ? "GPU-a%lu-0000" : "MIG-b%lu-0000";
    snprintf(uuid, length, form, number < 100 ? number - 1 : number - 100);
    return OK;
}
#endif
"""

Driver = Callable[..., dict[str, str]]
HIDDEN = ("CUDA_VISIBLE_DEVICES", "XPU_VISIBLE_DEVICES", "XPULINK_VISIBLE_DEVICES")


def build(folder: Path, *definitions: str) -> dict[str, str]:
    """An environment in which the driver's library is the fake, built with these definitions."""
    source = folder / "nvml.c"
    source.write_text(FAKE)
    library = folder / "libnvidia-ml.so.1"
    command = ["cc", "-shared", "-fPIC", *definitions, "-o", str(library), str(source)]
    subprocess.run(command, check=True)
    environ = {name: value for name, value in os.environ.items() if name not in HIDDEN}
    return {**environ, "LD_LIBRARY_PATH": str(folder)}
