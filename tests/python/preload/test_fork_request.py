"""The request to fork a rank: both encoders against the decoder, and damaged requests."""

from __future__ import annotations

import os
import re
from typing import Any

import pytest
from effort import cases
from hypothesis import given, settings
from hypothesis import strategies as st
from native_hooks import encode_fork_request
from rlaunch._preload.fork_request import ForkRequest, encode

# The encoder borrows them, so they are open.
OPEN = [os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC) for _ in range(5)]
NAMES = ("stdin", "stdout", "stderr", "lifeline", "cgroup")


def strings(pattern: bytes) -> Any:
    return st.lists(st.from_regex(re.compile(pattern, re.DOTALL), fullmatch=True), max_size=5)


@settings(max_examples=cases(100, 2000), deadline=None, derandomize=True, database=None)
@given(
    argv=strings(b"[^\\0]*"),
    env=strings(b"[^\\0]*=[^\\0]*"),
    cwd=st.none() | st.from_regex(re.compile(b"[^\\0]+", re.DOTALL), fullmatch=True),
    nofile=st.none() | st.integers(0, 2**64 - 1),
    cpus=st.none() | st.lists(st.integers(0, 8191), min_size=1, unique=True).map(sorted),
    given_fds=st.tuples(*[st.booleans()] * 5),
)
def test_the_launchers_encoder_and_ours_say_what_is_decoded(
    argv: list[bytes],
    env: list[bytes],
    cwd: bytes | None,
    nofile: int | None,
    cpus: list[int] | None,
    given_fds: tuple[bool, ...],
) -> None:
    fds = [fd if there else None for fd, there in zip(OPEN, given_fds, strict=True)]
    request, sent = encode_fork_request(argv, env, cwd, nofile, cpus, fds)
    # The numbers that the receiver has for them, and another one.
    decoded = ForkRequest(request, [*(fd + 100 for fd in sent), 7])
    assert (decoded.argv, decoded.env, decoded.cwd, decoded.nofile) == (argv, env, cwd, nofile)
    assert (decoded.cpus, decoded.parent, decoded.unnamed) == (cpus, os.getpid(), [7])
    assert [decoded.fd(name) for name in NAMES] == [-1 if fd is None else fd + 100 for fd in fds]

    items = [tuple(line.split(b"=", 1)) for line in request.split(b"\0")[:-1]]
    assert encode(items) == request  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("request_", "said"),
    [
        (b"argv=a\0argv", "is cut off in b'argv'"),
        (b"argc=1\0", "has an invalid field: b'argc=1'"),
        (b"cwd\0", "has an invalid field: b'cwd'"),
        (b"\0", "has an invalid field: b''"),
        (b"env=A\0", "has an invalid field: b'env=A'"),
        (b"nofile=-1\0", "has an invalid field: b'nofile=-1'"),
        (b"cpu=1_0\0", "has an invalid field: b'cpu=1_0'"),
        (b"fd=log\0", "has an invalid field: b'fd=log'"),
        (b"cwd=/\0cwd=/\0", "has a field twice: b'cwd=/'"),
        (b"fd=stdin\0fd=stdin\0", "has a field twice: b'fd=stdin'"),
        (b"fd=stdin\0fd=status\0", "came without its descriptor 'status'"),
    ],
)
def test_a_damaged_request_is_an_error_that_names_the_field(request_: bytes, said: str) -> None:
    with pytest.raises(ValueError, match="^" + re.escape(f"the request to fork a rank {said}") + "$"):
        ForkRequest(request_, [3])


def test_a_null_byte_is_no_part_of_a_value() -> None:
    with pytest.raises(ValueError, match="embedded null byte"):
        encode([(b"env", b"A=1\0fd=cgroup")])
