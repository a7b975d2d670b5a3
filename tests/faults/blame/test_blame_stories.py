"""Each story under our command lines: the report names the culprit, and the reason.

A story of a framework is run under one of the two, in turn; `make test-full` runs it under both.
"""

from __future__ import annotations

from pathlib import Path

import all_stories  # noqa: F401
import preloaded
import pytest
from effort import FULL
from judge import LAUNCHERS, OURS
from story import STORIES

RUNS = [
    (name, launcher)
    for number, (name, story) in enumerate(STORIES.items())
    for launcher in (OURS if FULL or story.framework is None else [OURS[number % 2]])
]


@pytest.mark.parametrize(("name", "launcher"), RUNS)
def test_the_culprit_is_named_with_its_reason(name: str, launcher: str, tmp_path: Path) -> None:
    story = STORIES[name]
    head = preloaded.head(story.framework) if story.framework else ""
    report = LAUNCHERS[launcher].run(story, tmp_path, head)
    assert report.names_culprit(story), report.text
    assert not report.missing(story), report.text
    assert not report.misleading(story), report.text
