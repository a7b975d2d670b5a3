"""A stand-in for a parameter-server job: processes that listen at their endpoints, and talk."""

from __future__ import annotations

import textwrap

import preloaded
from launching import TALKING, Place

# `who` is the role and the number among those of the role.
HEAD = """
import os, signal, socket, sys, time

def endpoints(name):
    text = os.environ.get(name, "")
    return [(host, int(port)) for host, port in (one.split(":") for one in text.split(",") if one)]

role = os.environ["TRAINING_ROLE"]
own = os.environ["POD_IP"], int(os.environ["PADDLE_PORT"])
servers, workers = endpoints("PADDLE_PSERVERS_IP_PORT_LIST"), endpoints("PADDLE_TRAINER_ENDPOINTS")
lists = {
    "PSERVER": servers, "TRAINER": workers, "COORDINATOR": endpoints("PADDLE_COORDINATOR_ENDPOINTS"),
    "HETER_TRAINER": endpoints("PADDLE_ALL_HETER_TRAINER_IP_PORT_LIST"),
}
number = lists[role].index(own)
who = rank = f"{role}.{number}"
"""

CALLING = """
def call(endpoint, text):
    deadline = time.monotonic() + 60
    while True:
        try:
            with socket.create_connection(endpoint) as there:
                there.sendall(text.encode())
                there.shutdown(socket.SHUT_WR)
                return there.makefile().read()
        except ConnectionRefusedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.005)

def answer(listener):
    there, _ = listener.accept()
    with there:
        asked = there.makefile().read()
        there.sendall(f"{who} heard {asked}".encode())
    return asked
"""

# Servers hear each worker and call it back; both listen at their endpoints. No worker ends before all have
# said what they have to: the others are asked to stop then. Nodes with folders of their own meet in MEET.
TALK = """
listener = socket.create_server(own)
if role == "PSERVER":
    for _ in workers:
        print(answer(listener), flush=True)
    for worker in workers:
        print(call(worker, who), flush=True)
elif role == "TRAINER":
    for server in servers:
        print(call(server, who), flush=True)
    for _ in servers:
        print(answer(listener), flush=True)
else:
    print(who, flush=True)
os.chdir(os.environ.get("MEET", "."))
tell("said")
if role == "TRAINER":
    for name, list_ in lists.items():
        for other in range(len(list_)):
            await_file(f"said.{name}.{other}")
"""


def script(place: Place, body: str, name: str = "train.py", framework: str | None = None) -> str:
    """Writes the script of all processes, with HEAD above it; returns its name.

    `framework`: it runs where this one is imported already.
    """
    first = preloaded.head(framework) if framework else ""
    (place.folder / name).write_text(first + HEAD + TALKING + CALLING + textwrap.dedent(body))
    return name


def lines(place: Place, log: str) -> list[str]:
    """The output of a process, in some order."""
    return sorted(place.text(f"log/{log}").splitlines())
