"""Failed ranks and their failure report. Contract: torch 2.15's ``ChildFailedError``, ``ProcessFailure``."""

from __future__ import annotations

import json
import os
import signal
import time
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from .torch_classes import TORCH_ERRORS, peer_class

NOT_AVAILABLE = "<N/A>"
_MAX_WIDTH = 60
# Bytes. The file is written by the rank's program, so it may be anything.
_MAX_FILE_SIZE = 64 << 20


@dataclass
class ProcessFailure:
    """One failed rank.

    Unlike torch's class, an error file with invalid content counts as none; torch's raises.

    Attributes:
        local_rank: its number on its node.
        pid: its process id, while it ran.
        exitcode: its exit code, or minus the number of the signal that ended it.
        error_file: path of the error file that ``record`` wrote; ``<N/A>`` without one.
        message: the file's message, an object or a text; without a file, a text about the exit.
        timestamp: time of the failure from the file, else now; whole seconds since the epoch.
        error_file_data: the content of the file.
    """

    local_rank: int
    pid: int
    exitcode: int
    error_file: str
    error_file_data: dict[str, Any] = field(init=False)
    message: Any = field(init=False)
    timestamp: int = field(init=False)

    def __post_init__(self) -> None:
        read = _read_error_file(self.error_file)
        if read is None:
            self.error_file = NOT_AVAILABLE
            self.error_file_data, self.message, self.timestamp = {"message": "<NONE>"}, "", int(time.time())
        else:
            self.error_file_data, self.message, self.timestamp = read
        if self.message:
            return
        if self.exitcode < 0:
            message = f"Signal {-self.exitcode} ({self.signal_name()}) received by PID {self.pid}"
        else:
            traits = {"category": "system_terminated_error", "retryability": "False"}
            self.error_file_data["errorTraits"] = traits
            message = "To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html"
        self.message = message

    def signal_name(self) -> str:
        """Returns the name of the signal that ended it; ``<N/A>`` if none did or it has no name."""
        try:
            return signal.Signals(-self.exitcode).name if self.exitcode < 0 else NOT_AVAILABLE
        except ValueError:
            return NOT_AVAILABLE

    def timestamp_isoformat(self) -> str:
        """Returns the local time of the failure: ``YYYY-MM-DD_HH:MM:SS``."""
        return datetime.fromtimestamp(self.timestamp).isoformat(sep="_")


def _read_error_file(path: str) -> tuple[dict[str, Any], Any, int] | None:
    """Returns content, message and timestamp of an error file; None if there is no valid one."""
    try:
        if not os.path.isfile(path) or os.path.getsize(path) > _MAX_FILE_SIZE:
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
    """Ranks failed. The text is the failure report in the form that torchrun prints.

    Attributes:
        name: name of the program or function that they ran.
        failures: the failed ranks by global rank, in the order of the report.
        report: the ``rlaunch.Report`` of the job; None if no launcher made one.
    """

    def __init__(
        self,
        name: str,
        failures: dict[int, ProcessFailure],
        root: int | None = None,
        report: Any = None,
        text: str = "",
    ) -> None:
        """
        Args:
            root: the global rank that failed first. Default, as in torch: the first one in ``failures`` with
                the smallest timestamp.
            report: the ``rlaunch.Report`` of the job.
            text: the launcher's failure report. Default: ``format_msg()``.

        Raises:
            ValueError: ``failures`` is empty or does not contain ``root``.
        """
        if not failures or (root is not None and root not in failures):
            raise ValueError(f"the root cause, rank {root}, is not among the failures: {list(failures)}")
        self.name = name
        self.failures = failures
        self.report = report
        self._root = root
        # Not by super(): torch's class may be next, and takes more arguments.
        Exception.__init__(self, text or self.format_msg())

    def __reduce__(self) -> Any:
        return _make_child_failed_error, (self.name, self.failures, self._root, self.report, str(self))

    def get_first_failure(self) -> tuple[int, ProcessFailure]:
        """Returns the root cause: its global rank and its failure."""
        root = self._root
        if root is None:
            root = min(self.failures, key=lambda rank: self.failures[rank].timestamp)
        return root, self.failures[root]

    def format_msg(self, boarder_delim: str = "=", section_delim: str = "-") -> str:
        """Returns the failure report."""
        import socket

        host = socket.getfqdn()
        title = f"{self.name} FAILED"
        root = self.get_first_failure()[0]
        blocks = {
            rank: _format_failure(index, rank, failure, host)
            for index, (rank, failure) in enumerate(self.failures.items())
        }
        lines = [line for text in blocks.values() for line in text.split("\n")]
        width = min(_MAX_WIDTH, max(map(len, [title, *lines])))
        border, rule = boarder_delim * width, section_delim * width
        root_cause = blocks.pop(root)
        others = list(blocks.values()) or ["  <NO_OTHER_FAILURES>"]
        head = ["", border, title, rule, "Failures:", *others]
        return "\n".join([*head, rule, "Root Cause (first observed failure):", root_cause, border])


def _format_failure(index: int, rank: int, failure: ProcessFailure, host: str) -> str:
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


def _make_child_failed_error(
    name: str, failures: dict[int, ProcessFailure], root: int | None, report: Any, text: str
) -> ChildFailedError:
    return peer_class(ChildFailedError, TORCH_ERRORS)(name, failures, root, report, text)
