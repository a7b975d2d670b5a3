"""``rlaunch.errors``: the error file and the report, each against the real torch's."""

from __future__ import annotations

import json
import os
import pickle
import random
import re
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from oracle import SEED
from preloaded import python
from rlaunch.errors import ChildFailedError, ProcessFailure, record

FILE = "TORCHELASTIC_ERROR_FILE"


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The error file that ``record`` writes."""
    path = tmp_path / "error.json"
    monkeypatch.setenv(FILE, str(path))
    return path


# Asked one question a line: [name, {rank: [local_rank, pid, exitcode, error_file, timestamp or null]}].
TORCH = """
import json, os, sys
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure, record

def failed(asked):
    name, of_ranks = asked
    failures = {}
    for rank, (*about, timestamp) in of_ranks.items():
        failure = failures[int(rank)] = ProcessFailure(*about)
        if timestamp is not None:
            failure.timestamp = timestamp
    return ChildFailedError(name, failures)

for line in sys.stdin:
    asked = json.loads(line)
    if isinstance(asked, dict):
        os.environ["TORCHELASTIC_ERROR_FILE"] = asked["file"]
        def main():
            if "failed" in asked:
                raise failed(asked["failed"])
            raise ValueError("of torch")
        try:
            record(main)()
        except Exception as error:
            print(json.dumps(type(error).__name__), flush=True)
        continue
    error = failed(asked)
    root, failure = error.get_first_failure()
    said = [str(error), root, failure.message, failure.timestamp, failure.error_file]
    print(json.dumps(said), flush=True)
"""


class Torch:
    """The real one, in a process of its own."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [*python("torch"), "-c", TORCH], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def asked(self, question: Any) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        assert answer, "torch has ended"
        return json.loads(answer)

    def close(self) -> None:
        self._process.communicate()


@pytest.fixture(scope="module")
def torch() -> Iterator[Torch]:
    made = Torch()
    yield made
    made.close()


# --- record -----------------------------------------------------------------------------------------------


def test_an_exception_is_recorded_and_raised(file: Path) -> None:
    @record
    def main(a: int, *, b: int) -> None:
        raise KeyError(a + b)

    with pytest.raises(KeyError) as caught:
        main(1, b=2)
    assert caught.value.args == (3,)
    content = json.loads(file.read_text())
    extra = content["message"]["extraInfo"]
    assert content == {"message": {"message": "KeyError: 3", "extraInfo": extra}}
    assert extra["py_callstack"].startswith("Traceback (most recent call last):\n")
    assert extra["py_callstack"].endswith("\nKeyError: 3\n")
    assert extra["timestamp"].isdigit()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert [path.name for path in file.parent.iterdir()] == ["error.json"]


def test_an_existing_error_file_is_replaced_whole(file: Path) -> None:
    file.write_text("of an earlier attempt" * 1000)
    with pytest.raises(ValueError, match="now"):
        record(int)("now")
    assert "invalid literal" in json.loads(file.read_text())["message"]["message"]


def test_record_keeps_the_result_and_the_name_of_a_function() -> None:
    def main() -> int:
        """What it says."""
        return 7

    recorded = record(main)
    assert recorded() == 7
    assert (recorded.__name__, recorded.__doc__) == ("main", "What it says.")
    assert record(int, error_handler=None)("7") == 7


@pytest.mark.parametrize("code", [0, False])
def test_exit_code_0_is_a_return(file: Path, code: Any) -> None:
    assert record(sys.exit)(code) is None
    assert not file.exists()


@pytest.mark.parametrize("code", [None, 3, "enough"])
def test_other_exits_pass_and_are_not_recorded(file: Path, code: Any) -> None:
    with pytest.raises(SystemExit) as caught:
        record(sys.exit)(code)
    assert caught.value.code == code
    assert not file.exists()


def interrupted() -> None:
    raise KeyboardInterrupt


def test_an_interrupt_passes_and_is_not_recorded(file: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        record(interrupted)()
    assert not file.exists()


@pytest.mark.parametrize("value", [None, ""])
def test_without_a_file_nothing_is_written(
    value: str | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(FILE, raising=False)
    if value is not None:
        monkeypatch.setenv(FILE, value)
    with pytest.raises(ValueError, match="invalid literal"):
        record(int)("x")
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_cannot_be_written_hides_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(FILE, str(tmp_path / "nowhere" / "error.json"))
    with pytest.warns(RuntimeWarning, match="cannot be written"), pytest.raises(ValueError, match="invalid"):
        record(int)("x")


def test_where_warnings_are_errors_the_error_is_raised_nevertheless(tmp_path: Path) -> None:
    script = "from rlaunch.errors import record; record(int)('x')"
    env = {**os.environ, FILE: str(tmp_path / "nowhere" / "error.json")}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script], env=env, capture_output=True, text=True, check=False
    )
    assert done.stderr.rstrip().endswith("ValueError: invalid literal for int() with base 10: 'x'")
    assert re.search(r"^<string>:1: RuntimeWarning: .* cannot be written", done.stderr, re.MULTILINE)
    assert "During handling" not in done.stderr


def test_a_path_that_is_no_file_is_not_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    monkeypatch.setenv(FILE, str(fifo))
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    with pytest.raises(ValueError, match="invalid literal"):
        record(int)("x")
    assert stat.S_ISFIFO(fifo.stat().st_mode)
    assert b"ValueError" in os.read(reader, 1 << 16)
    os.close(reader)


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no")


def raise_unprintable() -> None:
    raise Unprintable


def test_an_exception_without_a_text_is_recorded(file: Path) -> None:
    with pytest.raises(Unprintable):
        record(raise_unprintable)()
    assert json.loads(file.read_text())["message"]["message"].startswith("Unprintable: ")


def test_another_handler_records_instead(file: Path) -> None:
    class Handler:
        def __init__(self) -> None:
            self.said: list[Any] = []

        def initialize(self) -> None:
            self.said.append("begins")

        def record_exception(self, error: BaseException) -> None:
            self.said.append(str(error))

        def record_success(self) -> None:
            self.said.append("ends well")

    handler = Handler()
    assert record(int, handler)("7") == 7
    with pytest.raises(ZeroDivisionError):
        record(divmod, error_handler=handler)(1, 0)
    assert handler.said[:3] == ["begins", "ends well", "begins"]
    assert "by zero" in handler.said[3]
    assert not file.exists()


def test_the_recorder_imports_no_framework() -> None:
    code = "from rlaunch.errors import record; record(print)(1); import sys; print('torch' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out == "1\nFalse\n"


# --- Each reads the other's -------------------------------------------------------------------------------


def test_torch_reads_error_files_of_rlaunch(file: Path, torch: Torch) -> None:
    with pytest.raises(ValueError, match="invalid literal"):
        record(int)("x\ny")
    content = json.loads(file.read_text())["message"]
    text, root, message, stamp, path = torch.asked(["job", {"3": [1, 22, 1, str(file), None]}])
    assert (root, message, path) == (3, content, str(file))
    assert stamp == int(content["extraInfo"]["timestamp"])
    assert "\n      result = fn(*args, **kwargs)\n" in text
    ours = ChildFailedError("job", {3: ProcessFailure(1, 22, 1, str(file))})
    assert str(ours) == text


def test_rlaunch_reads_error_files_of_torch(file: Path, torch: Torch) -> None:
    assert torch.asked({"file": str(file)}) == "ValueError"
    failure = ProcessFailure(0, 22, 1, str(file))
    assert failure.error_file_data == json.loads(file.read_text())
    assert failure.message["message"] == "ValueError: of torch"
    assert failure.timestamp == int(failure.message["extraInfo"]["timestamp"])


def test_a_root_cause_is_handed_on_as_by_torch(file: Path, tmp_path: Path, torch: Torch) -> None:
    cause = tmp_path / "0.json"
    cause.write_text(json.dumps({"message": {"message": "why", "extraInfo": {"timestamp": "5"}}}))
    failures = {0: [0, 22, -9, str(cause), None], 1: [1, 23, -15, "", None]}
    assert torch.asked({"file": str(file), "failed": ["job", failures]}) == "ChildFailedError"
    theirs = json.loads(file.read_text())
    assert theirs["message"]["errorCode"] == -9
    file.unlink()

    def main() -> None:
        raise ChildFailedError("job", made(failures))

    with pytest.raises(ChildFailedError):
        record(main)()
    assert json.loads(file.read_text()) == theirs


def test_a_root_cause_without_a_file_hands_on_nothing(file: Path) -> None:
    def main() -> None:
        raise ChildFailedError("job", {0: ProcessFailure(0, 22, -9, "")})

    with pytest.raises(ChildFailedError):
        record(main)()
    assert not file.exists()


# --- The report -------------------------------------------------------------------------------------------


def made(failures: dict[int, list[Any]]) -> dict[int, ProcessFailure]:
    read = {}
    for rank, (*about, timestamp) in failures.items():
        read[rank] = ProcessFailure(*about)
        if timestamp is not None:
            read[rank].timestamp = timestamp
    return read


def an_error_file(draw: random.Random, folder: Path) -> str:
    """The name of one, or of none."""
    texts = ["", "short", "ä" * 70, "Traceback:\n  File\n    line\nValueError: 1\n", "${time} $$"]
    text, stamp = draw.choice(texts), draw.choice([0, 5, 1_700_000_000])
    contents: list[Any] = [
        {"message": text, "timestamp": stamp},
        {"message": text},
        {"message": {"message": text, "extraInfo": {"timestamp": str(stamp)}}},
        {"message": {"extraInfo": {"timestamp": stamp}}},
        {"message": {"message": text, "extraInfo": {"timestamp": str(stamp), "py_callstack": text}}},
    ]
    path = folder / f"{draw.getrandbits(60):x}"
    if draw.random() < 0.6:
        path.write_text(json.dumps(draw.choice(contents)))
    return str(path) if draw.random() < 0.9 else ""


def test_the_report_is_torchs_to_the_letter(tmp_path: Path, torch: Torch) -> None:
    draw = random.Random(SEED)
    for _ in range(200):
        exitcodes = [1, 3, 255, -9, -15, -11, -35, -70, 0]
        failures = {
            rank: [
                draw.randrange(8),
                draw.randrange(1, 4_000_000),
                draw.choice(exitcodes),
                an_error_file(draw, tmp_path),
                draw.choice([0, 1, 1_700_000_000, 1_700_000_001]),
            ]
            for rank in draw.sample(range(5000), draw.randint(1, 5))
        }
        name = draw.choice(["train.py", "", "run_script_path", "a very long name indeed " * 4])
        text, root, message, stamp, path = torch.asked([name, failures])
        ours = ChildFailedError(name, made(failures))
        assert str(ours) == text, failures
        said, failure = ours.get_first_failure()
        assert [said, failure.message, failure.timestamp, failure.error_file] == [root, message, stamp, path]


def test_a_root_cause_that_is_known_is_believed() -> None:
    failures = made({4: [0, 21, -15, "", 5], 7: [1, 22, 3, "", 6]})
    assert ChildFailedError("job", failures).get_first_failure()[0] == 4
    error = ChildFailedError("job", failures, root=7)
    assert error.get_first_failure() == (7, failures[7])
    assert (
        str(error).index("rank      : 4") < str(error).index("Root Cause") < str(error).index("rank      : 7")
    )
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.failures, again.get_first_failure()) == (str(error), failures, (7, failures[7]))


def test_a_root_cause_has_to_be_a_failure() -> None:
    with pytest.raises(ValueError, match="is not among the failures"):
        ChildFailedError("job", {})
    with pytest.raises(ValueError, match="rank 5, is not among"):
        ChildFailedError("job", made({4: [0, 21, 1, "", 5]}), root=5)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"7",
        b"[]",
        b"{}",
        b"\xff\xfe",
        b'{"message": 7}',
        b'{"message": {}}',
        b'{"message": {"extraInfo": []}}',
        b'{"message": {"extraInfo": {"timestamp": "x"}}}',
        b'{"message": "m", "timestamp": 1e300}',
        b'{"message": "m", "timestamp": 99999999999999}',
        b'{"message": "m", "timestamp": [1]}',
        b"[" * 100_000,
    ],
)
def test_an_invalid_error_file_is_ignored(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "error.json"
    path.write_bytes(content)
    failure = ProcessFailure(0, 22, -signal.SIGSEGV, str(path))
    assert failure.error_file == "<N/A>"
    assert failure.message == "Signal 11 (SIGSEGV) received by PID 22"
    assert failure.signal_name() == "SIGSEGV"
    assert "Root Cause" in str(ChildFailedError("job", {0: failure}))
