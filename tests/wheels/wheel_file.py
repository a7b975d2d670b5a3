"""Wheels as files: what is in one, and a second look that makes equal builds equal files."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import uuid
import zipfile
from pathlib import Path
from unittest import mock

import zopfli.zlib


class Zopfli:
    """Compresses a file for `zipfile`, which has no place for a compressor of others."""

    def __init__(self, *_: object) -> None:
        self.data = b""

    def compress(self, data: bytes) -> bytes:
        self.data += data
        return b""

    def flush(self) -> bytes:
        # Without zlib's head of two bytes and its checksum of four.
        return zopfli.zlib.compress(self.data, numiterations=5)[2:-4]


def repack(wheel: Path, epoch: str) -> None:
    """Writes a wheel anew: without the builder's folder in the bill of materials, and compressed more."""
    with zipfile.ZipFile(wheel) as old:
        files = {entry.filename: old.read(entry) for entry in old.infolist()}
        modes = {entry.filename: entry.external_attr for entry in old.infolist()}
    record = next(name for name in files if name.endswith(".dist-info/RECORD"))
    for name in files:
        if name.endswith(".cyclonedx.json"):
            files[name] = normalize(files[name], epoch)
    files[record] = rows(files, record).encode()
    wheel.unlink()
    compressor = mock.patch.object(zipfile, "_get_compressor", Zopfli)
    with compressor, zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as new:
        for name, data in files.items():
            entry = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = modes[name]
            entry.create_system = 3
            new.writestr(entry, data)


def normalize(bill: bytes, epoch: str) -> bytes:
    """A bill of materials that depends on the sources alone."""
    text = re.sub(rb"path\+file://[^#\"]*#", b"path+file:///rlaunch#", bill)
    content = json.loads(text)
    content["metadata"]["timestamp"] = epoch
    content["serialNumber"] = ""
    body = json.dumps(content, separators=(",", ":"))
    content["serialNumber"] = f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, body)}"
    return json.dumps(content, separators=(",", ":")).encode()


def listed_crates(wheel: Path) -> int:
    """How many crates the bill of materials names."""
    with zipfile.ZipFile(wheel) as archive:
        bills = [name for name in archive.namelist() if name.endswith(".cyclonedx.json")]
        return sum(len(json.loads(archive.read(name))["components"]) for name in bills)


def rows(files: dict[str, bytes], record: str) -> str:
    def row(name: str, data: bytes) -> str:
        if name == record:
            return f"{name},,\n"
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        return f"{name},sha256={digest},{len(data)}\n"

    return "".join(row(name, data) for name, data in files.items())
