"""Exception classes that are also instances of torch's class of the same name, if torch is imported."""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, TypeVar

    _E = TypeVar("_E", bound=Exception)

# The modules of torch that define the classes.
TORCH_SPAWN = "torch.multiprocessing.spawn"
TORCH_ERRORS = "torch.distributed.elastic.multiprocessing.errors"

_joint: dict[tuple[type, type], Any] = {}


def counterpart(own: type[Exception], module: str) -> type[Exception] | None:
    """Returns the exception class of the same name in ``module``; None if that is not imported."""
    theirs = getattr(sys.modules.get(module), own.__name__, None)
    return theirs if isinstance(theirs, type) and issubclass(theirs, Exception) else None


def peer_class(own: type[_E], module: str) -> type[_E]:
    """Returns a subclass of ``own`` and of its counterpart in ``module``; ``own`` if there is none."""
    theirs = counterpart(own, module)
    if theirs is None:
        return own
    if (own, theirs) not in _joint:
        attributes = {"__module__": own.__module__, "__qualname__": own.__qualname__, "__doc__": own.__doc__}
        try:
            made = type(own.__name__, (own, theirs), {**attributes, "_own": own})
        except TypeError:  # The class of a later torch may have an incompatible layout.
            made = own
        # Another thread may have made one meanwhile.
        _joint.setdefault((own, theirs), made)
    joint: type[_E] = _joint[own, theirs]
    return joint


def own_class(kind: type[Exception]) -> type[Exception]:
    """Returns the class that ``peer_class`` was called with: pickle cannot find the joint class by name."""
    return getattr(kind, "_own", kind)
