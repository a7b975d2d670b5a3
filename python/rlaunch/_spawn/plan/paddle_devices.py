"""Devices and backends as Paddle sees them; as the machine has them where Paddle is not imported."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from ... import _lib

if TYPE_CHECKING:
    from types import ModuleType


def _get_paddle() -> ModuleType | None:
    """Returns Paddle if this process has completely imported it."""
    paddle = sys.modules.get("paddle")
    return paddle if hasattr(paddle, "device") and hasattr(paddle, "is_compiled_with_cuda") else None


def _list_custom_devices(paddle: ModuleType) -> list[str]:
    """Lists Paddle's custom devices: ``npu:0`` and so on."""
    return list(getattr(paddle.device, "get_available_custom_device", list)() or ())


def _get_current_device() -> str:
    """Returns ``cpu``, ``gpu:0``, ``npu:0``, ...: Paddle's current device, or the machine's first."""
    paddle = _get_paddle()
    if paddle is not None:
        return str(paddle.device.get_device())
    kind, count = _lib.devices_seen(dict(os.environ))
    return f"{kind}:0" if count > 0 else "cpu"


def _is_custom(device: str) -> bool:
    paddle = _get_paddle()
    if paddle is None:
        return device.partition(":")[0] not in ("gpu", "xpu", "cpu")
    return device in _list_custom_devices(paddle)


def _unsupported(device: str) -> RuntimeError:
    return RuntimeError(
        f"`paddle.distributed.spawn` does not support parallel training on device `{device}` now."
    )


def default_nprocs() -> int:
    """Returns how many ranks ``nprocs=-1`` means: devices of the current kind, else CPUs.

    Paddle: ``_get_default_nprocs``.

    Raises:
        RuntimeError: Paddle's device is of an unsupported kind.
    """
    device, paddle = _get_current_device(), _get_paddle()
    if paddle is None:
        return _lib.devices_seen(dict(os.environ))[1] or os.cpu_count() or 1
    if _is_custom(device):
        return _count_custom(paddle, device.partition(":")[0])
    if "gpu" in device:
        return int(paddle.device.cuda.device_count())
    if "xpu" in device:
        return int(paddle.device.xpu.device_count())
    if "cpu" in device:
        return os.cpu_count() or 1
    raise _unsupported(device)


def _count_custom(paddle: ModuleType, kind: str) -> int:
    return int(paddle.base.core.get_custom_device_count(kind))


def default_backend() -> str:
    """Returns the backend that ``"auto"`` means on the current device.

    Raises:
        RuntimeError: Paddle's device is of an unsupported kind.
    """
    device = _get_current_device()
    if _is_custom(device):
        return "xccl"
    for kind, backend in (("gpu", "nccl"), ("xpu", "bkcl"), ("cpu", "gloo")):
        if kind in device:
            return backend
    raise _unsupported(device)


def check_compiled(backend: str) -> None:
    """Checks that the imported Paddle, if any, supports a backend.

    Raises:
        ValueError: Paddle was compiled without it.
    """
    paddle = _get_paddle()
    if paddle is None:
        return
    for name, kind in (("nccl", "cuda"), ("bkcl", "xpu"), ("flagcx", "flagcx")):
        if backend == name and not _is_compiled_with(paddle, kind):
            raise ValueError(
                "paddle.distributed initialize error, your paddle is not compiled with "
                f"{kind} but you assign '{name}' as backend."
            )


def _is_compiled_with(paddle: ModuleType, kind: str) -> bool:
    name = f"is_compiled_with_{kind}"
    core = getattr(getattr(paddle, "base", None), "core", None)
    return bool(getattr(paddle, name, getattr(core, name, lambda: False))())


def ask_paddle(backend: str) -> tuple[int, str | None]:
    """Returns how many devices of the backend's kind Paddle has, and its first custom device type.

    The count is -1 if Paddle is not imported or the backend has no devices.
    """
    paddle = _get_paddle()
    if paddle is None or backend not in ("nccl", "bkcl", "xccl"):
        return -1, None
    if backend != "xccl":
        own = paddle.device.cuda if backend == "nccl" else paddle.device.xpu
        return int(own.device_count()), None
    kinds = paddle.device.get_all_custom_device_type() or [None]
    return (_count_custom(paddle, kinds[0]) if kinds[0] else 0), kinds[0]
