"""How a job ended: what ``rlaunch.launch`` returns. Made from the launcher's ``result.json``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = ["AttemptResult", "RankResult", "Report"]


@dataclass(frozen=True, slots=True)
class RankResult:
    """One rank of the last attempt.

    Attributes:
        rank: its number in the job, among those of its role.
        local_rank: its number on this machine.
        status: ``succeeded``, ``failed``, ``stopped`` (told to go), ``not_started`` (the system would
            not), ``never_started`` or ``abandoned`` (the kernel would not let it go).
        exitcode: its exit code, or minus the number of the signal that ended it; None if it did not
            run, or if that is not known.
        pid: its process, while it lived.
        attempt: which restart it belongs to, 0 for none.
        seconds: from its start to its end.
        told: whether it was sent a signal before it ended.
        killed: whether it was killed because the grace was over, or at a second signal.
        peak_memory_bytes: the most memory it had, children that it waited for included.
        swept: how many processes it left behind, all of them killed; of all attempts.
        log: its log file, as an absolute path.
        why: why it could not be started.
        role: what it is for: ``rank`` (it trains), ``server``, ``heter worker`` or ``coordinator``; before
            the job, ``tuner`` or ``mapper``.
    """

    rank: int
    local_rank: int
    status: str
    exitcode: int | None
    pid: int | None
    attempt: int
    seconds: float | None
    told: bool
    killed: bool
    peak_memory_bytes: int | None
    swept: int
    log: str
    why: str | None
    role: str


@dataclass(frozen=True, slots=True)
class AttemptResult:
    """One attempt that failed and was followed by another.

    Attributes:
        attempt: its number, from 0.
        culprit: the rank that failed first.
        exitcode: how that rank ended; as in ``RankResult``.
        seconds: from the attempt's start to its end.
        culprit_role: what that one is for.
    """

    attempt: int
    culprit: int
    exitcode: int | None
    seconds: float
    culprit_role: str


@dataclass(frozen=True, slots=True)
class Report:
    """How a job ended.

    Attributes:
        outcome: ``completed``, ``failed``, ``stopped`` (by a signal), ``not_started`` (the system would
            not start a rank), ``front_lost`` (somebody killed the launcher), ``store_lost`` (with exit
            status 74: node 0's store, etcd or the master went away, and the ranks of this node were stopped)
            or ``node_lost`` (75: another node was lost, and the job has ended with it).
        exit_status: the launcher's.
        culprit: the rank that failed first, or could not be started.
        restarts: how many times all ranks were started again.
        ranks: the ranks, by number.
        attempts: the attempts before the last one, in order.
        swept: processes of no rank in particular that were left and killed.
        job_id: the job's name.
        host: this machine's name.
        log_dir: the folder of the logs, as an absolute path.
        verdict: what the launcher has said about the failure; None if there was none.
        culprit_role: what the culprit is for, as in ``RankResult``.
        job_end: how the whole job has ended, where nodes found each other; else None.
    """

    outcome: str
    exit_status: int
    culprit: int | None
    restarts: int
    ranks: tuple[RankResult, ...]
    attempts: tuple[AttemptResult, ...]
    swept: int
    job_id: str
    host: str
    log_dir: str
    verdict: str | None
    culprit_role: str | None
    job_end: str | None


def report_of(result: dict[str, Any]) -> Report:
    """The report of a ``result.json``. What it has beyond the report's attributes is left out."""
    ranks = tuple(_made(RankResult, one) for one in result["ranks"])
    attempts = tuple(_made(AttemptResult, one) for one in result["attempts"])
    report: Report = _made(Report, {"job_end": None, **result, "ranks": ranks, "attempts": attempts})
    return report


def _made(kind: Any, fields: dict[str, Any]) -> Any:
    fields = {**fields, "exitcode": _exitcode(fields.get("exit"))}
    return kind(**{name: fields[name] for name in kind.__slots__})


def _exitcode(ending: Any) -> int | None:
    match ending:
        case {"code": int(code)}:
            return code
        case {"signal": {"number": int(number)}}:
            return -number
        case _:
            return None
