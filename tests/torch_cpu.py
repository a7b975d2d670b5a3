"""Makes PyTorch's wheel import without the CUDA libraries, of which a machine without a driver calls none.

PyPI's wheels for Linux are linked against 3 GB of them. With ``pip install --no-deps`` they are left out,
and each library that torch's own need and that is missing gets a stand-in in ``torch/lib``, where torch
looks last, so that real ones win. A stand-in defines what is looked for in it; each of its functions
returns 1, which is an error in all of these libraries. Needs ``cc`` and ``readelf``. Called again, it makes
them anew.
"""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

# The libraries that `import torch` loads; the others are linked against these.
ROOTS = ("libtorch_global_deps.so", "libtorch_python.so")
# Libraries of CUDA, but for the driver's: no program may believe that a driver is here.
OF_CUDA = re.compile(r"lib(cu|nv|nccl)(?!da\.so)")
ITS_SYMBOLS = re.compile(r"cu|nv|nccl")

NEEDED = re.compile(r"\(NEEDED\).*\[(.+)\]")
# readelf -V: a library, and below it the versions that are looked for in it.
VERSIONS_OF = re.compile(r"File: (\S+)  Cnt: \d+\n((?:.*Name: .*\n)*)")
VERSION = re.compile(r"Name: (\S+)")
# Num: Value Size Type Bind Vis Ndx Name, with @ and a version where it has one.
SYMBOL = re.compile(r"^ *\d+: \S+ +\S+ \S+ +GLOBAL \S+ +(\S+) ([^@\s]+)@*(\S*)", re.MULTILINE)


def readelf(option: str, file: Path) -> str:
    command = ["readelf", "--wide", option, str(file)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def loaded(lib: Path) -> tuple[list[Path], set[str]]:
    """The libraries that torch loads from site-packages, and the names of those that are not there."""
    theirs = {path.name: path for path in lib.parents[1].glob("nvidia/*/lib/*.so*")}
    # A stand-in that was made before is as good as none.
    own = {path.name: path for path in lib.glob("*.so*") if not OF_CUDA.match(path.name)}
    found, absent = [lib / name for name in ROOTS], set()
    for library in found:
        for name in NEEDED.findall(readelf("--dynamic", library)):
            path = theirs.get(name) or own.get(name)
            if path is None and OF_CUDA.match(name):
                absent.add(name)
            elif path is not None and path not in found:
                found.append(path)
    return found, absent


def looked_for(libraries: list[Path], absent: set[str]) -> dict[str, dict[str, set[str]]]:
    """The symbols to be defined, by library and version. One without a version may be defined anywhere."""
    wanted: dict[str, dict[str, set[str]]] = {name: {} for name in absent}
    anywhere, defined = set(), set()
    for library in libraries:
        versions = VERSIONS_OF.findall(readelf("--version-info", library))
        home = {version: name for name, rest in versions for version in VERSION.findall(rest)}
        for section, symbol, version in SYMBOL.findall(readelf("--dyn-syms", library)):
            if section != "UND":
                defined.add(symbol)
            elif home.get(version) in absent:
                wanted[home[version]].setdefault(version, set()).add(symbol)
            elif not version and ITS_SYMBOLS.match(symbol):
                anywhere.add(symbol)
    if absent:
        wanted[min(absent)][""] = anywhere - defined
    return wanted


def make(path: Path, symbols: dict[str, set[str]], folder: Path) -> None:
    """A shared object that defines these symbols, by version."""
    code, versions = folder / "stand-in.c", folder / "versions"
    names = sorted(set().union(*symbols.values()))
    aliases = [f'int {name}(void) __attribute__((alias("failed")));' for name in names]
    code.write_text("\n".join(["static int failed(void) { return 1; }", *aliases, ""]))
    nodes = [
        f"{version} {{ global: {' '.join(f'{name};' for name in sorted(of))} }};"
        for version, of in symbols.items()
        if version
    ]
    versions.write_text("\n".join([*nodes, ""]))
    script = [f"-Wl,--version-script={versions}"] if nodes else []
    command = ["cc", "-shared", "-fPIC", "-nostdlib", f"-Wl,-soname,{path.name}", *script]
    # Put in place whole: no process loads half of it.
    subprocess.run([*command, "-o", str(folder / path.name), str(code)], check=True)
    shutil.move(folder / path.name, path)


def main() -> None:
    for tool in ("cc", "readelf"):
        if shutil.which(tool) is None:
            sys.exit(f"torch_cpu.py: {tool} is missing; install a C compiler and binutils")
    torch = importlib.util.find_spec("torch")
    if torch is None or torch.origin is None:
        sys.exit(f"torch_cpu.py: {sys.executable} has no torch")
    lib = Path(torch.origin).parent / "lib"
    if not all((lib / name).exists() for name in ROOTS):
        sys.exit(f"torch_cpu.py: {lib} is not as in PyPI's wheels for Linux")
    libraries, absent = loaded(lib)
    with tempfile.TemporaryDirectory() as folder:
        for name, symbols in looked_for(libraries, absent).items():
            make(lib / name, symbols, Path(folder))


if __name__ == "__main__":
    main()
