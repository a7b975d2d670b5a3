"""A shell with job control, as small as it gets: one job in the foreground of the terminal on its stdin.

When the job stops there is a file `stopped`; when a process has opened and closed the fifo `fg`, it goes on.
"""

from __future__ import annotations

import os
import signal
import sys


def main(command: list[str]) -> int:
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)  # tcsetpgrp from the background, as every shell.
    shell = os.getpgrp()
    pid = os.fork()
    if pid == 0:
        os.setpgid(0, 0)
        os.tcsetpgrp(0, os.getpid())
        signal.signal(signal.SIGTTOU, signal.SIG_DFL)
        os.execv(command[0], command)
    while True:
        _, status = os.waitpid(pid, os.WUNTRACED)
        if not os.WIFSTOPPED(status):
            return os.waitstatus_to_exitcode(status)
        os.tcsetpgrp(0, shell)
        open("stopped", "w").close()
        with open("fg", "rb") as fifo:
            fifo.read()
        os.tcsetpgrp(0, pid)
        os.killpg(pid, signal.SIGCONT)


if __name__ == "__main__":
    code = main(sys.argv[1:])
    os._exit(code if code >= 0 else 128 - code)
