"""When ranks ended, as the kernel says it: a rank itself writes nothing while Python's lock is held."""

from __future__ import annotations

import contextlib
import os
import select
import threading
import time
from pathlib import Path

INTERVAL_MS = 10


class Witness:
    """Watches the processes whose `life.*` files appear in a folder, in a thread, until its block ends."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ends: dict[int, float] = {}
        self.ended = threading.Event()
        self.failure: Exception | None = None
        self.thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Witness:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.ended.set()
        self.thread.join()
        if self.failure is not None:
            raise self.failure

    def _run(self) -> None:
        try:
            self._watch()
        except Exception as error:
            self.failure = error

    def _watch(self) -> None:
        seen: set[str] = set()
        pids: dict[int, int] = {}
        poll = select.epoll()
        while not self.ended.is_set():
            for name in set(os.listdir(self.folder)) - seen:
                seen.add(name)
                # One that has ended already has written when it ran last.
                if name.startswith("life."):
                    with contextlib.suppress(ProcessLookupError):
                        pid = int(name.rpartition(".")[2])
                        pidfd = os.pidfd_open(pid)
                        pids[pidfd] = pid
                        poll.register(pidfd, select.EPOLLIN)
            for pidfd, _ in poll.poll(INTERVAL_MS / 1000):
                self.ends[pids.pop(pidfd)] = time.clock_gettime(time.CLOCK_BOOTTIME)
                poll.unregister(pidfd)
                os.close(pidfd)
        for pidfd in pids:
            os.close(pidfd)
        poll.close()
