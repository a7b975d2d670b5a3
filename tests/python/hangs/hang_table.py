"""What users see of jobs that hang, under rlaunch, torchrun and Paddle's launcher: docs/hangs.md.

    python tests/python/hangs/hang_table.py --results hangs.json --jobs 2 --minutes 60 --write docs/hangs.md

Each job has 3 ranks, which print 'rank N ready' before they hang. A run lasts for 120 s from the moment at
which all three have printed it. Then the launcher receives SIGTERM, and 10 s later all processes of the job
receive SIGKILL. The file of the results keeps each finished run with everything that its console showed. A
later call adds the runs that are missing; with --minutes 0 it only writes the page.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple, TypedDict

import psutil

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "support"))

from launching import environment  # noqa: E402

WATCHED = 120.0
ERROR = re.compile(r"(?:\[default\d+\]:)?(?:\[rank\d+\]: |  (?:\| )?)?(\w*(?:Error|Exception): .*)")
CULPRIT = re.compile(r"(?:Container )?rank (\d+) (?:status )?(?:failed|was killed)|\s*rank +: (\d+)")
STOP = threading.Event()


class Launcher(NamedTuple):
    key: str
    title: str
    command: str


RLAUNCH = "rlaunch --nproc_per_node 3"
TORCHRUN = "torch.distributed.run --standalone --nproc-per-node 3 --tee 3 --log-dir log"
LAUNCHERS = {
    "torch": (
        Launcher("rlaunch", "rlaunch", f"{RLAUNCH} --frameworks torch --hang_timeout 30"),
        Launcher("torchrun", "torchrun", TORCHRUN),
    ),
    "paddle": (
        Launcher("rlaunch", "rlaunch", f"{RLAUNCH} --hang_timeout 10"),
        Launcher("rlaunch-default", "rlaunch, default --hang_timeout", RLAUNCH),
        Launcher("paddle", "Paddle's launcher", "paddle.distributed.launch --nproc_per_node 3"),
    ),
}
NOTES = {
    "torch": "torch's gloo waits for 30 minutes. `--tee 3` marks the ranks' lines on torchrun's console.",
    "paddle": """Paddle's gloo waits for 30 s: a report comes only if `--hang_timeout` is less. Otherwise
collectives fail, and the launchers name a rank whose collective has failed. It need not be the odd rank.""",
}


class Run(TypedDict):
    """What happened. Times are seconds since all ranks were ready; `start` is the seconds until then."""

    date: str
    load: float
    start: float
    ended: float | None  # By itself, with this status.
    status: int | None
    hang: float | None  # When the console showed the first report of a hang.
    reports: list[str]
    console: list[tuple[float, str, str]]  # When, of the launcher or a rank, the line.


class Job:
    """A launcher with a story, in a folder of its own."""

    def __init__(self, launcher: Launcher, story: Path, folder: Path) -> None:
        self.folder, self.story = folder, story
        self.started, self.load = time.monotonic(), os.getloadavg()[0]
        path = os.pathsep.join([*filter(None, [os.environ.get("PYTHONPATH")]), str(story.parents[1])])
        command = [sys.executable, "-m", *launcher.command.split(), str(story)]
        env = environment(PYTHONPATH=path, OMP_NUM_THREADS="1")
        with (folder / "console").open("wb") as out, open(os.devnull, "rb") as null:
            self.process = subprocess.Popen(command, cwd=folder, env=env, stdin=null, stdout=out, stderr=out)
        self.root = psutil.Process(self.process.pid)
        self.members = {self.root}
        self.lines: list[tuple[float, str]] = []
        self.read, self.looked = 0, 0.0

    def rank_output(self) -> str:
        logs = [*self.folder.glob("log/workerlog.*"), *self.folder.glob("log/*/attempt_0/*/std*.log")]
        return "\n".join(log.read_text(errors="replace") for log in logs)

    def look(self) -> None:
        """Reads new lines of the console; once a second, looks for new processes of the job."""
        now = time.monotonic()
        *lines, _ = (self.folder / "console").read_bytes()[self.read :].split(b"\n")
        self.read += sum(len(line) + 1 for line in lines)
        self.lines += [(now, line.decode(errors="replace")) for line in lines]
        if now > self.looked + 1:
            self.looked = now
            with suppress(psutil.NoSuchProcess):
                self.members.update(self.root.children(recursive=True))

    def goes_on(self, end: float) -> bool:
        self.look()
        return self.process.poll() is None and time.monotonic() < end and not STOP.wait(0.2)

    def await_ready(self) -> float | None:
        going = True
        while going:
            going = self.goes_on(self.started + 60)
            if len(set(re.findall(r"rank \d ready", self.rank_output()))) == 3:
                return time.monotonic()
        return None

    def end(self) -> None:
        self.looked = 0.0
        self.look()
        if self.process.poll() is None:
            self.process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(10)
        for one in self.members:
            with suppress(psutil.NoSuchProcess):
                one.kill()
        self.process.wait()

    def shorten(self, text: str) -> str:
        for folder in (self.folder, self.story.parent, self.story.parents[1]):
            text = text.replace(f"{folder}/", "")
        return text

    def watch(self) -> Run | None:
        """None if not all ranks become ready within 60 s, or if the script is named to stop."""
        ready = self.await_ready()
        while ready is not None and self.goes_on(ready + WATCHED):
            pass
        status, now = self.process.poll(), time.monotonic()
        if ready is None or STOP.is_set():
            return None
        self.end()
        events = self.folder / "log/rlaunch/events.jsonl"
        happened = [json.loads(line) for line in events.open()] if events.exists() else []
        of_ranks = {line.strip() for line in self.rank_output().splitlines()}

        def whose(line: str) -> str:
            return "rank" if line.startswith("[default") or line.strip() in of_ranks else "launcher"

        return Run(
            date=time.strftime("%Y-%m-%d"),
            load=self.load,
            start=ready - self.started,
            ended=None if status is None else now - ready,
            status=status,
            hang=next((at - ready for at, line in self.lines if "seems to hang" in line), None),
            reports=[self.shorten(one["report"]) for one in happened if one["event"] == "hang"],
            console=[(round(at - ready, 1), whose(line), self.shorten(line)) for at, line in self.lines],
        )


def run_once(launcher: Launcher, story: Path) -> Run | None:
    with tempfile.TemporaryDirectory(prefix="hang_table.", ignore_cleanup_errors=True) as name:
        job = Job(launcher, story, Path(name))
        try:
            run = job.watch()
            if run is None and not STOP.is_set():
                print(story, "not ready:", (job.folder / "console").read_text(), sep="\n", file=sys.stderr)
            return run
        finally:
            job.end()


def code(text: str) -> str:
    return "{0}{1}{0}".format("``" if "`" in text else "`", text.replace("|", r"\|"))


def conclusion(run: Run) -> str:
    """The last line of the report, unless it belongs to the stacks, and before it the rank that it names."""
    last = run["reports"][0].splitlines()[-1] if run["reports"] else " "
    if last.startswith(" ") or re.match(r"ranks? .* \(\d+ of \d+\)", last):
        return "no conclusion"
    named = re.match(r"ranks? \d[\d, -]*(?= (?:is|are|has|have) )", last)
    return f"{named[0] if named else 'no rank'}: {code(last)}"


def seen(run: Run | None) -> str:
    """What a user sees of a job: the report of its hang, its end, or else new lines of the console."""
    if run is None:
        return "not run"
    end = f"ended after {run['ended']:.0f} s with status {run['status']}" if run["ended"] is not None else ""
    if run["hang"] is not None:
        return "; ".join(filter(None, [conclusion(run), end]))
    since = [(whose, line) for at, whose, line in run["console"] if at >= 0 and line.strip()]
    errors = [found[1] for _, line in since if (found := ERROR.match(line))]
    last = f": {code(errors[-1])}" if errors else ""
    if end:
        named = [found[1] or found[2] for _, line in since if (found := CULPRIT.match(line))]
        names = f"rank {named[0]}" if named else "no rank"
        return f"{end}, names {names}{last}"
    named = [line for whose, line in since if whose == "launcher"]
    text = f"{len(named)} lines, the last {code(named[-1])}" if named else "nothing"
    return f"{text} from the launcher; a rank's own error{last}" if errors else text


def stories(folder: Path, framework: str) -> list[Path]:
    return sorted((folder / f"{framework}_jobs").glob("*.py"))


def section(framework: str, folder: Path, runs: dict[str, Run]) -> list[str]:
    launchers = LAUNCHERS[framework]
    commands = [f"- {one.title}: `python -m {one.command} JOB.py`" for one in launchers]
    lines = ["", f"## {framework}", "", NOTES[framework], "", *commands]
    rows = [["job", "rlaunch: report after", *(one.title for one in launchers)]]
    rows.append(["---"] * len(rows[0]))
    times: list[float] = []
    for story in stories(folder, framework):
        about = story.read_text().partition('"""')[2].partition("\n")[0].removesuffix('"""')
        found = [runs.get(f"{framework}/{story.stem}/{one.key}") for one in launchers]
        hangs = [run["hang"] for run in found[:1] if run is not None and run["hang"] is not None]
        times += hangs
        when = f"{hangs[0]:.0f} s" if hangs else "no report" if found[0] else ""
        rows.append([f"`{story.stem}`: {about}", when, *map(seen, found)])
    if times:
        lines += ["", f"rlaunch's {len(times)} reports came after {min(times):.0f} to {max(times):.0f} s."]
    return [*lines, "", *(f"| {' | '.join(row)} |" for row in rows)]


def page(folder: Path, runs: dict[str, Run], asked: int, jobs: int) -> str:
    loads, date = [run["load"] for run in runs.values()], max(run["date"] for run in runs.values())
    load = f"load {min(loads):.1f} to {max(loads):.1f} when jobs started"
    text = f"""# Hangs

What a user sees of a job that hangs, within {WATCHED:.0f} s after its 3 ranks have printed "ready".
Written by `tests/python/hangs/hang_table.py`; do not edit. The jobs are in `tests/python/hangs/stories`.

{date}: {len(runs)} of {asked} runs, {jobs} at once, all with gloo on CPUs. {os.cpu_count()} cores, {load}.
Linux {os.uname().release.partition("-")[0]}, Python {sys.version.split()[0]}, rlaunch {version("rlaunch")}, \
torch {version("torch")}, Paddle {version("paddlepaddle")}.

- rlaunch runs with a short `--hang_timeout`, so that two minutes suffice. Its default is 600 s: a report then
  comes about 10 minutes after the last output. The launcher then watches the stacks for 5 s.
- *nothing*: the console shows no new line, and the job goes on. Errors: the last one on the console.
- `silent_but_moving` does not hang: no launcher may report it."""
    sections = [line for framework in LAUNCHERS for line in section(framework, folder, runs)]
    return "\n".join([text, *sections, ""])


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--results", type=Path, required=True, help="JSON file of the finished runs")
    parser.add_argument("--write", type=Path, help="page to write")
    parser.add_argument("--jobs", type=int, choices=(1, 2), default=1, help="jobs at once (1)")
    parser.add_argument("--minutes", type=float, default=90.0, help="minutes in which runs start (90)")
    parser.add_argument("--stories", type=Path, default=HERE / "stories", help="folder of the jobs")
    args = parser.parse_args()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: STOP.set())
    runs: dict[str, Run] = json.loads(args.results.read_text()) if args.results.exists() else {}
    # Jobs of Paddle first, of which no two may run at once: the second worker starts at the other end.
    cases = [
        (f"{name}/{story.stem}/{launcher.key}", launcher, story.resolve())
        for name in reversed(LAUNCHERS)
        for story in stories(args.stories, name)
        for launcher in LAUNCHERS[name]
    ]
    waiting = deque(case for case in cases if case[0] not in runs)
    paddle, lock, last_start = threading.Lock(), threading.Lock(), time.monotonic() + 60 * args.minutes

    def work(take: str) -> None:
        while not STOP.is_set() and time.monotonic() < last_start:
            with lock:
                if not waiting:
                    return
                key, launcher, story = getattr(waiting, take)()
            with paddle if key.startswith("paddle") else nullcontext():
                run = run_once(launcher, story) or run_once(launcher, story)
            with lock:
                if run is not None:
                    runs[key] = run
                    args.results.write_text(json.dumps(runs, indent=1))
                print(time.strftime("%H:%M:%S"), key, "no result" if run is None else seen(run), flush=True)

    with ThreadPoolExecutor() as pool:
        list(pool.map(work, ("popleft", "pop")[: args.jobs]))
    if args.write is not None and runs:
        args.write.write_text(page(args.stories, runs, len(cases), args.jobs))
    return 0 if len(runs) == len(cases) else 1


if __name__ == "__main__":
    sys.exit(main())
