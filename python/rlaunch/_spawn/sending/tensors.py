"""How tensors of Paddle and storages of torch are pickled: by value.

Paddle's own reducers for processes put a tensor into shared memory that its first receiver removes, so that
other ranks do not find it. Its ``__reduce_ex__`` loses the name, makes a plain tensor of a parameter, and
crashes on sparse tensors.

torch itself pickles a tensor of a newer type (float8, uint16, ...) by its untyped storage, which it cannot
unpickle (``UntypedStorage.__reduce__`` in torch/storage.py; seen with 2.15). Bytes it can.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # A rank needs this module for its result; importing typing takes longer.
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


def paddle_reducers() -> dict[type, Callable[[Any], Any]]:
    """Returns the reducers of Paddle's classes of tensors; none if this process has not imported Paddle."""
    try:
        base = sys.modules["paddle"].base
        return dict.fromkeys((base.core.eager.Tensor, base.framework.EagerParamBase), _reduce_paddle_tensor)
    except (KeyError, AttributeError):  # The second while it is being imported.
        return {}


def _reduce_paddle_tensor(tensor: Any) -> Any:
    if tensor.is_dist() or tensor.is_selected_rows():
        return tensor.__reduce_ex__(4)
    is_parameter = isinstance(tensor, sys.modules["paddle"].base.framework.EagerParamBase)
    properties = {name: getattr(tensor, name) for name in ("name", "stop_gradient", "persistable")}
    content = _reduce_content(tensor)
    return _rebuild_paddle_tensor, (is_parameter, *content, properties), vars(tensor) or None


def _reduce_content(tensor: Any) -> tuple[str, Any, Any]:
    """Returns the kind of the memory, its parts, and the shape or the type of the elements."""
    if tensor.is_sparse_coo():
        return "coo", (tensor.indices(), tensor.values()), list(tensor.shape)
    if tensor.is_sparse_csr():
        return "csr", (tensor.crows(), tensor.cols(), tensor.values()), list(tensor.shape)
    dtype = str(tensor.dtype).removeprefix("paddle.")
    if not tensor._is_initialized():
        return "none", list(tensor.shape), dtype
    # NumPy has no type for float8. For bfloat16 Paddle uses uint16, both ways.
    array = (tensor.detach().view("uint8") if dtype.startswith("float8") else tensor).numpy()
    return "cpu" if tensor.place.is_cpu_place() else "device", array, dtype


def _rebuild_paddle_tensor(is_parameter: bool, kind: str, parts: Any, detail: Any, properties: Any) -> Any:
    import paddle

    if kind in ("coo", "csr"):
        create = paddle.sparse.sparse_coo_tensor if kind == "coo" else paddle.sparse.sparse_csr_tensor
        tensor = create(*parts, detail, place=parts[-1].place)
    elif kind == "none":
        tensor = None if is_parameter else paddle.empty(parts, detail)
    else:
        # Memory of a device goes to the receiver's device.
        tensor = paddle.to_tensor(parts, place=paddle.CPUPlace() if kind == "cpu" else None)
        tensor = tensor.view(detail) if detail.startswith("float8") else tensor
    if is_parameter:
        shape = parts if tensor is None else tensor.shape
        parameter = paddle.base.framework.EagerParamBase(shape, detail)
        if tensor is not None:
            parameter._set_impl(tensor)
        tensor = parameter
    for name, value in properties.items():
        setattr(tensor, name, value)
    return tensor


def torch_reducers() -> dict[type, Callable[[Any], Any]]:
    """Returns the reducers of torch's classes of storages; none if this process has not imported torch."""
    try:
        return {sys.modules["torch"].UntypedStorage: _reduce_torch_storage}
    except (KeyError, AttributeError):  # The second while it is being imported.
        return {}


def _reduce_torch_storage(storage: Any) -> Any:
    torch = sys.modules["torch"]
    return _rebuild_torch_storage, (torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage),)


def _rebuild_torch_storage(tensor: Any) -> Any:
    # A storage that is no tensor's comes back as a typed one of bytes; torch cannot unpickle it either.
    # What torch.load passes to _rebuild_tensor_v3 (torch/_utils.py) is a typed storage too.
    return tensor._typed_storage()
