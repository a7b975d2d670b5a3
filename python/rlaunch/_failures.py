"""Failed ranks, and the report of them. Contract: the classes of these names in torch 2.15."""

from __future__ import annotations

import json
import os
import signal
import time
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

NOT_AVAILABLE = "<N/A>"
_WIDEST = 60
# What a rank has written may be anything.
_LONGEST_FILE = 64 << 20


@dataclass
class ProcessFailure:
    """One failed rank.

    A file that is not what ``record`` writes is taken for none; torch raises.

    Attributes:
        local_rank: its number on its machine.
        pid: its process, while it lived.
        exitcode: its exit code, or minus the number of the signal that ended it.
        error_file: the file that ``record`` has written in it; ``<N/A>`` without one.
        message: what that file says: an object, or a text; without a file, a text about the exit.
        timestamp: when it failed, as the file says, else now; seconds since the epoch, whole ones.
        error_file_data: all that the file says.
    """

    local_rank: int
    pid: int
    exitcode: int
    error_file: str
    error_file_data: dict[str, Any] = field(init=False)
    message: Any = field(init=False)
    timestamp: int = field(init=False)

    def __post_init__(self) -> None:
        read = _read(self.error_file)
        if read is None:
            self.error_file = NOT_AVAILABLE
            self.error_file_data, self.message, self.timestamp = {"message": "<NONE>"}, "", int(time.time())
        else:
            self.error_file_data, self.message, self.timestamp = read
        if self.message:
            return
        if self.exitcode < 0:
            said = f"Signal {-self.exitcode} ({self.signal_name()}) received by PID {self.pid}"
        else:
            traits = {"category": "system_terminated_error", "retryability": "False"}
            self.error_file_data["errorTraits"] = traits
            said = "To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html"
        self.message = said

    def signal_name(self) -> str:
        """The name of the signal that ended it; ``<N/A>`` if none did, or one without a name."""
        try:
            return signal.Signals(-self.exitcode).name if self.exitcode < 0 else NOT_AVAILABLE
        except ValueError:
            return NOT_AVAILABLE

    def timestamp_isoformat(self) -> str:
        """When it failed, local time: ``YYYY-MM-DD_HH:MM:SS``."""
        return datetime.fromtimestamp(self.timestamp).isoformat(sep="_")


def _read(path: str) -> tuple[dict[str, Any], Any, int] | None:
    """The content, message and time of an error file; None if it is none."""
    try:
        if not os.path.isfile(path) or os.path.getsize(path) > _LONGEST_FILE:
            return None
        with open(path, encoding="utf-8") as file:
            content = json.load(file)
        message = content["message"]
        if isinstance(message, str):
            stamp = int(content.get("timestamp", 0))
        else:
            stamp = int(message["extraInfo"]["timestamp"])
        datetime.fromtimestamp(stamp)
    except (OSError, ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
        return None
    return content, message, stamp


class ChildFailedError(Exception):
    """Ranks failed. The text is the report that torchrun ends with.

    Attributes:
        name: what they ran.
        failures: by global rank, in the order of the report.
    """

    def __init__(self, name: str, failures: dict[int, ProcessFailure], root: int | None = None) -> None:
        """``root``: the global rank that failed first. Default: the one with the smallest timestamp, the
        first such one in ``failures``, as torch has it.

        Raises:
            ValueError: no failures, or ``root`` is none of them.
        """
        if not failures or (root is not None and root not in failures):
            raise ValueError(f"the root cause, rank {root}, is not among the failures: {list(failures)}")
        self.name = name
        self.failures = failures
        self._root = root
        # Not super(): torch's class may come next, and wants more.
        Exception.__init__(self, self.format_msg())

    def __reduce__(self) -> Any:
        return _again, (self.name, self.failures, self._root)

    def get_first_failure(self) -> tuple[int, ProcessFailure]:
        """The root cause: its global rank, and what is known of it."""
        root = self._root
        if root is None:
            root = min(self.failures, key=lambda rank: self.failures[rank].timestamp)
        return root, self.failures[root]

    def format_msg(self, boarder_delim: str = "=", section_delim: str = "-") -> str:
        """The report."""
        import socket

        host = socket.getfqdn()
        title = f"{self.name} FAILED"
        root = self.get_first_failure()[0]
        of_ranks = {
            rank: _describe(index, rank, failure, host)
            for index, (rank, failure) in enumerate(self.failures.items())
        }
        lines = [line for text in of_ranks.values() for line in text.split("\n")]
        width = min(_WIDEST, max(map(len, [title, *lines])))
        border, rule = boarder_delim * width, section_delim * width
        root_cause = of_ranks.pop(root)
        others = list(of_ranks.values()) or ["  <NO_OTHER_FAILURES>"]
        head = ["", border, title, rule, "Failures:", *others]
        return "\n".join([*head, rule, "Root Cause (first observed failure):", root_cause, border])


def _describe(index: int, rank: int, failure: ProcessFailure, host: str) -> str:
    message = failure.message
    if isinstance(message, dict):
        about = message.get("extraInfo", {})
        message = about.get("py_callstack", message.get("message", NOT_AVAILABLE))
        message = str(message).replace("\n", "\n  ")
    name = failure.signal_name()
    signal_name = "" if name == NOT_AVAILABLE else f" ({name})"
    rows = {
        "time": failure.timestamp_isoformat(),
        "host": host,
        "rank": f"{rank} (local_rank: {failure.local_rank})",
        "exitcode": f"{failure.exitcode} (pid: {failure.pid}) {signal_name}",
        "error_file": failure.error_file,
        "traceback": message,
    }
    return "\n".join([f"[{index}]:", *(f"  {key:<10}: {value}" for key, value in rows.items())])


def _again(name: str, failures: dict[int, ProcessFailure], root: int | None) -> ChildFailedError:
    from .errors import TORCH_ERRORS, peer_class

    return peer_class(ChildFailedError, TORCH_ERRORS)(name, failures, root)
