"""Records of runs that were not run, and a strict reader of the pages that ``rlaunch report`` writes."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

VOID = {"meta", "link", "br", "hr", "img", "input"}
# All that the pages need. What a rank's text could add is none of it.
TAGS = {
    *(
        "html",
        "head",
        "meta",
        "title",
        "link",
        "style",
        "body",
        "main",
        "header",
        "footer",
        "section",
        "script",
    ),
    *(
        "h1",
        "h2",
        "p",
        "b",
        "i",
        "strong",
        "span",
        "a",
        "div",
        "pre",
        "details",
        "summary",
        "time",
        "ol",
        "li",
    ),
    *("dl", "dt", "dd", "table", "thead", "tbody", "tr", "th", "td", "svg", "polyline", "polygon"),
}
ATTRIBUTES = {
    *(
        "lang",
        "charset",
        "http-equiv",
        "content",
        "name",
        "rel",
        "href",
        "class",
        "style",
        "title",
        "id",
        "open",
    ),
    *("tabindex", "role", "aria-label", "scope", "data-sort", "data-v", "data-zoom"),
    # The parser has them in lower case.
    *("viewbox", "preserveaspectratio", "points"),
}


class Page(HTMLParser):
    """A page as its elements: fails on one that is not closed, or that such pages do not have."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.count: dict[str, int] = {}
        self.texts: list[str] = []
        self.ids: set[str] = set()
        self.links: set[str] = set()
        self.feed(text)
        self.close()
        assert self.open == [], self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = dict(attrs)
        assert tag in TAGS, (tag, attrs)
        assert names.keys() <= ATTRIBUTES, (tag, attrs)
        assert tag != "b" or "class" in names, attrs
        self.count[tag] = self.count.get(tag, 0) + 1
        if (name := names.get("id")) is not None:
            assert name not in self.ids, name
            self.ids.add(name)
        if tag == "a":
            self.links.add(names["href"] or "")
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] not in ("style", "script"):
            self.texts.append(data)

    @property
    def text(self) -> str:
        return "\n".join(self.texts)


class Records:
    """The log folder of a run, as a launcher writes it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "rlaunch").mkdir(parents=True)
        self.lines: list[str] = []
        self.ranks: list[dict[str, Any]] = []

    def event(self, at: float, event: str, **fields: Any) -> None:
        """An event, so many seconds after the start."""
        time = f"2026-01-02T{int(at) // 3600:02}:{int(at) // 60 % 60:02}:{int(at) % 60:02}.000000Z"
        head = {
            "version": 1,
            "sequence": len(self.lines),
            "time": time,
            "monotonic": 5000 + at,
            "event": event,
        }
        self.lines.append(json.dumps({**head, **fields}))

    def rank(self, rank: int, lines: str = "", **fields: Any) -> None:
        """A rank of the result, with its log."""
        path = self.folder / f"workerlog.{rank}"
        path.write_text(lines)
        usual = {
            "role": "rank",
            "rank": rank,
            "local_rank": rank,
            "status": "stopped",
            "exit": {"signal": {"number": 15, "name": "SIGTERM"}},
            "why": None,
            "pid": 100 + rank,
            "attempt": 0,
            "seconds": 10.0 + rank,
            "ended": 1.0,
            "told": True,
            "killed": False,
            "peak_memory_bytes": (rank * 7919 % 512 + 1) << 20,
            "swept": 0,
            "log": str(path),
            "environment": {},
        }
        self.ranks.append({**usual, **fields})

    def write(self, result: bool = True, **fields: Any) -> Path:
        """Writes the records. Returns the log folder."""
        (self.folder / "rlaunch/events.jsonl").write_text("".join(f"{line}\n" for line in self.lines))
        usual = {
            "version": 1,
            "job_id": "night",
            "host": "node-3",
            "outcome": "failed",
            "culprit": 1,
            "culprit_role": "rank",
            "job_culprit": None,
            "exit_status": 3,
            "log_dir": str(self.folder),
            "verdict": "rank 1 failed: exit code 3",
            "reason": "ValueError: no",
            "last_lines": "one\ntwo",
            "restarts": 0,
            "attempts": [],
            "ranks": self.ranks,
            "job_end": None,
            "swept": 0,
            "left_running": [],
            "environment": {"OMP_NUM_THREADS": "1"},
        }
        if result:
            (self.folder / "rlaunch/result.json").write_text(json.dumps({**usual, **fields}))
        return self.folder


def failed_run(folder: Path, ranks: int) -> Path:
    """A run of this many ranks, of which rank 1 fails and the others are stopped."""
    records = Records(folder)
    records.event(0, "job_started", job_id="night", host="node-3", ranks=ranks, supervisor=7, argv=["train"])
    for rank in range(ranks):
        name = {"role": "rank", "rank": rank, "local_rank": rank, "attempt": 0, "pid": 100 + rank}
        records.event(1 + rank / ranks, "rank_started", **name)
    for rank in sorted(range(ranks), key=lambda rank: rank != 1):
        name = {"role": "rank", "rank": rank, "local_rank": rank, "attempt": 0, "pid": 100 + rank}
        exit = {"code": 3} if rank == 1 else {"signal": {"number": 15, "name": "SIGTERM"}}
        end = {"exit": exit, "swept": 0, "peak_memory_bytes": 1 << 20}
        records.event(100 + (rank != 1) * (1 + rank / ranks), "rank_ended", **name, **end)
        failed = {"status": "failed", "exit": exit} if rank == 1 else {}
        records.rank(rank, f"step 1 of rank {rank}\n", **failed)
    records.event(103, "job_ended", outcome="failed", exit_status=3)
    return records.write()
