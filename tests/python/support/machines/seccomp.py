"""Seccomp filters: system calls that a process and its children are refused (seccomp(2))."""

from __future__ import annotations

import ctypes
import errno
import functools
import platform
import re
import subprocess
from collections.abc import Mapping

_PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS, _SECCOMP_MODE_FILTER = 22, 38, 2
_RET_ALLOW, _RET_ERRNO, _RET_KILL = 0x7FFF0000, 0x00050000, 0x80000000
_LOAD, _RETURN, _IS_EQUAL, _HAS_BITS = 0x20, 0x06, 0x15, 0x45
# Offsets in struct seccomp_data. The first argument's low half is the first on these machines.
_NUMBER, _MACHINE, _FIRST_ARGUMENT = 0, 4, 16
_AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}


class _Instruction(ctypes.Structure):
    _fields_ = (
        ("code", ctypes.c_ushort),
        ("jt", ctypes.c_ubyte),
        ("jf", ctypes.c_ubyte),
        ("k", ctypes.c_uint),
    )


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.POINTER(_Instruction)))


@functools.cache
def numbers() -> dict[str, int]:
    """The system calls of this machine by name, as the C compiler's headers have them."""
    command = ["cc", "-dM", "-E", "-x", "c", "-"]
    source = "#include <sys/syscall.h>\n"
    text = subprocess.run(command, input=source, capture_output=True, text=True, check=True).stdout
    return {name: int(number) for name, number in re.findall(r"^#define __NR_(\w+) (\d+)$", text, re.M)}


def refuse(calls: Mapping[int, int | None], bits: Mapping[int, int] | None = None) -> None:
    """Sets no_new_privs, and refuses system calls to this process and its children from now on.

    `calls` has the error of each by its number; None: the call kills the process. `bits`: a call whose first
    argument has one of these fails with EPERM. So does any call of another architecture.
    """
    instructions = [
        (_LOAD, 0, 0, _MACHINE),
        (_IS_EQUAL, 1, 0, _AUDIT_ARCH[platform.machine()]),
        (_RETURN, 0, 0, _RET_ERRNO | errno.EPERM),
        (_LOAD, 0, 0, _NUMBER),
    ]
    for number, error in calls.items():
        action = _RET_KILL if error is None else _RET_ERRNO | error
        instructions += [(_IS_EQUAL, 0, 1, number), (_RETURN, 0, 0, action)]
    for number, mask in (bits or {}).items():
        instructions += [
            (_IS_EQUAL, 0, 4, number),
            (_LOAD, 0, 0, _FIRST_ARGUMENT),
            (_HAS_BITS, 0, 1, mask),
            (_RETURN, 0, 0, _RET_ERRNO | errno.EPERM),
            (_RETURN, 0, 0, _RET_ALLOW),
        ]
    instructions.append((_RETURN, 0, 0, _RET_ALLOW))
    array = (_Instruction * len(instructions))(*(_Instruction(*one) for one in instructions))
    program = _Program(len(instructions), array)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) or libc.prctl(
        _PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.byref(program), 0, 0
    ):
        raise OSError(ctypes.get_errno(), "seccomp")
