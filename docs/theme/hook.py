"""What MkDocs lacks for the site: pages from outside ``docs/``, and pages about the JSON schemas."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import schema_page
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[2]
# Files outside docs/ that pages may link to. The site has them in its folder repository/.
OUTSIDE = [
    path.relative_to(ROOT).as_posix()
    for path in [*ROOT.glob("*.md"), ROOT / "LICENSE", *sorted((ROOT / "examples").rglob("*"))]
    if path.is_file() and path.suffix in ("", ".md", ".py", ".ini")
]
SCHEMAS = ("result", "events", "control")
# What tests/wheels/project_urls.py writes into the README, for PyPI.
ADDRESS = re.compile(r"https://github\.com/[\w.-]+/[\w.-]+/(?:blob|raw)/main/")
# Of Markdown, and of pictures in HTML.
LINK = re.compile(r"""(\]\(|\bsrc(?:set)?=")(?![a-z]+:|#)([^)#\s"]+)""")


def on_config(config: Any) -> Any:
    # The selector of versions fetches versions.json, which a folder without a server does not have.
    if "RLAUNCH_DOCS_VERSIONS" in os.environ:
        config.extra["version"] = {"provider": "mike", "default": "latest"}
    version = re.search(r'^version = "(.+)"$', (ROOT / "Cargo.toml").read_text(), re.M)
    assert version is not None
    config.copyright = config.copyright.replace("!VERSION", version[1])
    return config


def on_files(files: Files, *, config: Any) -> Files:
    for path in OUTSIDE:
        files.append(File.generated(config, f"repository/{path}", abs_src_path=str(ROOT / path)))
    for name in SCHEMAS:
        page = schema_page.document(ROOT / f"docs/{name}.schema.json")
        files.append(File.generated(config, f"reference/{name}.md", content=page))
    return files


def on_page_markdown(markdown: str, *, page: Page, **_: Any) -> str:
    """Points the links of files outside ``docs/``, and links to them, to their places in the site."""
    place = page.file.src_uri
    folder = os.path.dirname(_in_repository(place))

    def point(link: re.Match[str]) -> str:
        target = _in_site(os.path.normpath(os.path.join(folder, link[2])))
        return link[1] + os.path.relpath(target, os.path.dirname(place))

    return LINK.sub(point, ADDRESS.sub("", markdown) if place == "repository/README.md" else markdown)


def _in_repository(place: str) -> str:
    return place.removeprefix("repository/") if place.startswith("repository/") else f"docs/{place}"


def _in_site(path: str) -> str:
    return path.removeprefix("docs/") if path.startswith("docs/") else f"repository/{path}"
