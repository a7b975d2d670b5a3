"""A request to fork a rank off a preload server (zygote), as the zygote and the new rank see it."""

from __future__ import annotations

import contextlib
import errno
import os

from .. import _lib

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


class ForkRequest:
    """The fields of a request, and the descriptors that came with it.

    Texts in the fields are bytes decoded as Latin-1. The first descriptor is the file with the fields.

    Attributes:
        fields: ``argv``, ``env`` (lines ``NAME=value``), ``cwd``, ``fds`` (index of each descriptor by
            name), ``session``, ``scope``, ``parent``, ``nofile``, ``cpus``, ``orphan``, ``payload``.
        orphan: whether the rank becomes a child of the nearest subreaper instead of the zygote.
    """

    def __init__(self, fields: dict[str, Any], fds: list[int]) -> None:
        self.fields = fields
        self.orphan: bool = fields["orphan"]
        self._fds = fds

    def fd(self, name: str) -> int:
        """Returns the descriptor of that name; -1 if there is none."""
        index = self.fields["fds"].get(name)
        return -1 if index is None else self._fds[index]

    def fds_from(self, start: int) -> list[int]:
        """Returns the descriptors from this index on."""
        return self._fds[start:]

    def close(self) -> None:
        """Closes all descriptors. For the zygote, once the rank has its own copies."""
        for fd in self._fds:
            os.close(fd)

    def close_except(self, *names: str) -> None:
        """Closes the file with the fields, and the named descriptors other than these. For the rank."""
        for fd in [self._fds[0], *map(self.fd, self.fields["fds"].keys() - set(names))]:
            os.close(fd)

    def set_up_rank(self, reply: int, close_zygotes_fds: Callable[[], None]) -> None:
        """In the rank: sets up cgroup, stdio, session, lifeline, limits and CPUs as an exec would.

        Writes ``ok`` or the error to the descriptor ``reply``. After an error it ends this process with
        status 127.
        """
        fields = self.fields
        try:
            close_zygotes_fds()
            self._enter_cgroup()
            _lib.set_up_rank_process(
                (self.fd("stdin"), self.fd("stdout"), self.fd("stderr")),
                fields["session"],
                self.fd("lifeline"),
                fields["scope"] == "group",
                fields.get("parent") or os.getppid(),
                None if fields["cwd"] is None else fields["cwd"].encode("latin-1"),
                fields["nofile"],
                fields["cpus"],
            )
        except OSError as error:
            os.write(reply, f"-{error.errno} {error.strerror}".encode())
            os._exit(127)
        except BaseException as error:
            os.write(reply, f"-{errno.EINVAL} {type(error).__name__}: {error}"[:4000].encode())
            os._exit(127)
        os.write(reply, b"ok")
        os.close(reply)

    def _enter_cgroup(self) -> None:
        if self.fd("cgroup") >= 0:
            # A failure is ignored, as for a rank that is started by clone3.
            with contextlib.suppress(OSError):
                procs = os.open("cgroup.procs", os.O_WRONLY | os.O_CLOEXEC, dir_fd=self.fd("cgroup"))
                with open(procs, "wb", buffering=0) as file:
                    file.write(b"0")
