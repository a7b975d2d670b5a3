"""How torch's storages are pickled: by value.

torch itself pickles a tensor of a newer type (float8, uint16, ...) by its untyped storage, which it cannot
unpickle (``UntypedStorage.__reduce__`` in torch/storage.py; seen with 2.15). Bytes it can.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # A rank needs this module for its result; importing typing takes longer.
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


def torch_reducers() -> dict[type, Callable[[Any], Any]]:
    """Returns the reducers of torch's classes of storages; none if this process has not imported torch."""
    try:
        return {sys.modules["torch"].UntypedStorage: _reduce_storage}
    except (KeyError, AttributeError):  # The second while it is being imported.
        return {}


def _reduce_storage(storage: Any) -> Any:
    torch = sys.modules["torch"]
    return _rebuild_storage, (torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage),)


def _rebuild_storage(tensor: Any) -> Any:
    # What torch.load passes to _rebuild_tensor_v3 (torch/_utils.py) is a typed storage too.
    return tensor._typed_storage()
