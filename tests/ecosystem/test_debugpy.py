"""A debugger in ranks: debugpy, driven by the protocol that VS Code speaks."""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import comparing
from dap import Session
from ecosystem_jobs import LIMIT, RLAUNCH_RUN, SCRIPTS, Jobs, environment
from ecosystem_table import Row
from launching import free_ports, until
from paths import ROOT

LINE = next(
    number
    for number, line in enumerate((SCRIPTS / "debugged.py").read_text().splitlines(), 1)
    if "A breakpoint of the test" in line
)


def test_one_rank_listens(jobs: Jobs, row: Row) -> None:
    command = f"{RLAUNCH_RUN} --nproc-per-node 2 debugged.py --listen"
    row.begin("debugpy", "`debugpy.listen` in rank 1, a client attaches", command)
    folder = jobs.new_folder()
    with jobs.start(command, folder) as process:
        said = folder / "debugger.1.json"
        until(lambda: said.exists() or process.poll() is not None, "rank 1's debugger", LIMIT)
        where = json.loads(said.read_text())
        with Session(socket.create_connection((where["host"], where["port"]))) as session:
            session.begin("attach", str(folder / "debugged.py"), LINE, connect=where)
            assert session.evaluate_where_stopped("f'rank {rank}: {sum_of_ranks}'") == "'rank 1: 3'"
            assert jobs.wait(process, folder).facts() == [{"sum": 3}] * 2
    row.seen = "its breakpoint stops rank 1, which then goes on"


def test_an_unchanged_script_of_one_rank(jobs: Jobs, row: Row) -> None:
    command = f"{RLAUNCH_RUN} --nproc-per-node 2 --no-python ./debug_rank.sh debugged.py"
    row.begin("debugpy", "`python -m debugpy --listen` for rank 1 alone", command)
    folder, port = jobs.new_folder(), free_ports(1)
    with jobs.start(command, folder, DEBUG_RANK="1", DEBUG_PORT=str(port)) as process:
        with until(lambda: connected(port), "rank 1's debugger", LIMIT) as session:
            session.begin(
                "attach", str(folder / "debugged.py"), LINE, connect={"host": "127.0.0.1", "port": port}
            )
            assert session.evaluate_where_stopped("f'rank {rank}: {sum_of_ranks}'") == "'rank 1: 3'"
        assert jobs.wait(process, folder).facts() == [{"sum": 3}] * 2
    assert (folder / "debug_rank.sh").read_text() in (ROOT / "docs/debuggers.md").read_text()
    row.seen = "its breakpoint stops rank 1, which then goes on"


def connected(port: int) -> Session | None:
    """A session with the adapter at this port, once it listens."""
    try:
        return Session(socket.create_connection(("127.0.0.1", port)))
    except ConnectionRefusedError:
        return None


@contextlib.contextmanager
def editor_session(folder: Path) -> Iterator[Session]:
    """The session of an editor with the adapter that it has started."""
    own, adapters = socket.socketpair()
    with (
        subprocess.Popen(
            [sys.executable, "-m", "debugpy.adapter"],
            env=environment(folder),
            stdin=adapters,
            stdout=adapters,
        ) as adapter,
        Session(own) as session,
    ):
        adapters.close()
        try:
            yield session
        finally:
            adapter.kill()


def test_a_breakpoint_in_all_ranks(jobs: Jobs, row: Row) -> None:
    command = "python -m rlaunch.run --nproc-per-node 2 debugged.py"
    row.begin("debugpy", "`launch.json` with the launcher's module", command)
    seen = {module: stopped_ranks(jobs, module) for module in ("torch.distributed.run", "rlaunch.run")}
    assert seen["rlaunch.run"] == seen["torch.distributed.run"] == {"'rank 0: 3'", "'rank 1: 3'"}
    row.seen = f"{comparing.ALIKE}: a breakpoint stops both ranks, each of which is a session of the editor"


def stopped_ranks(jobs: Jobs, module: str) -> set[str]:
    """Starts a job as VS Code does; returns what it sees at the breakpoint of each rank."""
    folder = jobs.new_folder()
    script = str(folder / "debugged.py")
    with contextlib.ExitStack() as sessions:
        editor = sessions.enter_context(editor_session(folder))
        editor.begin(
            "launch",
            script,
            LINE,
            module=module,
            args=["--nproc-per-node", "2", script],
            cwd=str(folder),
            console="internalConsole",
            python=[sys.executable],
            env=environment(folder),
        )
        ranks = []
        # debugpy names each rank to the editor, which attaches to it.
        for _ in range(2):
            said = editor.event("debugpyAttach")
            rank = sessions.enter_context(
                Session(socket.create_connection((said["connect"]["host"], said["connect"]["port"])))
            )
            rank.begin("attach", script, LINE, **said)
            ranks.append(rank)
        seen = {rank.evaluate_where_stopped("f'rank {rank}: {sum_of_ranks}'") for rank in ranks}
        assert editor.event("exited")["exitCode"] == 0
    return seen
