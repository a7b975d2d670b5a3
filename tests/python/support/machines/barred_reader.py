"""A seccomp filter that forbids to read the memory of other processes."""

from __future__ import annotations

import ctypes
import errno
import platform

_PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS, _SECCOMP_MODE_FILTER = 22, 38, 2
_PROCESS_VM_READV = {"x86_64": 310, "aarch64": 270}
_RET_ALLOW, _RET_ERRNO = 0x7FFF0000, 0x00050000


class _Instruction(ctypes.Structure):
    _fields_ = (
        ("code", ctypes.c_ushort),
        ("jt", ctypes.c_ubyte),
        ("jf", ctypes.c_ubyte),
        ("k", ctypes.c_uint),
    )


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.POINTER(_Instruction)))


def bar_reader() -> None:
    """Bars process_vm_readv in this process and its children (seccomp(2)).

    With EACCES: after EPERM and ENOSYS, py-spy reads /proc/PID/mem instead.
    """
    instructions = (
        (0x20, 0, 0, 0),  # the number of the system call
        (0x15, 0, 1, _PROCESS_VM_READV[platform.machine()]),
        (0x06, 0, 0, _RET_ERRNO | errno.EACCES),
        (0x06, 0, 0, _RET_ALLOW),
    )
    array = (_Instruction * len(instructions))(*(_Instruction(*one) for one in instructions))
    program = _Program(len(instructions), array)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) or libc.prctl(
        _PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.byref(program), 0, 0
    ):
        raise OSError(ctypes.get_errno(), "seccomp")
