"""NVIDIA's CUDA driver by ctypes, for tests and their ranks: no framework and no toolkit is needed.

``python cuda.py`` reads a JSON list of values of CUDA_VISIBLE_DEVICES from stdin (null: not set) and writes
what the driver shows for each: a list of UUIDs.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import uuid
from collections.abc import Sequence
from typing import Any

VISIBLE = "CUDA_VISIBLE_DEVICES"
NO_DEVICE = 100  # CUDA_ERROR_NO_DEVICE
NOT_INITIALIZED = 3  # CUDA_ERROR_NOT_INITIALIZED
# What the driver reads is initialised once in a process, so each list is read by a process of its own.
PROCESSES_AT_ONCE = 16

# A kernel without an end.
ENDLESS = b"""
.version 7.0
.target sm_70
.address_size 64
.visible .entry endless() {
again:
    bra.uni again;
}
"""


class CudaError(Exception):
    """A call of the driver failed. `status`: its CUresult."""

    def __init__(self, call: str, status: int) -> None:
        super().__init__(f"{call}: CUresult {status}")
        self.status = status


class Driver:
    """The driver's library; nothing is initialised yet."""

    def __init__(self) -> None:
        self.library = ctypes.CDLL("libcuda.so.1")

    def call(self, name: str, *args: Any) -> None:
        status = getattr(self.library, name)(*args)
        if status != 0:
            raise CudaError(name, status)

    def uuids(self) -> list[str]:
        """The UUIDs of the devices that this process sees, in its order."""
        try:
            self.call("cuInit", 0)
        except CudaError as error:
            if error.status == NO_DEVICE:
                return []
            raise
        count = ctypes.c_int()
        self.call("cuDeviceGetCount", ctypes.byref(count))
        return [self._uuid(number) for number in range(count.value)]

    def _device(self, number: int) -> ctypes.c_int:
        device = ctypes.c_int()
        self.call("cuDeviceGet", ctypes.byref(device), number)
        return device

    def _uuid(self, number: int) -> str:
        text = (ctypes.c_ubyte * 16)()
        self.call("cuDeviceGetUuid_v2", text, self._device(number))
        return f"GPU-{uuid.UUID(bytes=bytes(text))}"

    def pci_address(self, number: int) -> str:
        """In the form of Linux: 0000:3b:00.0."""
        text = ctypes.create_string_buffer(32)
        self.call("cuDeviceGetPCIBusId", text, len(text), self._device(number))
        return text.value.decode().lower()

    def use(self, number: int = 0) -> None:
        """Makes the device's primary context current."""
        self.call("cuInit", 0)
        context = ctypes.c_void_p()
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), self._device(number))
        self.call("cuCtxSetCurrent", context)

    def allocate(self, size: int) -> ctypes.c_uint64:
        """Bytes on the current device."""
        address = ctypes.c_uint64()
        self.call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size))
        return address

    def fill(self, address: ctypes.c_uint64, size: int) -> None:
        """Writes all of it, and waits for that."""
        self.call("cuMemsetD8_v2", address, ctypes.c_ubyte(1), ctypes.c_size_t(size))
        self.call("cuCtxSynchronize")

    def run_endless_kernel(self) -> None:
        """Starts a kernel that does not end, and does not wait for it."""
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        self.call("cuModuleLoadData", ctypes.byref(module), ENDLESS)
        self.call("cuModuleGetFunction", ctypes.byref(function), module, b"endless")
        one = [ctypes.c_uint(1)] * 6
        self.call("cuLaunchKernel", function, *one, ctypes.c_uint(0), None, None, None)

    def synchronize(self) -> None:
        self.call("cuCtxSynchronize")


def _answer(driver: Driver, shown: str | None) -> bytes:
    os.environ.pop(VISIBLE, None)
    if shown is not None:
        os.environ[VISIBLE] = shown
    try:
        return json.dumps(driver.uuids()).encode()
    except CudaError as error:
        return json.dumps(str(error)).encode()


def _begin(driver: Driver, shown: str | None) -> tuple[int, int]:
    answer, reply = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(reply, _answer(driver, shown))
        os._exit(0)
    os.close(reply)
    return pid, answer


def _end(pid: int, answer: int) -> Any:
    with os.fdopen(answer, "rb") as file:
        text = file.read()
    os.waitpid(pid, 0)
    return json.loads(text)


def answers(lists: Sequence[str | None]) -> list[Any]:
    """What the driver shows for each list: UUIDs, or its error. Forks: nothing may be initialised."""
    driver, found = Driver(), []
    for first in range(0, len(lists), PROCESSES_AT_ONCE):
        begun = [_begin(driver, shown) for shown in lists[first : first + PROCESSES_AT_ONCE]]
        found += [_end(*process) for process in begun]
    return found


if __name__ == "__main__":
    os.environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    json.dump(answers(json.load(sys.stdin)), sys.stdout)
