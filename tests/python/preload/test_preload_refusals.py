"""States in which a zygote must not fork, modules that it cannot import, and the errors about them."""

from __future__ import annotations

import errno
import importlib.util
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
import ranks
import rlaunch
from effort import each
from preload_ranks import module
from rlaunch import ZygoteError
from rlaunch._preload import child, fork_safety, registry
from spawning import modules_fixture as _modules  # noqa: F401
from spawning import nothing_left_fixture as _nothing_left  # noqa: F401
from spawning import results

pytestmark = [
    pytest.mark.usefixtures("nothing_left"),
    pytest.mark.filterwarnings("ignore:Your model will be trained"),
]


@pytest.fixture(name="folder")
def folder_fixture(modules: Path) -> Path:
    return modules


def start(func: Any, *args: Any, n: int = 1, preload: Any = "tried", **options: Any) -> Any:
    return rlaunch.spawn(func, args, n, start_method="zygote", preload=preload, **options)


def refused(folder: Path, text: str, **options: Any) -> ZygoteError:
    module(folder, "tried", text)
    with pytest.raises(ZygoteError) as caught:
        start(os.getpid, **options)
    assert [p for p in psutil.Process().children() if p.name() == "rlaunch-zygote"] == []
    return caught.value


# --- Imports ----------------------------------------------------------------------------------------------


def test_an_import_that_fails_is_shown(folder: Path) -> None:
    error = refused(folder, "def inner():\n    raise ValueError('why \u00e9 \U0001f600' * 2000)\ninner()")
    assert str(error).startswith("no preload server: import tried: ValueError: why \u00e9")
    if sys.version_info >= (3, 11):
        assert "in inner" in error.__notes__[0]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("import sys; sys.exit(3)", "no preload server: import tried: SystemExit: 3"),
        ("import os; os._exit(3)", "no preload server: importing tried: it ended with 3"),
        (
            "import os; os.kill(os.getpid(), 9)",
            "no preload server: importing tried: it was killed by signal 9",
        ),
        ("import nowhere", "no preload server: import tried: ModuleNotFoundError: No module named 'nowhere'"),
        ("raise KeyboardInterrupt", "no preload server: import tried: KeyboardInterrupt"),
    ],
)
def test_ends_of_a_failing_import(folder: Path, text: str, said: str) -> None:
    assert str(refused(folder, text)) == said


def test_a_module_that_is_not_there() -> None:
    with pytest.raises(ZygoteError, match=r"^no preload server: import nowhere\.to_be: ModuleNotFoundError"):
        start(os.getpid, preload="nowhere.to_be")


def test_output_before_a_failure_is_shown(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    refused(folder, "print('said before'); 1 / 0")
    assert "said before" in capfd.readouterr().out


# --- States that a fork would break -------------------------------------------------------------------------


def test_threads_are_named(folder: Path) -> None:
    text = "import threading, time\nfor i in (1, 2):\n    threading.Thread(target=time.sleep, args=(600,), "
    error = refused(folder, text + "daemon=True, name=f'worker-{i}').start()")
    assert str(error) == (
        "no preload server: importing tried left 2 threads running (worker-1, worker-2), "
        "which a fork would lose"
    )


def test_an_ended_thread_is_no_obstacle(folder: Path) -> None:
    module(
        folder, "tried", "import threading\nt = threading.Thread(target=len, args=('',)); t.start(); t.join()"
    )
    start(os.getpid)


def test_a_child_process_is_an_obstacle_and_a_lock_is_not(folder: Path) -> None:
    text = "import subprocess\np = subprocess.Popen(['sleep', '600'])\nopen({!r}, 'w').write(str(p.pid))"
    error = refused(folder, text.format(str(folder / "pid")))
    pid = int((folder / "pid").read_text())
    psutil.Process(pid).kill()
    said = f"no preload server: importing tried left a child process running (sleep, pid {pid}), "
    assert str(error) == said + "which a forked process has no part in"
    text = "import multiprocessing, subprocess\nsubprocess.run(['true'])\n"
    module(folder, "tried", text + "lock = multiprocessing.get_context('spawn').Lock()")
    assert results(start(take_lock, n=2)) == [True, True]


def take_lock() -> bool:
    import tried

    with tried.lock:
        return True


def test_numpys_threads_are_gone_after_the_trial_fork(folder: Path) -> None:
    module(folder, "tried", "import numpy\nx = numpy.ones((500, 500))\ny = x @ x")
    assert results(start(product, n=2)) == [500.0, 500.0]


def product() -> float:
    import numpy

    return float((numpy.ones((500, 500)) @ numpy.ones((500, 500)))[0, 0])


def region_by_torch() -> str:
    return "import torch\ntorch.set_num_threads(2)\nx = torch.ones(400_000).exp().sum()"


def region_by_its_library() -> str:
    """By the library that torch brings with it, or the system's, without an import of torch."""
    spec = importlib.util.find_spec("torch")
    assert spec is not None
    assert spec.origin is not None
    library = next((str(path) for path in Path(spec.origin).parent.glob("lib/libgomp*")), "libgomp.so.1")
    region = "ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: None), None, 2, 0"
    return f"import ctypes\nctypes.CDLL({library!r}).GOMP_parallel({region})"


@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="no region without a second CPU")
@each("region", [region_by_its_library, region_by_torch], first=0)
def test_an_openmp_region_is_refused(
    region: Callable[[], str], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    error = refused(folder, region())
    assert "importing tried has run an OpenMP region, whose " in str(error)


def test_states_that_make_a_fork_unsafe() -> None:
    initialised, left = fork_safety.find_device_hazard, fork_safety.find_thread_hazard
    assert initialised(["/dev/null", "pipe:[1]", "/dev/dri", "/home/dev/nvidia"]) is None
    assert initialised(["/dev/nvidiactl"]) == (
        "has initialised CUDA (/dev/nvidiactl is open), which a forked process cannot use"
    )
    assert str(initialised(["/dev/kfd"])).startswith("has initialised ROCm")
    for file in (
        *("/dev/cambricon_dev0", "/dev/davinci_manager", "/dev/xpuctrl", "/dev/gcu0", "/dev/tcaicard0"),
        *("/dev/iluvatar1", "/dev/mxcd", "/dev/dri/renderD128", "/dev/dxg", "/dev/nvhost-ctrl-gpu"),
        *("/dev/accel/accel0", "/dev/accel/accel_controlD0", "/dev/accel0", "/dev/vfio/0", "/dev/hl0"),
        *("/dev/neuron0", "/dev/ipu0"),
    ):
        assert f" ({file} is open), which a forked process cannot use" in str(initialised([file]))
    assert left([], []) is None
    assert left(["a"], ["libgomp.so.1"]) == "left a thread running (a), which a fork would lose"
    assert str(left([], ["libc.so.6", "libgomp-1.so"])).startswith(
        "has run an OpenMP region, whose 2 threads"
    )
    assert (
        left([], ["b.so", "a.so", "b.so"])
        == "left 3 threads running (in a.so, b.so), which a fork would lose"
    )


def test_a_failed_trial_fork_is_no_failed_import(folder: Path) -> None:
    # Nothing limits user 0. Another user may not be able to read Python's files.
    text = "import os, pathlib, resource\nif os.getuid() == 0:\n    os.setresuid(*[2_000_000_019] * 3)\n"
    error = refused(folder, text + "resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))")
    assert re.fullmatch(
        r"no preload server: the trial fork after the imports failed: Resource temporarily unavailable "
        r"\(EAGAIN\): user \d+ may have 0 processes and threads \(RLIMIT_NPROC\); "
        r"end some of them, or raise the limit \(ulimit -u\)",
        str(error),
    )


@pytest.mark.parametrize("controllers", ["pids", ""])
def test_a_full_cgroup_is_named(tmp_path: Path, controllers: str) -> None:
    top = tmp_path / "sys/fs/cgroup" / controllers
    for folder, most, used in (("job/step", "max", 40), ("job", "40", 40), ("other", "1", 1)):
        (top / folder).mkdir(parents=True, exist_ok=True)
        (top / folder / "pids.max").write_text(f"{most}\n")
        (top / folder / "pids.current").write_text(f"{used}\n")
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text(f"5:memory:/other\n8:{controllers}:/job/step\n")
    full = OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))
    said = f"(EAGAIN): the cgroup {top / 'job'} may have 40 processes and threads (pids.max); end some"
    assert said in fork_safety.describe_fork_error(full, str(tmp_path))
    (top / "job/pids.current").write_text("39\n")
    assert "pids.max" not in fork_safety.describe_fork_error(full, str(tmp_path))
    no_memory = OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
    assert "Cannot allocate memory (ENOMEM); free memory" in fork_safety.describe_fork_error(no_memory)


# --- Without one ------------------------------------------------------------------------------------------


def test_auto_goes_on_without_a_zygote_and_gives_the_reason_in_one_line(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    module(folder, "tried", "1 / 0")
    assert results(start(ranks.my_rank, n=2, preload="auto,tried")) == [0, 1]
    (line,) = [record.getMessage() for record in caplog.records if record.name == "rlaunch"]
    assert line == (
        "no preload server: import tried: ZeroDivisionError: division by zero; each rank imports for itself"
    )


@pytest.mark.parametrize("method", ["spawn", "fork", "forkserver", None])
def test_preload_without_a_zygote_is_refused(method: str | None) -> None:
    with pytest.raises(
        ValueError, match=f"preload is for start_method='zygote', but start_method is {method!r}"
    ):
        rlaunch.spawn(os.getpid, (), 1, start_method=method, preload="json")


@pytest.mark.parametrize(
    ("preload", "named"),
    [("", ""), ("a,,b", ""), ("a b", "a b"), ("a;b", "a;b"), (["a", ""], ""), ("../a", "../a"), ("a.", "a.")],
)
def test_invalid_module_names_are_refused(preload: Any, named: str) -> None:
    with pytest.raises(
        ValueError, match=f"^preload: '{re.escape(named)}' is not the name of a module; give modules"
    ):
        start(os.getpid, preload=preload)


def test_values_that_are_no_module_name_are_refused() -> None:
    with pytest.raises(
        TypeError, match=re.escape("preload must be names of modules, as in 'torch,my.models', but")
    ):
        start(os.getpid, preload=["a", 1])


@pytest.mark.parametrize(
    ("preload", "asked"),
    [
        (None, (["paddle"], False)),
        ("auto", (["paddle"], True)),
        ("torch, a.b,torch", (["torch", "a.b"], False)),
        (["a", "auto"], (["a"], True)),
    ],
)
def test_modules_that_preload_names(preload: Any, asked: tuple[list[str], bool]) -> None:
    assert registry.parse_preload(preload, "paddle") == asked


def test_without_names_it_is_the_first_framework(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(modules: list[str]) -> None:
        raise ZygoteError(",".join(modules))

    monkeypatch.setattr(registry, "get_zygote", none)
    for frameworks, framework in (("torch", "torch"), (" Torch , paddle", "torch"), (None, "paddle")):
        with pytest.raises(ZygoteError, match=f"^{framework}$"):
            start(os.getpid, preload=None, **({"frameworks": frameworks} if frameworks else {}))


def test_changes_of_the_environment_by_imports() -> None:
    before = {"KEPT": "1", "CHANGED": "1", "GONE": "1"}
    after = {"KEPT": "1", "CHANGED": "2", "NEW": "1"}
    seen = child.merge_environ
    assert seen(before, before, after) == after
    variables = {"CHANGED": "3", "NEW": "4", "GONE": "5", "OWN": "6"}
    assert seen(variables, before, after) == variables
    assert seen({}, before, after) == {"NEW": "1"}
