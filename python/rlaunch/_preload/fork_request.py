"""The request to fork a rank off a preload server (zygote): its encoding and its decoder.

A request is a list of items ``NAME=VALUE``, each with a NUL byte at its end, which no value contains:

* ``argv``, any number: the program and its arguments; none if there is a descriptor ``payload``;
* ``env``, any number: a variable, ``NAME=value``;
* ``cwd``, ``nofile`` (the soft limit of open files), ``cpu`` (any number): if absent, those of the server;
* ``parent``: the pid of a subreaper, whose child the rank becomes, with a session of its own. If absent, the
  rank is a child of the server;
* ``fd``, any number: the name of a descriptor. Descriptors are sent in the order of their names, then those
  without a name, which multiprocessing passes along.

The launcher encodes its requests in ``src/run/zygote/fork_request.rs``.
"""

from __future__ import annotations

import os
import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

# The fields and their values, and the fields that are there once at most.
_NUMBER, _TEXT = re.compile(b"[0-9]+"), re.compile(b".*", re.DOTALL)
_VALUES = {
    b"argv": _TEXT,
    b"env": re.compile(b"[^=]*=.*", re.DOTALL),
    b"cwd": _TEXT,
    b"nofile": _NUMBER,
    b"cpu": _NUMBER,
    b"parent": _NUMBER,
    b"fd": re.compile(b"stdin|stdout|stderr|lifeline|cgroup|status|payload|tracker"),
}
_ONCE = (b"cwd", b"nofile", b"parent")


def encode(items: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Encodes fields, given as names and values."""
    lines = [b"%s=%s" % item for item in items]
    for line in lines:
        if b"\0" in line:
            raise ValueError(f"embedded null byte: {line!r}")
    return b"".join(line + b"\0" for line in lines)


class ForkRequest:
    """A decoded request and its descriptors.

    Attributes:
        argv, env, cwd, nofile, cpus, parent: the fields.
        fds: all descriptors.
        unnamed: those without a name.
    """

    def __init__(self, request: bytes, fds: list[int]) -> None:
        """Decodes a request.

        Raises:
            ValueError: it is damaged; the text names the field.
        """
        values: dict[bytes, list[bytes]] = {name: [] for name in _VALUES}
        *items, rest = request.split(b"\0")
        if rest:
            raise ValueError(f"the request to fork a rank is cut off in {rest[:100]!r}")
        for item in items:
            name, equals, value = item.partition(b"=")
            if not equals or name not in _VALUES or not _VALUES[name].fullmatch(value):
                raise ValueError(f"the request to fork a rank has an invalid field: {item[:100]!r}")
            if (name in _ONCE and values[name]) or (name == b"fd" and value in values[name]):
                raise ValueError(f"the request to fork a rank has a field twice: {item[:100]!r}")
            values[name].append(value)
        names = [name.decode() for name in values[b"fd"]]
        if len(names) > len(fds):
            raise ValueError(f"the request to fork a rank came without its descriptor {names[len(fds)]!r}")
        self.fds, self.unnamed = fds, fds[len(names) :]
        self._named = dict(zip(names, fds[: len(names)], strict=True))
        self.argv, self.env = values[b"argv"], values[b"env"]
        self.cwd = next(iter(values[b"cwd"]), None)
        self.nofile, self.parent = (next(map(int, values[name]), None) for name in (b"nofile", b"parent"))
        self.cpus = [*map(int, values[b"cpu"])] or None

    def fd(self, name: str) -> int:
        """Returns the descriptor of that name; -1 if there is none."""
        return self._named.get(name, -1)

    def close(self, *kept: int) -> None:
        """Closes all descriptors except these."""
        for fd in {*self.fds} - {*kept}:
            os.close(fd)
