"""The report of a job: what ``rlaunch.launch`` returns. Built from the launcher's ``result.json``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = ["AttemptResult", "JobCulprit", "RankResult", "Report"]


@dataclass(frozen=True, slots=True)
class RankResult:
    """How one rank of the last attempt ended.

    Attributes:
        rank: its number in the job, among those of its role.
        local_rank: its number on this node.
        status: ``succeeded``, ``failed``, ``stopped`` (by the launcher), ``not_started`` (the system could
            not start it), ``never_started``, or ``abandoned`` (the kernel did not let it end).
        exitcode: its exit code, or minus the number of the signal that ended it; None if it did not run or
            this is unknown.
        pid: its process id, while it ran.
        attempt: number of restarts before it, from 0.
        seconds: time from its start to its end.
        ended: when it ended, in seconds since 1970; None if it did not run or this is unknown.
        told: whether the launcher sent it a signal before it ended.
        killed: whether the launcher killed it, after the grace period or at a second signal.
        peak_memory_bytes: its peak memory, including children that it waited for.
        swept: number of processes that it left behind and the launcher killed, in all attempts.
        log: absolute path of its log file.
        why: why it could not be started.
        role: ``rank`` (it trains), ``server``, ``heter worker`` or ``coordinator``; for a process that runs
            before the job, ``tuner`` or ``mapper``.
        cpu_seconds: CPU time that it and the children that it waited for have used; None if it is unknown.
        major_faults: number of their page faults that needed a read from a disk.
        disk_read_bytes: bytes that they read from disks; the page cache is not counted.
        disk_written_bytes: bytes that they wrote to disks.
    """

    rank: int
    local_rank: int
    status: str
    exitcode: int | None
    pid: int | None
    attempt: int
    seconds: float | None
    ended: float | None
    told: bool
    killed: bool
    peak_memory_bytes: int | None
    swept: int
    log: str
    why: str | None
    role: str
    cpu_seconds: float | None
    major_faults: int | None
    disk_read_bytes: int | None
    disk_written_bytes: int | None


@dataclass(frozen=True, slots=True)
class AttemptResult:
    """An attempt that failed, after which all ranks were restarted.

    Attributes:
        attempt: its number, from 0.
        culprit: the rank that failed first.
        exitcode: that rank's exit code, as in ``RankResult``.
        seconds: time from the attempt's start to its end.
        culprit_role: that rank's role, as in ``RankResult``.
    """

    attempt: int
    culprit: int
    exitcode: int | None
    seconds: float
    culprit_role: str


@dataclass(frozen=True, slots=True)
class JobCulprit:
    """What a job of any number of nodes failed by, or was stopped by.

    Attributes:
        node: number of its node in the last round; None if it is not known.
        host: name of its machine.
        role: the process's role, as in ``RankResult``; None if it is the launcher or the node itself.
        rank: its number in the job, among those of its role.
        exitcode: its exit code, as in ``RankResult``; None too if it was still exiting when it was stopped.
        exception: type of the exception that it printed.
        text: message of the error, or what happened to the node, in one line.
        log: absolute path of its log file on its machine.
    """

    node: int | None
    host: str
    role: str | None
    rank: int | None
    exitcode: int | None
    exception: str | None
    text: str | None
    log: str | None


@dataclass(frozen=True, slots=True)
class Report:
    """How a job ended on this node.

    Attributes:
        outcome: ``completed``, ``failed``, ``stopped`` (by a signal), ``not_started`` (the system could not
            start a rank), ``front_lost`` (the launcher was killed), ``store_lost`` or ``node_lost``.
            Exit status 76: a rank of another node failed. Exit status 77: another node received the signal.
            ``store_lost`` (74) means that node 0's store, etcd or the master became unreachable, or that the
            job went on without this node. ``node_lost`` (75) means that another node was lost.
        exit_status: the launcher's exit status.
        culprit: the rank of this node that failed first or could not be started.
        restarts: number of times that all ranks were restarted.
        ranks: the ranks, by number.
        attempts: the attempts before the last one, in order.
        swept: number of killed leftover processes that belong to no particular rank.
        left_running: pid and name of each process that still runs by ``no_sweep``.
        job_id: name of the job.
        host: name of this machine.
        log_dir: absolute path of the folder with the log files.
        verdict: the launcher's failure report; None if there was no failure.
        reason: why the culprit failed, in one line: the exception that it printed, else its exit.
        last_lines: the last lines of the culprit's log.
        culprit_role: the culprit's role, as in ``RankResult``.
        job_end: how the whole job ended, if its nodes had a rendezvous; else None.
        job_culprit: what the job failed by, on any node; None if nothing failed or it is not known.
    """

    outcome: str
    exit_status: int
    culprit: int | None
    restarts: int
    ranks: tuple[RankResult, ...]
    attempts: tuple[AttemptResult, ...]
    swept: int
    left_running: tuple[tuple[int, str], ...]
    job_id: str
    host: str
    log_dir: str
    verdict: str | None
    reason: str | None
    last_lines: str | None
    culprit_role: str | None
    job_end: str | None
    job_culprit: JobCulprit | None


def make_report_from(result: dict[str, Any]) -> Report:
    """Returns the report of a ``result.json``. Fields that ``Report`` does not have are ignored."""
    # Records of earlier versions do not have them.
    usage = dict.fromkeys(("cpu_seconds", "major_faults", "disk_read_bytes", "disk_written_bytes"))
    ranks = tuple(_make(RankResult, {**usage, **one}) for one in result["ranks"])
    attempts = tuple(_make(AttemptResult, one) for one in result["attempts"])
    left = tuple((one["pid"], one["name"]) for one in result["left_running"])
    culprit = result.get("job_culprit")
    parts: dict[str, Any] = {"ranks": ranks, "attempts": attempts, "left_running": left}
    parts["job_culprit"] = _make(JobCulprit, culprit) if culprit else None
    report: Report = _make(Report, {"job_end": None, **result, **parts})
    return report


def _make(kind: Any, fields: dict[str, Any]) -> Any:
    fields = {**fields, "exitcode": _read_exitcode(fields.get("exit"))}
    return kind(**{name: fields[name] for name in kind.__slots__})


def _read_exitcode(exit_status: Any) -> int | None:
    match exit_status:
        case {"code": int(code)}:
            return code
        case {"signal": {"number": int(number)}}:
            return -number
        case _:
            return None
