"""A client of the debug adapter protocol, as an editor is: for one session with debugpy."""

from __future__ import annotations

import itertools
import json
import socket
from collections.abc import Callable
from typing import Any

from ecosystem_jobs import LIMIT

Message = dict[str, Any]


class Session:
    """One connection to an adapter. Events are kept until a test waits for them."""

    def __init__(self, connection: socket.socket) -> None:
        connection.settimeout(LIMIT)
        self._socket = connection
        self._file = self._socket.makefile("rwb")
        self._numbers = itertools.count(1)
        self._kept: list[Message] = []

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
        self._socket.close()

    def send(self, command: str, **arguments: Any) -> int:
        """Sends a request; returns its number."""
        number = next(self._numbers)
        message = {"seq": number, "type": "request", "command": command, "arguments": arguments}
        data = json.dumps(message).encode()
        self._file.write(b"Content-Length: %d\r\n\r\n%s" % (len(data), data))
        self._file.flush()
        return number

    def ask(self, command: str, **arguments: Any) -> Message:
        """Sends a request; returns the body of its response."""
        return self.answer(self.send(command, **arguments))

    def answer(self, number: int) -> Message:
        """The body of the response to a request."""
        response = self._await(lambda one: one["type"] == "response" and one["request_seq"] == number)
        return response.get("body") or {}

    def event(self, name: str) -> Message:
        """The body of the next event of this name."""
        return self._await(lambda one: one["type"] == "event" and one["event"] == name).get("body") or {}

    def begin(self, how: str, path: str, line: int, **arguments: Any) -> Message:
        """Launches or attaches, with one breakpoint; returns what the adapter can do."""
        able = self.ask("initialize", adapterID="debugpy", clientID="test", pathFormat="path")
        begun = self.send(how, **arguments)
        self.event("initialized")
        self.ask("setBreakpoints", source={"path": path}, breakpoints=[{"line": line}])
        self.ask("configurationDone")
        self.answer(begun)
        return able

    def evaluate_where_stopped(self, expression: str) -> str:
        """Waits for the breakpoint, evaluates an expression there, and continues."""
        thread = self.event("stopped")["threadId"]
        frame = self.ask("stackTrace", threadId=thread)["stackFrames"][0]
        value = str(self.ask("evaluate", expression=expression, frameId=frame["id"])["result"])
        self.ask("continue", threadId=thread)
        return value

    def _await(self, is_wanted: Callable[[Message], bool]) -> Message:
        for place, message in enumerate(self._kept):
            if is_wanted(message):
                return self._kept.pop(place)
        while not is_wanted(message := self._read()):
            self._kept.append(message)
        return message

    def _read(self) -> Message:
        length = 0
        while header := self._file.readline().strip():
            name, _, value = header.partition(b":")
            if name.lower() == b"content-length":
                length = int(value)
        assert length, f"the adapter has closed the connection; it said before {self._kept[-5:]}"
        message: Message = json.loads(self._file.read(length))
        assert message.get("success", True), message
        return message
