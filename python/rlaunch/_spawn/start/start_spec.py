"""What one rank is started with and does not receive by pickle."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ... import _lib
    from ..._preload.client import Zygote
    from ..sending.call import Call
    from ..sending.pickling import Pickler
    from ..worker import EnvDelta, Lifeline


class StartSpec:
    """How to start one rank.

    Attributes:
        spawner: starts and watches the rank.
        leases: leases of the ranks' ports; None if there are none.
        lifeline: the rank's end of the lifeline; receives its descriptor when the rank starts.
        env_delta: how the rank's environment differs from this process's.
        log: path of the file for the rank's stdout and stderr; None: those of this process.
        env_overflow: the file with variables too long for the environment, if there is one.
        call: the user's function and arguments, which the process object has among its own.
        pickler: pickles the call.
        zygote: the preload server that forks the rank; None for the other start methods.
    """

    def __init__(
        self,
        spawner: _lib.Spawner,
        leases: _lib.PortLeases | None,
        lifeline: Lifeline,
        env_delta: EnvDelta,
        log: str | None,
        env_overflow: _lib.Descriptor | None,
        call: Call,
        pickler: Pickler,
        zygote: Zygote | None = None,
    ) -> None:
        self.spawner = spawner
        self.leases = leases
        self.lifeline = lifeline
        self.env_delta = env_delta
        self.log = log
        self.env_overflow = env_overflow
        self.call = call
        self.pickler = pickler
        self.zygote = zygote
