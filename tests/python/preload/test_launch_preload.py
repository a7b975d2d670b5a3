"""``--preload``: a rank that was forked is what one with an exec is."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path
from typing import Any

import pytest
from effort import each
from launching import await_gone, gone, marked, supervisor_of, until
from preload_jobs import PADDLE, TORCH, Job, lines_of

START_FAILED, USAGE = 71, 2


FRONTENDS = (PADDLE, TORCH)


@pytest.fixture(params=FRONTENDS)
def job(request: pytest.FixtureRequest, tmp_path: Path) -> Job:
    return Job(tmp_path, request.param)


# All that a rank knows about its process, but for values that differ from one start to the next anyway.
ABOUT = """
import atexit, logging, resource, threading, warnings

status = dict(line.split(":\\t", 1) for line in open("/proc/self/status").read().splitlines())
main = sys.modules["__main__"]
def annotated(x: int): ...
stream = lambda s: [s.name, s.encoding, s.errors, s.line_buffering, s.write_through, s.isatty()]
link = lambda fd: os.readlink(f"/proc/self/fd/{fd}")
about = {
    "env": dict(os.environ), "argv": sys.argv, "command": sys.orig_argv, "cwd": os.getcwd(),
    "path": sys.path, "flags": list(sys.flags), "executable": sys.executable,
    "main": [main is sys.modules[__name__], main.__name__, main.__package__, main.__doc__, main.__cached__,
             main.__file__, repr(main.__spec__).partition(" at 0x")[0], type(main.__loader__).__name__,
             sorted(vars(main))],
    "leads": [os.getpid() == os.getsid(0) == os.getpgrp()], "umask": os.umask(0o22),
    "signals": [status[name].strip() for name in ("SigBlk", "SigIgn", "SigCgt", "SigPnd", "ShdPnd")],
    "limits": [resource.getrlimit(name) for name in (resource.RLIMIT_NOFILE, resource.RLIMIT_CORE)],
    "cpus": sorted(os.sched_getaffinity(0)), "name": status["Name"], "threads": status["Threads"],
    "streams": [stream(s) for s in (sys.stdin, sys.stdout, sys.stderr)],
    "stdio": [link(fd) for fd in range(3)],
    "fds": len(os.listdir("/proc/self/fd")),
    "cgroup": open("/proc/self/cgroup").read().rpartition("/")[2].startswith("rlaunch-"),
    "warnings": repr(warnings.filters), "handlers": repr(logging.getLogger().handlers),
    "annotations": repr(annotated.__annotations__),
    "main thread": threading.current_thread() is threading.main_thread(),
}
json.dump(about, open(f"about.{how}.{rank}", "w"))
"""
HOW = "how = 'forked' if sys.modules.get('counted') else 'started'\n"

# A new one in every run: names, ports, and where the logs of a run are.
VARIES = re.compile(r"RLAUNCH_|.*(ENDPOINT|_PORT|MASTER)|POD_|TORCHELASTIC_(RUN_ID|ERROR_FILE)")


def abouts(job: Job, rank: int) -> list[dict[str, Any]]:
    made = [json.loads(job.text(f"about.{how}.{rank}")) for how in ("started", "forked")]
    for about in made:
        about["env"] = {name: text for name, text in about["env"].items() if not VARIES.match(name)}
        about["stdio"] = [re.sub(r"/[0-9a-f-]{36}_\w+", "", link) for link in about["stdio"]]
    return made


@pytest.mark.parametrize("as_module", [False, True], ids=["script", "module"])
def test_a_forked_rank_has_all_that_an_exec_would_have_given_it(job: Job, as_module: bool) -> None:
    job.script(HOW + ABOUT, "tell.py")
    what = ["-m", "tell"] if as_module else ["tell.py"]
    for zygote in (None, "counted"):
        ended = job.run(*job.options(zygote), *what, "--x", "a b")
        assert ended.status == 0, ended.stderr
    for rank in range(2):
        started, forked = abouts(job, rank)
        assert forked == started
    assert job.imports() == 1


def test_a_link_to_a_script_is_followed_for_its_modules(job: Job) -> None:
    (job.folder / "real").mkdir()
    (job.folder / "real/beside.py").write_text("WHERE = __file__")
    job.script("import beside; tell('where', beside.WHERE); tell('path', sys.path[0])", "real/train.py")
    (job.folder / "train.py").symlink_to("real/train.py")
    ended = job.run(*job.options("beside"), "train.py")
    assert ended.status == 0, ended.stderr
    assert Path(job.text("where.1")) == job.folder / "real/beside.py"
    assert Path(job.text("path.1")) == job.folder / "real"


@pytest.mark.parametrize("as_module", [False, True], ids=["script", "module"])
def test_paths_that_imports_put_before_its_folder_stay_there(job: Job, as_module: bool) -> None:
    (job.folder / "third").mkdir()
    (job.folder / "third/party.py").write_text("")
    job.module("vendored", "import os, sys\nsys.path.insert(0, os.path.abspath('third'))")
    job.script("import vendored, party; tell('path', json.dumps(sys.path[:2]))")
    for zygote in (None, "vendored"):
        ended = job.run(*job.options(zygote), *(["-m", "train"] if as_module else ["train.py"]))
        assert ended.status == 0, ended.stderr
        assert json.loads(job.text("path.0")) == [str(job.folder / "third"), str(job.folder)], zygote


def test_modules_in_the_working_folder_are_not_in_the_way(job: Job) -> None:
    (job.folder / "below").mkdir()
    job.module("socket", "raise SystemExit('not that one')")
    (job.folder / "below/wanted.py").write_text("")
    job.script("import wanted; tell('done', 1)", "below/train.py")
    ended = job.run(*job.options("wanted"), "below/train.py")
    assert ended.status == 0, ended.stderr


# The end of a program, and whether it is the same as of one that was started by itself.
ENDS = {
    "well": "print('out'); print('err', file=sys.stderr)",
    "a number": "sys.exit(3)",
    "a text": "sys.exit('no more')",
    "an exception": "def inner():\n    raise ValueError('a\\nb')\ninner()",
    "a chain": "try:\n    {}['x']\nexcept KeyError as error:\n    raise RuntimeError('y') from error",
    "a hook": "sys.excepthook = lambda *what: print('hook', what[0].__name__, what[2].tb_lineno)\n1 / 0",
    "no syntax": "x = (",
    "at exit": "import atexit\natexit.register(print, 'bye')\nsys.exit(4)",
    "a thread": "import threading\nthreading.Thread(target=lambda: print('late')).start()",
    "at once": "print('lost?', end='')\nsys.stdout.flush()\nos._exit(9)",
    "a signal": "os.kill(os.getpid(), signal.SIGSEGV)",
    "interrupt": "raise KeyboardInterrupt",
    "unraisable": "class Odd:\n    def __del__(self): raise OSError('odd')\nOdd()",
    "warning": "import warnings\nwarnings.warn('old', DeprecationWarning)",
    "unbuffered": "sys.stdout.write('half a line')\nos.kill(os.getpid(), signal.SIGKILL)",
    "as a module": "def inner():\n    1 / 0\ninner()",
}


# Any part as long as ENDS has each end once.
@each(
    "job, end",
    [(FRONTENDS[(i + turn) % 2], end) for turn in range(2) for i, end in enumerate(ENDS)],
    few=len(ENDS),
    indirect=["job"],
)
def test_a_forked_rank_ends_like_a_started_one(job: Job, end: str) -> None:
    job.script(ENDS[end])
    what = ["-m", "train"] if end == "as a module" else ["train.py"]
    said = []
    for zygote in (None, "counted"):
        ended = job.run(*job.options(zygote, ranks=1), *what)
        text = re.sub(r"0x[0-9a-f]+", "ADDRESS", job.output())
        # The stack of a crash begins below the rank's program.
        text = re.sub(r'(?m)^  File "(?!.*train\.py).*\n', "", text)
        # From 3.14 on, that of its C functions too.
        text = re.sub(r"(?m)^  (Binary file|<truncated rest of calls>).*\n", "", text)
        outcome = job.result()["ranks"][0]["exit"]
        said.append((ended.status, text, outcome))
        for path in (job.folder / "log").rglob("*"):
            if path.is_file():
                path.unlink()
        if job.frontend == TORCH:
            job.run_folder().rename(job.folder / f"run.{len(said)}")
    assert said[1] == said[0]


def test_random_numbers_differ_between_ranks_and_attempts(job: Job) -> None:
    job.module("drawing", "import random\nrandom.seed(7)\nfrom counted import *")
    job.script("""
        import random
        tell(f"drawn.{attempt}", random.random())
        if attempt == 0 and rank == 0:
            await_file("drawn.0.1")
            sys.exit(1)
        time.sleep(0 if attempt else 60)
    """)
    ended = job.run(*job.options("drawing", restarts=1), "train.py")
    assert ended.status == 0, ended.stderr
    drawn = {job.text(f"drawn.{attempt}.{rank}") for attempt in range(2) for rank in range(2)}
    assert len(drawn) == 4


def test_output_of_imports_is_in_the_log_of_every_rank(job: Job) -> None:
    job.module("noisy", "import os, sys\nprint('out')\nos.write(2, b'err\\n')")
    job.script("import noisy; print('program')")
    ended = job.run(*job.options("noisy"), "train.py")
    assert ended.status == 0
    for rank in range(2):
        assert sorted(job.output(rank).split()) == ["err", "out", "program"]
    assert b"out\n" not in ended.stdout


def test_variables_that_all_ranks_have_are_there_while_modules_are_imported(job: Job) -> None:
    job.module("curious", "import os\nSEEN = dict(os.environ)")
    job.script("import curious; tell('seen', json.dumps(curious.SEEN))")
    ended = job.run(*job.options("curious"), "train.py", env=job.environment(MINE="1", RANK=None))
    assert ended.status == 0
    seen = json.loads(job.text("seen.0"))
    own, world = (
        ("RANK", "WORLD_SIZE") if job.frontend == TORCH else ("PADDLE_TRAINER_ID", "PADDLE_TRAINERS_NUM")
    )
    assert (seen["MINE"], seen[world], own in seen) == ("1", "2", False)


def test_an_import_that_fails_ends_the_job_before_any_rank(job: Job, mark: str) -> None:
    job.module("broken", "print('half-way')\nimport nosuchmodule")
    job.script("tell('ran')")
    ended = job.run(*job.options("broken"), "train.py", env=job.environment(MARK=mark))
    assert (ended.status, marked(mark)) == (START_FAILED, [])
    assert ended.error_lines() == [
        "rlaunch: error: cannot start rank 0 from the preload server: import broken: ModuleNotFoundError: "
        "No module named 'nosuchmodule'; with --preload=broken,auto every rank imports for itself then"
    ]
    assert 'broken.py", line 2, in <module>' in ended.stderr
    assert "half-way" in ended.stdout.decode()
    assert "ran.0" not in job.names()
    assert [event["event"] for event in job.events()] == ["job_started", "rank_not_started", "job_ended"]


@pytest.mark.parametrize("name", ["nosuchmodule", "counted.nosuchmodule"])
def test_a_module_that_does_not_exist_is_one_line(job: Job, name: str) -> None:
    job.script("tell('ran')")
    ended = job.run(*job.options(name), "train.py")
    assert ended.status == START_FAILED
    (line,) = ended.error_lines()
    assert f"import {name}: ModuleNotFoundError: No module named '{name}'" in line
    assert line.endswith(f"; check the names of --preload={name}, and PYTHONPATH")
    assert "importlib" not in ended.stderr
    assert "ran.0" not in job.names()


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (
            "import threading, time\nthreading.Thread(target=time.sleep, args=(600,), daemon=True).start()",
            "a thread",
        ),
        ("import os\nos._exit(5)", "with exit code 5"),
        ("import os\nos.kill(os.getpid(), 11)", "with signal SIGSEGV"),
    ],
    ids=["thread", "exit", "crash"],
)
def test_an_unsafe_preload_is_refused_or_given_up_as_requested(job: Job, body: str, why: str) -> None:
    job.module(
        "unsafe",
        f"import os\nif os.path.exists('armed'):\n    os.rename('armed', 'fired')\n    exec({body!r})",
    )
    job.script("import unsafe; tell('ran')")
    (job.folder / "armed").touch()
    ended = job.run(*job.options("unsafe"), "train.py")
    assert ended.status == START_FAILED
    (line,) = ended.error_lines()
    assert why in line
    assert "unsafe" in line
    assert line.endswith("every rank imports for itself then")
    assert "ran.0" not in job.names()
    (job.folder / "fired").rename(job.folder / "armed")
    ended = job.run(*job.options("unsafe,auto"), "train.py")
    assert ended.status == 0, ended.stderr
    (line,) = (line for line in lines_of(ended) if "no preload server" in line)
    assert line.startswith("no preload server: importing unsafe ")
    assert why in line
    assert line.endswith("; every rank imports for itself")
    assert "ran.1" in job.names()


def test_programs_that_this_python_does_not_run_are_refused(job: Job) -> None:
    no_python = "--no-python" if job.frontend == TORCH else "--no_python"
    ended = job.run(*job.options("counted"), no_python, "true")
    assert ended.status == USAGE
    assert ended.error_lines() == [
        "rlaunch: error: --preload counted: true is not run by the launcher's Python; leave it out, or "
        "add auto: every rank imports for itself then"
    ]
    ended = job.run(*job.options("auto"), no_python, "true")
    assert ended.status == 0
    said = "no preload server: true is not run by the launcher's Python; every rank imports for itself"
    assert said in lines_of(ended)


def test_a_name_that_no_import_could_have_is_refused(job: Job) -> None:
    job.script("")
    ended = job.run(*job.options(None), "train.py", env=job.environment(RLAUNCH_PRELOAD="counted,my-module"))
    assert ended.status == USAGE
    (line,) = ended.error_lines()
    assert line.startswith(
        "rlaunch: error: RLAUNCH_PRELOAD counted,my-module: 'my-module' is not the name of a module; give"
    )


def test_the_plan_names_the_preloaded_module(job: Job) -> None:
    job.script("")
    dry = "--dry-run" if job.frontend == TORCH else "--dry_run"
    made = json.loads(job.run(*job.options("counted"), f"{dry}=json", "train.py").stdout)
    assert made["zygote"] == ["counted"]
    assert (
        "all ranks are forked from a process that imports counted\n"
        in job.run(*job.options("counted"), dry, "train.py").stdout.decode()
    )
    assert "imports" not in job.names()


def test_a_stop_while_it_imports_ends_the_job_at_once(job: Job, mark: str) -> None:
    job.module("endless", "import os, time\nopen('importing', 'w').close()\nwhile True: time.sleep(600)")
    job.script("tell('ran')")
    with job.start(*job.options("endless"), "train.py", env=job.environment(MARK=mark)) as launcher:
        until((job.folder / "importing").exists, "the import")
        zygote = job.zygote()
        launcher.send_signal(signal.SIGTERM)
        ended = Job.wait(launcher)
    assert ended.status == 128 + signal.SIGTERM
    assert gone(zygote)
    assert marked(mark) == []
    assert "SIGTERM: nothing runs" in lines_of(ended)
    assert "swept" not in ended.stderr
    assert "ran.0" not in job.names()


def test_long_imports_are_reported_and_are_suspended_with_the_job(job: Job) -> None:
    job.module("long", "import os, time\nwhile not os.path.exists('go'): time.sleep(0.005)")
    job.script("")
    with job.start(*job.options("long"), "train.py") as launcher:
        zygote, supervisor = job.zygote(), supervisor_of(launcher)
        supervisor.send_signal(signal.SIGTSTP)
        until(lambda: zygote.status() == "stopped", "its sleep")
        supervisor.send_signal(signal.SIGCONT)
        until(lambda: zygote.status() != "stopped", "its waking")
        assert launcher.stderr is not None
        said = b""
        while b"for all ranks ..." not in said:
            said = launcher.stderr.readline()
            assert said
        (job.folder / "go").touch()
        ended = Job.wait(launcher)
    assert said == b"rlaunch: importing long for all ranks ...\n"
    assert ended.status == 0
    (line,) = (line for line in lines_of(ended) if "imported" in line)
    assert re.fullmatch(r"imported long in \d+\.\d s", line)
    (ready,) = job.events("zygote_ready")
    assert (ready["modules"], ready["pid"]) == (["long"], zygote.pid)
    await_gone(zygote)
