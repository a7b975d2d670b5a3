"""The command line of ``python -m rlaunch.run`` against torchrun's, and the namespaces of its Python API."""

from __future__ import annotations

import json
import pickle
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import native_hooks
import pytest
from oracle import SEED
from paths import ORACLES
from preloaded import python
from rlaunch import LaunchError, run

Case = tuple[list[str], dict[str, str]]
Parser = Callable[[Case], dict[str, Any] | str]

# Values of each option: valid ones, and some invalid ones.
NUMBERS = ["0", "3", "-1", "+2", " 4", "1_0", "x", "1.5", ""]
MAPS = ["0", "3", "0:1,1:2", "4"]
TEXTS = ["", "a", "a b", "-1", "-.5", "a=b", "=", "a,b,,c", "é", "-"]
VALUES = {
    "nnodes": ["1", "1:2", "x"],
    "nproc-per-node": ["2", "auto", "gpu"],
    "rdzv-backend": ["c10d", "static", "mine"],
    "max-restarts": NUMBERS,
    "node-rank": NUMBERS,
    "master-port": NUMBERS,
    "shutdown-timeout": NUMBERS,
    "monitor-interval": ["1", "0.1", "1e-3", ".5", "-2", " 3 ", "x", "", "inf"],
    "start-method": ["spawn", "fork", "forkserver", "thread"],
    "numa-binding": ["node", "core-complex", "cores"],
    "redirects": MAPS,
    "tee": MAPS,
    **dict.fromkeys(["rdzv-endpoint", "rdzv-id", "rdzv-conf", "event-log-handler", "role", "log-dir"], TEXTS),
    **dict.fromkeys(["log-line-prefix-template", "local-ranks-filter", "master-addr", "local-addr"], TEXTS),
    **dict.fromkeys(["duplicate-stdout-filters", "duplicate-stderr-filters", "logs-specs"], TEXTS),
    "signals-to-handle": TEXTS,
}
FLAGS = ["standalone", "module", "no-python", "run-path", "virtual-local-rank"]
SHORT = {"module": "m", "redirects": "r", "tee": "t"}
NO_VARIABLE = ["logs-specs", "numa-binding"]
SCRIPTS = ["t.py", "t.py", "t.py", "a b", "-1", "-", "--", "-- --role", "-- t.py --"]
# After the script. Names cut short in several ways are errors there too, for argparse before Python 3.12.
WORDS = ["--foo", "-x", "a", "--", "-m", "--role=b", "--nnodes", "", "--help", "-mt3", "x y"]
WRONG = [
    "--nope",
    "-x",
    "--standalone=1",
    "-mx",
    "--r",
    "--nn=",
    "--tee",
    "-q3",
    "--use-env",
    "--rdzv",
    "-rm",
]

# The last two do not ask for it.
HELP = ["-h", "--help", "--he t.py", "-mh", "--role a -h --tee 9", "--h --nnodes", "t.py -h", "--role --help"]


def some_case(dice: random.Random) -> Case:
    args: list[str] = []
    names = dice.sample([*VALUES, *FLAGS], dice.choice([0, 1, 1, 2, 3, 4]))
    for name in names:
        args += option_words(dice, name)
    if dice.random() < 0.1:
        args += ["--role", "first", dice.choice(["--role=second", "--rol=second"])]
    if dice.random() < 0.15:
        args.insert(dice.randrange(len(args) + 1), dice.choice(WRONG))
    if dice.random() < 0.95:
        args += dice.choice(SCRIPTS).split(" ") if dice.random() < 0.9 else ["a b"]
        args += dice.choices(WORDS, k=dice.choice([0, 0, 1, 2, 3]))
    environ = {}
    for name in dice.sample([*VALUES, *FLAGS], dice.choice([0, 0, 1, 2])):
        if name not in NO_VARIABLE:
            # torchrun refuses a bad one even where the command line has the flag; `-mt3` has --module.
            bad = [] if name in [*names, "module"] else ["x"]
            values = ["0", "1", "2", "-1", " 1", *bad] if name in FLAGS else VALUES[name]
            environ[f"PET_{name.upper().replace('-', '_')}"] = dice.choice(values)
    if dice.random() < 0.05:
        environ["PET_R"] = "3"
    return args, environ


def option_words(dice: random.Random, name: str) -> list[str]:
    """An option, in one of its forms."""
    word = f"--{name if dice.random() < 0.5 else name.replace('-', '_')}"
    if dice.random() < 0.3:
        word = word[: dice.randrange(3, len(word) + 1)]
    letter = SHORT.get(name) if dice.random() < 0.5 else None
    if name in FLAGS:
        return [f"-{letter}" if letter else word]
    value = dice.choice(VALUES[name])
    if letter is None:
        return dice.choice([[word, value], [f"{word}={value}"]])
    return dice.choice(
        [[f"-{letter}", value], [f"-{letter}{value}"], [f"-{letter}={value}"], [f"-m{letter}{value}"]]
    )


@pytest.fixture(scope="module")
def torchs() -> Iterator[Parser]:
    """The real parser."""
    oracle = [*python("torch"), ORACLES / "oracle_run.py"]
    with subprocess.Popen(oracle, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        asked, answers = process.stdin, process.stdout

        def answer(case: Case) -> dict[str, Any] | str:
            print(json.dumps(case), file=asked, flush=True)
            answer: dict[str, Any] | str = json.loads(answers.readline())
            return answer

        yield answer
        # Its interpreter with torch in it was seen to take minutes to end by itself.
        process.kill()


def ours(args: list[str], environ: dict[str, str]) -> dict[str, Any] | str:
    try:
        return native_hooks.parse_run(args, environ)
    except SystemExit:
        return "printed"
    except ValueError:
        return "refused"


def test_command_lines_are_read_as_torchrun_reads_them(torchs: Parser) -> None:
    dice = random.Random(SEED)
    cases: list[Case] = [some_case(dice) for _ in range(500)]
    cases += [(line.split(" "), {}) for line in HELP]
    kinds = {"read": 0, "printed": 0, "refused": 0}
    of_help = []
    for case in cases:
        own, theirs = ours(*case), torchs(case)
        if isinstance(theirs, dict) and isinstance(own, dict):
            own = {name: own.get(name) for name in theirs}
        if (own, theirs) == ("printed", "refused"):
            # Help is help, also behind a value that cannot be read (docs/differences-torchrun.md).
            args, environ = case
            own = ours([*args[: args.index("--help")], "t.py"], environ)
        assert own == theirs, case
        kinds["read" if isinstance(theirs, dict) else theirs] += 1
        of_help.append(theirs)
    assert of_help[-len(HELP) :].count("printed") == len(HELP) - 2
    assert min(kinds["read"], kinds["refused"]) > 50, kinds


def test_help_is_help_behind_a_value_that_cannot_be_read(torchs: Parser) -> None:
    case: Case = (["--node-rank=x", "--help"], {})
    assert (ours(*case), torchs(case)) == ("printed", "refused")


@pytest.mark.parametrize(
    ("args", "environ"),
    [
        (["t.py"], {}),
        (["--nproc_per_node=2", "--max-restarts", "3", "-mt3", "mod", "--", "-x"], {}),
        (["--standalone", "--duplicate-stdout-filters", "a,,b,c", "t.py", "--role", "a"], {"PET_ROLE": "r"}),
        (["--monitor-interval=5", "--log-dir=d", "t.py"], {"PET_MODULE": "1", "PET_MASTER_PORT": "12"}),
    ],
)
def test_namespaces_are_torchruns(
    args: list[str], environ: dict[str, str], torchs: Parser, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    assert vars(run.parse_args(args)) == torchs((args, environ))


def test_a_name_cut_short_is_one_option_in_both_spellings() -> None:
    assert run.parse_args(["--nproc=2", "t.py"]).nproc_per_node == "2"
    # Unique in torchrun, whatever else begins so.
    assert run.parse_args(["--v", "t.py"]).virtual_local_rank is True
    with pytest.raises(SystemExit):
        run.parse_args(["--rdzv=2", "t.py"])


def test_rlaunchs_own_options_are_there_where_they_are_given() -> None:
    assert run.parse_args(["--capture=none", "--omp-compat", "t.py"]).omp_compat is True
    assert not hasattr(run.parse_args(["t.py"]), "capture")


def test_a_flags_variable_may_be_a_word(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PET_STANDALONE", "yes")
    assert run.parse_args(["t.py"]).standalone is True
    monkeypatch.setenv("PET_STANDALONE", "perhaps")
    with pytest.raises(ValueError, match="PET_STANDALONE perhaps: is neither"):
        run.get_args_parser()


def test_a_namespace_comes_back_from_its_command_line() -> None:
    dice = random.Random(SEED)
    came_back = 0
    for _ in range(200):
        args, _ = some_case(dice)
        namespace = ours(args, {})
        # The commas are ambiguous.
        if isinstance(namespace, str) or ",,c" in " ".join(args) or namespace["training_script"] == "":
            continue
        del namespace["dry_run"], namespace["print_completion"]
        again = ours(run._build_arguments(type("Namespace", (), namespace)()), {})
        assert isinstance(again, dict)
        assert {name: again[name] for name in namespace} == namespace, args
        came_back += 1
    assert came_back > 50


def test_tools_make_namespaces_of_their_own() -> None:
    """As accelerate does: unknown words, then attributes from elsewhere."""
    words = ["--training_script", "t.py", "--training_script_args", ["--lr", 1]]
    args, _ = run.get_args_parser().parse_known_args(words)  # type: ignore[arg-type]
    args.nproc_per_node, args.master_port, args.training_script, args.training_script_args = (
        "2",
        7,
        "t.py",
        ["--lr", 1],
    )
    args.nnodes, args.module, args.log_dir = 1, False, None
    read = native_hooks.parse_run(run._build_arguments(args), {})
    assert (read["nproc_per_node"], read["master_port"], read["nnodes"]) == ("2", 7, "1")
    assert (read["training_script"], read["training_script_args"]) == ("t.py", ["--lr", "1"])
    args.use_env = False
    assert native_hooks.parse_run(run._build_arguments(args), {})["pass_local_rank"] is True


PADDLES = "it is an option of python -m rlaunch"


def test_the_module_refuses_in_one_line(tmp_path: Path) -> None:
    for args, why in [
        (["--max-restarts", "x", "t.py"], "--max-restarts x: invalid int value: 'x'; give a whole number"),
        (["--mud", "t.py"], "unknown option --mud; "),
        (
            ["--gpus", "0", "t.py"],
            f"unknown option --gpus; {PADDLES}; give --nproc-per-node, and CUDA_VISIBLE",
        ),
        (["--rank=0", "t.py"], f"unknown option --rank; {PADDLES}; give --node-rank"),
        (["--restart-delay=0", "t.py"], f"unknown option --restart-delay; {PADDLES} alone"),
        (["-n", "2", "t.py"], "unknown option -n; did you mean --nproc-per-node?"),
        (["-np", "2", "t.py"], "unknown option -np; did you mean --nproc-per-node?"),
        (
            ["--nproc-per-node", "0", "t.py"],
            "--nproc-per-node 0: is not a number of ranks; give a number, 1 or",
        ),
        (
            ["--nproc-per-node", "-2", "t.py"],
            "--nproc-per-node -2: is not a number of ranks; give a number, 1",
        ),
        (
            ["--nnodes", "-1", "t.py"],
            "--nnodes -1: min_nodes must be > 0 and <= max_nodes, got min_nodes=-1, max_nodes=-1; "
            "give a number of nodes, 1 or more",
        ),
        (
            [],
            "the following arguments are required: training_script, training_script_args (which may be none)",
        ),
    ]:
        ended = subprocess.run(
            [sys.executable, "-m", "rlaunch.run", *args], cwd=tmp_path, capture_output=True, text=True
        )
        assert (ended.returncode, ended.stdout) == (2, "")
        assert ended.stderr.startswith(f"rlaunch: error: {why}")
        assert ended.stderr.count("\n") == 1
    for shell in ("bash", "zsh", "fish"):
        script = subprocess.run(
            [sys.executable, "-m", "rlaunch.run", "--print-completion", shell], capture_output=True
        )
        assert script.returncode == 0
        assert b"nproc-per-node" in script.stdout


def test_an_option_after_the_script_is_the_scripts_with_a_warning(tmp_path: Path) -> None:
    (tmp_path / "t.py").write_text("import sys\nprint(sys.argv[1:])\n")
    command = [sys.executable, "-m", "rlaunch.run", "t.py", "--nproc-per-node", "2"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert ended.stdout == "['--nproc-per-node', '2']\n"
    (line,) = ended.stderr.splitlines()
    assert line.endswith(
        "the script receives --nproc-per-node, as it follows the script; options of the launcher go before "
        "the script"
    )


def test_a_home_folder_that_the_shell_has_not_expanded_is_a_warning(tmp_path: Path) -> None:
    (tmp_path / "t.py").touch()
    command = [sys.executable, "-m", "rlaunch.run", "--log-dir=~/x", "t.py"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "--log-dir ~/x: a folder named ~ is meant here" in ended.stderr
    assert (tmp_path / "~" / "x").is_dir()


def test_an_option_that_quotes_hold_together_with_its_value_is_refused(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "rlaunch.run", "--nproc-per-node 2", "t.py"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert "write --nproc-per-node 2" in ended.stderr


@pytest.mark.parametrize(
    "options",
    [
        "--nproc-per-node unknown",
        "--no-python --module",
        "--nnodes x",
        "--tee 4",
        "--log-dir=t.py",
    ],
)
def test_an_invalid_value_is_a_value_error_as_in_torchrun(options: str, tmp_path: Path) -> None:
    (tmp_path / "t.py").touch()
    options = options.replace("t.py", str(tmp_path / "t.py"))
    is_value = not options.startswith("--log-dir")  # torchrun: NotADirectoryError.
    with pytest.raises(LaunchError) as caught:
        run.main([*options.split(), str(tmp_path / "t.py")])
    assert isinstance(caught.value, ValueError) == is_value
    assert pickle.loads(pickle.dumps(caught.value)).status == caught.value.status


def test_attributes_alone_count(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    args = run.parse_args(["t.py"])
    monkeypatch.setenv("PET_NNODES", "none")
    args.max_restarts = -1
    with pytest.raises(LaunchError, match="max_restarts must be >= 0") as caught:
        run.run(args)
    assert caught.value.status == 2
    assert "--max-restarts -1: max_restarts must be >= 0" in str(caught.value)
    assert capfd.readouterr().err == "", "the exception says it"
    with pytest.raises(LaunchError, match="--nnodes none"):
        run.main(["t.py"])
