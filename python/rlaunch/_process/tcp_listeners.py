"""Lists listening TCP sockets from /proc/PID/net (Linux, Documentation/networking/proc_net_tcp.rst)."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

# TCP_LISTEN, hexadecimal.
_LISTEN = "0A"


def list_listeners(pid: int | str = "self") -> Iterator[tuple[str, int, str]]:
    """Yields each listening socket in a process's network namespace: host (hexadecimal), port, inode.

    Raises:
        OSError: /proc cannot be read.
    """
    for table in ("tcp", "tcp6"):
        try:
            file = open(f"/proc/{pid}/net/{table}", encoding="ascii")  # noqa: SIM115
        except FileNotFoundError:
            if table == "tcp6":  # A kernel without IPv6.
                return
            raise
        with file:
            next(file, None)
            for line in file:
                # sl, local address, remote address, state, ..., inode
                fields = line.split()
                # Listening sockets come first (tcp_seq_start in net/ipv4/tcp_ipv4.c).
                if fields[3] != _LISTEN:
                    break
                host, _, port = fields[1].partition(":")
                yield host, int(port, 16), fields[9]
