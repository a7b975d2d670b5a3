"""Ranks that die by a signal."""

from __future__ import annotations

from story import story

story(
    "killed",
    "killed, as by the kernel for its memory",
    """
    if rank == 1:
        pass
        os.kill(os.getpid(), signal.SIGKILL)
    """,
    r"SIGKILL",
    culprits=1,
)
story(
    "terminated",
    "another program terminates one rank",
    """
    if rank == 1:
        pass
        os.kill(os.getpid(), signal.SIGTERM)
    """,
    r"SIGTERM",
    culprits=1,
)
story(
    "bus-error",
    "a bus error, as when /dev/shm is full",
    """
    if rank == 1:
        pass
        os.kill(os.getpid(), signal.SIGBUS)
    """,
    r"SIGBUS",
    culprits=1,
)
story(
    "segfault",
    "a segmentation fault",
    """
    if rank == 1:
        import ctypes
        ctypes.string_at(0)
    """,
    r"SIGSEGV",
    culprits=1,
)
story(
    "segfault-traced",
    "a segmentation fault under faulthandler",
    """
    if rank == 1:
        import ctypes, faulthandler
        faulthandler.enable()
        def read_header():
            ctypes.string_at(0)
        read_header()
    """,
    r"SIGSEGV",
    r"in read_header",
    culprits=1,
)
story(
    "abort",
    "a library aborts with a message",
    r"""
    if rank == 1:
        os.write(2, b'free(): invalid pointer\n')
        os.kill(os.getpid(), signal.SIGABRT)
    """,
    r"SIGABRT",
    r"free\(\): invalid pointer",
    culprits=1,
)
story(
    "abort-after-exception",
    "an exception, then the abort of a library that is torn down",
    r"""
    if rank == 1:
        try:
            raise ValueError('lr is 0')
        except ValueError:
            traceback.print_exc()
            os.write(2, b'terminate called without an active exception\n')
            os.abort()
    """,
    r"ValueError: lr is 0",
    r"SIGABRT",
    culprits=1,
)
