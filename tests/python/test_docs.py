"""The docs have all public names and options, and the table of docs/architecture/README.md is true."""

from __future__ import annotations

import importlib
import inspect
import re

import pytest
from paths import ROOT
from plugin_list import PLUGINS

# Modules with public names.
MODULES = ("rlaunch", "rlaunch.errors", "rlaunch.paddle", "rlaunch.run", "rlaunch.torch")
# Options in the docs of other programs, and of scripts; the first ones are examples of what is refused.
FOREIGN = """
--log --nproc --rank_mapping_file --fail --lr
--accelerator --array --auto-compaction-retention --bind-to --cov --cov-context --cpu --cpus-per-task
--dataset_name --devices --dist --dynamo_backend --enable-grpc-gateway --for --from-literal --gpus-per-node
--het-group --hostfile --hypothesis-seed --init --ipc --keys-only --kill-on-bad-exit --lf --lib --listen
--locked --map-by --max-log-requests --mixed_precision --model_name_or_path --mount-proc --multi_gpu
--no-kill --nodes --ntasks --ntasks-per-node --num_machines --num_processes --open-mode --output-filename
--no-deps --overlap --part --pdb --pdbcls --pid --prefix --profile --requeue --scope --shm-size --signal
--strategy --tag-output --tail --test --time --timeout --use-env --user --wait --wait-for-client --wheel-dir
--verify --with-mpi --write
"""
ROW = re.compile(
    r"^\| (?P<question>[^|]+\?) \| `(?P<word>[^`]+)` in `(?P<folder>[^`]+)` \| (?P<files>.+) \|$", re.M
)


@pytest.mark.parametrize("name", MODULES)
def test_each_public_name_is_in_the_reference(name: str) -> None:
    pages = "".join(page.read_text() for page in (ROOT / "docs/reference").glob("python*.md"))
    module = importlib.import_module(name)
    for public in module.__all__:
        spellings = {f"{name}.{public}", f"rlaunch.{public}", f"rlaunch.torch.{public}"}
        assert any(re.search(rf"(?:^:::|heading:) {one}$|`{one}`", pages, re.M) for one in spellings), public
        value = getattr(module, public)
        if isinstance(value, str):
            continue
        assert inspect.getdoc(value), f"{public} has no docstring"
        for member, function in vars(value).items() if inspect.isclass(value) else ():
            is_documented = member.startswith("_") or not callable(function) or inspect.getdoc(function)
            assert is_documented, f"{public}.{member} has no docstring"


def test_each_option_of_the_pytest_plugin_is_in_the_docs() -> None:
    source = (ROOT / "python/rlaunch/pytest_plugin.py").read_text()
    options = re.findall(r'"(--ranks-[a-z-]+)"', source)
    settings = re.findall(r'addini\(\s*"(\w+)"', source)
    (marker,) = re.findall(r'"ranks\((n, .*?)\): ', re.sub(r'"\n\s*"', "", source))
    parameters = re.findall(r"(?:^|, )(\w+)", marker)
    assert (len(options), len(settings), len(parameters)) == (3, 4, 8)
    page = (ROOT / "docs/reference/python-pytest.md").read_text()
    assert [one for one in options if f"| `{one} " not in page] == []
    assert [one for one in settings + parameters if f"| `{one}`" not in page] == []


def test_each_option_that_the_docs_name_exists() -> None:
    def options(text: str) -> set[str]:
        return set(re.findall(r"(?<![\w-])--[a-z][\w-]+", text))

    known = options("".join(page.read_text() for page in (ROOT / "docs/reference").glob("*.md"))) | set(
        FOREIGN.split()
    )
    known |= {f"--{name[2:].replace('_', '-')}" for name in known}
    known |= {"--profile"}.union(*(options(plugin.options) for plugin in PLUGINS))
    for page in (ROOT / "docs").rglob("*.md"):
        assert options(page.read_text()) - known == set(), page


@pytest.mark.parametrize("name", ["differences", "differences-legacy", "differences-torchrun"])
def test_each_table_of_differences_has_a_reason(name: str) -> None:
    """In a column, or between the topic's heading and the table."""
    tables = 0
    for topic in re.split(r"^#+ ", (ROOT / f"docs/{name}.md").read_text(), flags=re.M):
        heads = re.findall(r"^(\|.*rlaunch.*\|)\n\|---", topic, re.M)
        is_explained = "\nReason: " in topic.partition("\n| ")[0]
        assert [head for head in heads if not is_explained and "| reason |" not in head] == [], topic
        tables += len(heads)
    assert tables > 8


def test_each_behaviour_is_found_with_one_grep_and_two_files() -> None:
    rows = list(ROW.finditer((ROOT / "docs/architecture/README.md").read_text()))
    assert len(rows) == 8
    for row in rows:
        files = re.findall(r"`([^`]+)`", row["files"])
        assert len(files) == 2, row["question"]
        hits = [
            path.relative_to(ROOT).as_posix()
            for path in (ROOT / row["folder"]).rglob("*")
            if path.suffix in (".rs", ".py") and row["word"] in path.read_text()
        ]
        assert set(hits) & set(files), (row["question"], hits)
        for file in files:
            assert (ROOT / file).is_file(), (row["question"], file)
