"""``python -m rlaunch.run`` beside real torchrun: the same command lines, and all that is seen of each."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from effort import ALL
from launching import environment, free_ports
from paths import ORACLES, ROOT
from preloaded import python
from rlaunch import _lib
from sharing import once
from torch_differences import DIFFERENCES
from torch_lines import ALSO_PLAIN, JOB, LINES, Line

pytestmark = pytest.mark.timeout(900)

ORACLE = str(ORACLES / "oracle_torchrun.py")
DOCS = ROOT / "docs" / "differences-torchrun.md"
# Lines that run at once, of each launcher.
WIDTH = 2
LIMIT = 170
# `make test` runs those that show a difference of their own, and every second one of the others. A launch of
# torchrun from its beginning takes 2 s of CPU.
RUN = [
    name
    for number, (name, line) in enumerate(LINES.items())
    if ALL or line.differs or name in ALSO_PLAIN or number % 2 == 1
]
THEIRS, OURS = "torch.distributed.run", "rlaunch.run"
PASSED_ON = re.compile(
    r"PET_|TORCH|LOGLEVEL|MASTER_|(LOCAL_)?(RANK|WORLD_SIZE)$|HIP_|PYTHON_EXEC|GITHUB_|USE_LIBUV"
)
UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")
TIMESTAMP = re.compile(r'\\?"timestamp\\?": ?\\?"?\d+\\?"?')
# The part of a folder's name that belongs to one run.
DRAWN = "[a-z0-9_]{8}"


@dataclass
class Side:
    """One launcher and one line, in a folder of its own."""

    module: str
    name: str
    folder: Path
    status: int = 0

    def __post_init__(self) -> None:
        (self.folder / "tmp").mkdir(parents=True)
        for name in ("job.py", "job0.py", "job1.py", "sub/job.py", "pkg/__main__.py"):
            (self.folder / name).parent.mkdir(exist_ok=True)
            (self.folder / name).write_text(JOB)
        for name, text in (
            ("job.sh", f"{shlex.quote(sys.executable)} job.py"),
            ("py", f"SEEN_BY_PY=1 exec {shlex.quote(sys.executable)}"),
        ):
            (self.folder / name).write_text(f'#!/bin/sh\n{text} "$@"\n')
            (self.folder / name).chmod(0o755)
        self.port = free_ports(1)

    @property
    def line(self) -> Line:
        return LINES[self.name]

    def filled(self, text: str) -> str:
        words = {"here": self.folder, "python": sys.executable, "port": self.port, "PATH": os.environ["PATH"]}
        return re.sub(r"(?<!\$)\{(\w+)\}", lambda m: str(words[m[1]]), text)

    def argv(self) -> list[str]:
        return [self.filled(word) for word in shlex.split(self.line.words)]

    def env(self) -> dict[str, str]:
        env = {name: value for name, value in environment().items() if not PASSED_ON.match(name)}
        own = {name: self.filled(value) for name, value in self.line.env.items()}
        # rlaunch sets PYTHONFAULTHANDLER, unless it is set.
        return {**env, "TMPDIR": str(self.folder / "tmp"), "PYTHONFAULTHANDLER": "1", **own}

    def question(self) -> dict[str, Any]:
        return {"name": self.name, "argv": self.argv(), "env": self.env(), "cwd": str(self.folder)}

    def run(self) -> None:
        """As users do."""
        with open(self.folder / "out", "wb") as out, open(self.folder / "err", "wb") as err:
            command = [sys.executable, "-m", self.module, *self.argv()]
            streams: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": out, "stderr": err}
            launcher = subprocess.Popen(
                command, env=self.env(), cwd=self.folder, start_new_session=True, **streams
            )
            (self.folder / "pid").write_text(str(launcher.pid))
            (self.folder / "pid").rename(self.folder / "launcher.pid")
            try:
                self.status = launcher.wait(LIMIT)
            finally:
                launcher.kill()

    def text(self, name: str) -> str:
        return (self.folder / name).read_bytes().decode(errors="backslashreplace")

    def plain(self, text: str) -> str:
        """Without what differs from run to run."""
        text = UUID.sub("UUID", text.replace(str(self.folder), "HERE"))
        text = re.sub(rf"(torchelastic|rlaunch)_{DRAWN}", r"\1_X", text)
        text = re.sub(rf"_{DRAWN}(?=/attempt_)", "_X", text)
        return re.sub(rf"\b{self.port}\b", "PORT", text)

    def outcome(self) -> dict[str, Any]:
        """All that was seen, by kind and rank."""
        seen: dict[str, Any] = {"status": self.status, **self.workers(), **self.events(), **self.error_file()}
        for stream in ("out", "err"):
            lines = Counter(re.findall(r".*say (?:out|err) \d.*", self.plain(self.text(stream))))
            seen.update({f"{stream}: {line}": count for line, count in lines.items()})
        for path in self.folder.rglob("attempt_*/**/*"):
            within = path.relative_to(self.folder)
            if "rlaunch" in within.parts:
                continue
            content = "a folder" if path.is_dir() else self.plain(self.text(str(within)))
            if path.name == "error.json":
                content = TIMESTAMP.sub("T", content)
            elif path.name.startswith("filtered"):
                # The order of the lines is chance.
                content = "\n".join(sorted(content.split("\n")))
            seen[f"log {self.plain(str(within))}"] = content
        return seen

    def workers(self) -> dict[str, Any]:
        """The variables that each worker has written, by attempt and rank."""
        workers = {}
        for path in self.folder.glob("seen.*.json"):
            about = json.loads(path.read_text())
            env = about.pop("env")
            if "{port}" not in f"{self.line.words} {self.line.env}" or "c10d" in self.line.words:
                # Of a free port only that it is one.
                assert 1024 < int(env["MASTER_PORT"]) < 65536
                env["MASTER_PORT"] = "free"
            about.update({f"env {name}": value for name, value in env.items()})
            workers[f"worker {path.name[5:-5]}"] = json.loads(self.plain(json.dumps(about)))
        return workers

    def events(self) -> dict[str, Any]:
        """The events, by state, worker and attempt."""
        events: dict[str, Any] = {}
        for line in self.text("err").splitlines():
            if re.match(r'\{"name": ?"torchelastic', line) is None:
                continue
            event = json.loads(line)
            about = event["metadata"]
            about.update(
                {f"of it: {name}": value for name, value in json.loads(about.pop("metadata")).items()}
            )
            about["name"] = event["name"]
            for drawn in ("worker_id", "total_run_time", "duration_ms"):
                about[drawn] = type(about[drawn]).__name__
            if "of it: worker_pid" in about:
                about["of it: worker_pid"] = [type(pid).__name__ for pid in about["of it: worker_pid"]]
            if about["raw_error"]:
                about["raw_error"] = json.loads(TIMESTAMP.sub('"T": 0', about["raw_error"]))
            who = f"{event['source']} {about['global_rank']} in {about['agent_restarts']}"
            key = f"event {about['state']} of {who}"
            assert key not in events
            events[key] = json.loads(self.plain(json.dumps(about)))
        return events

    def error_file(self) -> dict[str, Any]:
        """The launcher's own."""
        path = self.folder / "own.json"
        if not path.exists():
            return {}
        content = json.loads(TIMESTAMP.sub('"T": 0', self.plain(path.read_text())))
        message = content.pop("message")
        return {"own error file": {**message.pop("extraInfo"), **message, **content}}


Sides = dict[str, dict[str, Side]]


@pytest.fixture(scope="module")
def sides(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Sides:
    """Each line that is to be compared, run by both launchers and, for some, by torchrun in two ways."""
    users = [item for item in request.session.items if "sides" in getattr(item, "fixturenames", ())]
    wanted = {item.callspec.params["name"] if hasattr(item, "callspec") else "all" for item in users}
    names = [name for name in RUN if name in wanted or "all" in wanted]
    return once(tmp_path_factory, "lines", lambda folder: sides_of(names, folder))


def sides_of(names: list[str], folder: Path) -> Sides:
    def made(module: str, kind: str, of: list[str]) -> dict[str, Side]:
        return {name: Side(module, name, folder / kind / str(number)) for number, name in enumerate(of)}

    forked = made(THEIRS, "theirs", [name for name in names if not LINES[name].plain])
    plain = made(THEIRS, "plain", [name for name in names if LINES[name].plain or name in ALSO_PLAIN])
    ours = made(OURS, "ours", names)
    oracle = subprocess.Popen(
        [*python("torch"), ORACLE, str(WIDTH)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=folder,
    )
    with ThreadPoolExecutor(WIDTH) as pool:
        runs = [pool.submit(side.run) for side in [*plain.values(), *ours.values()]]
        answers, _ = oracle.communicate(json.dumps([side.question() for side in forked.values()]))
    assert oracle.returncode == 0
    for run in runs:
        run.result()
    for answer in map(json.loads, answers.splitlines()):
        forked[answer["name"]].status = answer["status"]
    return {"theirs": {**plain, **forked}, "plain": plain, "ours": ours}


def unlike(theirs: dict[str, Any], ours: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    """The differences of the two; None: no value. Of entries on one side alone, only those."""
    ran = [any(key.startswith("worker ") for key in side) for side in (theirs, ours)]
    if ran in ([True, False], [False, True]):
        of_workers = ("out: ", "err: ", "log ", "event ")
        theirs, ours = (
            {k: v for k, v in side.items() if not k.startswith(of_workers)} for side in (theirs, ours)
        )
    found: dict[str, tuple[Any, Any]] = {}
    for key in {**theirs, **ours}:
        pair = (theirs.get(key), ours.get(key))
        if all(isinstance(value, dict) for value in pair):
            found.update({f"{key}: {name}": of_both for name, of_both in unlike_values(*pair).items()})
        elif pair[0] != pair[1]:
            found[key] = (
                "there" if isinstance(pair[0], dict) else pair[0],
                "there" if isinstance(pair[1], dict) else pair[1],
            )
    return found


def unlike_values(theirs: dict[str, Any], ours: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    both = {key: (theirs.get(key), ours.get(key)) for key in {**theirs, **ours}}
    return {key: pair for key, pair in both.items() if pair[0] != pair[1]}


def explained(key: str, pair: tuple[Any, Any], line: Line) -> tuple[str, int] | None:
    """Which documented difference this is, and which of what it is seen in."""
    for name, difference in DIFFERENCES.items():
        if difference.everywhere or name in line.differs:
            for number, seen in enumerate(difference.seen):
                if seen.is_it(key, *pair, line):
                    return name, number
    return None


@pytest.mark.parametrize("name", RUN)
def test_only_documented_differences(name: str, sides: Sides) -> None:
    line, theirs, ours = LINES[name], sides["theirs"][name], sides["ours"][name]
    assert complaints(line, theirs, ours) == [], (
        f"\n-- theirs:\n{theirs.text('err')[-3000:]}\n-- ours:\n{ours.text('err')[-3000:]}"
    )


def complaints(line: Line, theirs: Side, ours: Side) -> list[Any]:
    """The differences that are not documented."""
    found = unlike(theirs.outcome(), ours.outcome())
    reasons = {key: explained(key, pair, line) for key, pair in found.items()}
    wrong: list[Any] = [(key, *found[key]) for key in sorted(found) if reasons[key] is None]
    expected = {(name, number) for name in line.differs for number in range(len(DIFFERENCES[name].seen))}
    wrong += [("is expected, and not there", *missing) for missing in expected - set(reasons.values())]
    if line.status != ours.status:
        wrong.append(("our status is not as expected", ours.status))
    texts = (line.says, line.says) if isinstance(line.says, str) else line.says
    wrong += [
        ("is not said", side.module, text)
        for side, text in zip((theirs, ours), texts, strict=True)
        if text not in side.text("err")
    ]
    refusals = [text for text in ours.text("err").splitlines() if text.startswith("rlaunch: error: ")]
    if len(refusals) != bool(line.says):
        wrong.append(("refusals", *refusals))
    return wrong


@pytest.mark.parametrize("name", ALSO_PLAIN)
def test_the_forked_torchrun_is_torchrun(name: str, sides: Sides) -> None:
    forked, plain = sides["theirs"][name], sides["plain"][name]
    assert forked is not plain
    assert unlike(plain.outcome(), forked.outcome()) == {}


def test_each_option_is_in_a_line_in_each_spelling() -> None:
    said = " ".join(line.words for line in LINES.values())
    for option in _lib.run_options({}):
        if not option["ours"]:
            for spelling in {option["name"], option["attribute"]}:
                assert re.search(rf"--{spelling}\b(?![-_])", said), spelling
            variable = f"PET_{option['attribute'].upper()}"
            without = option["name"] in ("logs-specs", "numa-binding", "print-completion")
            assert without or any(variable in line.env for line in LINES.values()), variable


def test_each_difference_is_in_the_docs_and_in_a_line() -> None:
    section = DOCS.read_text().partition("## `python -m rlaunch.run`")[2].partition("\n## ")[0]
    rows = {row.split(" | ")[0] for row in re.findall(r"^\| (.*) \|$", section, re.MULTILINE)}
    assert rows == {"what", *(difference.what for difference in DIFFERENCES.values())}
    for name, difference in DIFFERENCES.items():
        assert difference.everywhere or any(name in line.differs for line in LINES.values()), name


def test_every_difference_that_any_line_may_show_is_shown_by_some(sides: Sides) -> None:
    shown = set()
    for name, ours in sides["ours"].items():
        found = unlike(sides["theirs"][name].outcome(), ours.outcome())
        shown |= {explained(key, pair, LINES[name]) for key, pair in found.items()}
    everywhere = {name for name, difference in DIFFERENCES.items() if difference.everywhere}
    # Machines with few CPUs, or with a name that is localhost, do not show these.
    assert everywhere - {name for name, _ in filter(None, shown)} <= {"threads", "address", "host"}
