"""Exit codes and signals of ranks: what does the launcher's own status become?"""

from __future__ import annotations

import functools
import os
import signal
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from cases.case import Group, Observation, case
from job import Job
from launchers import Launcher

RANKS = 2
# Ranks that are not the culprit hold on, so that their own end is the launcher's doing.
LEAVE = """
who, how, number = sys.argv[1], sys.argv[2], int(sys.argv[3])
culprit = {"first": rank == 0, "last": rank == size - 1, "all": True}[who]
if how == "code":
    if not culprit and number:
        hold()
    os._exit(number if culprit else 0)
import resource
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
if not culprit:
    hold()
if number != signal.SIGKILL:
    signal.signal(number, signal.SIG_DFL)
os.kill(os.getpid(), number)
sleep()
"""
HARMLESS = {
    signal.SIGCHLD,
    signal.SIGCONT,
    signal.SIGURG,
    signal.SIGWINCH,
    signal.SIGSTOP,
    signal.SIGTSTP,
    signal.SIGTTIN,
    signal.SIGTTOU,
}
DEADLY = [number for number in range(1, 32) if number not in HARMLESS]
WHO = {"first": "rank 0", "last": "the last rank", "all": "all ranks"}


def try_all(
    who: str,
    how: str,
    quick: Sequence[int],
    full: Sequence[int],
    rival: Sequence[int],
    launcher: Launcher,
    folder: Path,
) -> Observation:
    """Runs a job for each number; reports those whose status is another."""

    def one(number: int) -> tuple[int, int | None, str]:
        with Job(launcher, folder / str(number), LEAVE, who, how, str(number), ranks=RANKS) as job:
            ended = job.wait(launcher.grace + 60)
            left = job.survivors() if ended else []
            return number, job.code, job.status() + (f" and {len(left)} survivors" if left else "")

    numbers = launcher.amount(quick, full, rival)
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        seen = list(pool.map(one, numbers))
    base = 128 if how == "signal" else 0
    wrong = [(number, text) for number, code, text in seen if code != base + number or "survivors" in text]
    if not wrong:
        return Observation(f"all {len(seen)} right", True)
    said = sorted({text for _, text in wrong})
    some = ", ".join(said[:3]) + (", …" if len(said) > 3 else "")
    return Observation(f"{len(wrong)} of {len(seen)} wrong: {some}", False)


for who, words in WHO.items():
    case(f"code-{who}", Group.STATUS, f"exit codes 0 to 255 of {words}", "exit with that code")(
        functools.partial(try_all, who, "code", [0, 1, 7, 128, 255], range(256), range(0, 256, 5))
    )
    case(f"signal-{who}", Group.STATUS, f"signals that end {words}", "exit 128 + signal")(
        functools.partial(try_all, who, "signal", [1, 6, 9, 10, 11, 15], DEADLY, DEADLY)
    )
