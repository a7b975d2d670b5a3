"""Who listens on TCP ports of this machine, as the kernel tells it (its proc_net_tcp.rst)."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

_LISTENS = "0A"


def sockets(pid: int | str = "self") -> Iterator[tuple[str, int, str]]:
    """Of each socket that listens in a process's network: its host (hexadecimal), its port and its inode.

    Raises:
        OSError: the system does not say.
    """
    for table in ("tcp", "tcp6"):
        with open(f"/proc/{pid}/net/{table}", encoding="ascii") as file:
            next(file, None)
            for line in file:
                # sl, local address, remote address, state, ..., inode
                fields = line.split()
                if fields[3] == _LISTENS:
                    host, _, port = fields[1].partition(":")
                    yield host, int(port, 16), fields[9]
